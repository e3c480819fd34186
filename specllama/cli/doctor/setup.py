"""What `doctor` reports on configuration: files and variables in use, and the RPC workers of --rpc."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from specllama.cli.doctor import Problem, reported
from specllama.config import sources
from specllama.config.build import KINDS
from specllama.config.options import IN_PROJECTS, LONG_FLAGS
from specllama.config.places import working_directory
from specllama.errors import SpecllamaError
from specllama.models import manifest
from specllama.rpc.endpoints import endpoints
from specllama.rpc.probe import probe_all


class SettingsFile(TypedDict):
    """A file of settings. ok: whether it can be read; sets: its keys."""

    path: str
    ok: bool
    sets: list[str]


class ConfigReport(TypedDict):
    """files: in the order of reading; models: paths of models.toml; environment: names of variables."""

    files: list[SettingsFile]
    models: list[str]
    environment: list[str]


class WorkerDevice(TypedDict):
    """Memory of a device, in bytes."""

    free: int
    total: int


class WorkerReport(TypedDict, total=False):
    """An RPC worker; with `ok` its address, protocol and devices, else why it cannot be used."""

    endpoint: str
    ok: bool
    error: str
    address: str
    protocol: str
    devices: list[WorkerDevice]


def config(environ: Mapping[str, str], problems: list[Problem]) -> ConfigReport:
    """Configuration files in the order of reading, with the keys that they set; names of variables; the
    models.toml of user and project.
    """
    files: list[SettingsFile] = []
    user = _or_problem(lambda: sources.user_file(environ), problems)
    cwd = working_directory()
    if cwd is None:
        problems.append(Problem("the working directory is gone", "change to another directory"))
    project = None if cwd is None else _or_problem(lambda: sources.project_file(cwd, user), problems)
    for path in (user, project):
        if path is not None:
            values = _or_problem(partial(_values, path, path is user, environ), problems)
            files.append({"path": str(path), "ok": values is not None, "sets": sorted(values or {})})
    _or_problem(lambda: sources.read_environment(environ, KINDS, LONG_FLAGS), problems)
    known = _or_problem(lambda: manifest.load(environ), problems)
    models = [] if known is None else [str(path) for path in (known.user, known.project) if path is not None]
    return {
        "files": files,
        "models": models,
        "environment": sorted(v for v in environ if v.startswith(sources.PREFIX)),
    }


def _values(path: Path, is_users: bool, environ: Mapping[str, str]) -> sources.Values:
    """The options of the user's or the project's file. Raises ConfigError."""
    if is_users:
        return sources.read_file(path, KINDS, LONG_FLAGS)
    return sources.read_project_file(path, KINDS, IN_PROJECTS, environ, LONG_FLAGS)


def _or_problem(read: Callable[[], Any], problems: list[Problem]) -> Any:
    """What `read` returns, None after an error, which is reported."""
    with reported(problems, "correct it or remove it"):
        return read()


def workers(given: str, problems: list[Problem]) -> list[WorkerReport]:
    """Each RPC worker with version and memory in bytes, or why it cannot be used.

    given: the value of --rpc. Raises UsageError if it is not a list of workers.
    """
    workers: list[WorkerReport] = []
    for endpoint, answer in probe_all(endpoints(given)):
        if isinstance(answer, SpecllamaError):
            problems.append(Problem(answer.message, answer.hint, answer.exit_code))
            workers.append({"endpoint": endpoint, "ok": False, "error": answer.message})
        else:
            workers.append(
                {
                    "endpoint": endpoint,
                    "ok": True,
                    "address": answer.address,
                    "protocol": answer.protocol,
                    "devices": [{"free": free, "total": total} for free, total in answer.devices],
                }
            )
    return workers
