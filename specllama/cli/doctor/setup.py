"""What `doctor` reports on configuration: files and variables in use, and the RPC workers of --rpc."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specllama.cli.doctor import Problem
from specllama.config import sources
from specllama.config.options import STORED
from specllama.errors import ConfigError, SpecllamaError
from specllama.rpc.endpoints import endpoints
from specllama.rpc.probe import probe_all


def config(environ: Mapping[str, str], problems: list[Problem]) -> dict[str, Any]:
    """Files in the order in which they are read, with the keys that they set; variables by name alone."""
    kinds: sources.Kinds = {name: (o.kind, o.many) for name, o in STORED.items()}
    files = []
    for find in (lambda: sources.user_file(environ), lambda: sources.project_file(Path.cwd())):
        path = _or_problem(find, problems)
        if path is not None:
            values = _or_problem(lambda path=path: sources.read_file(path, kinds), problems)  # type: ignore[misc]
            files.append({"path": str(path), "ok": values is not None, "sets": sorted(values or {})})
    _or_problem(lambda: sources.read_environment(environ, kinds), problems)
    return {"files": files, "environment": sorted(v for v in environ if v.startswith(sources.PREFIX))}


def _or_problem(read: Callable[[], Any], problems: list[Problem]) -> Any:
    try:
        return read()
    except ConfigError as error:
        problems.append(Problem(error.message, error.hint or "correct it or remove it", error.exit_code))
    except OSError as error:  # the working directory may be gone
        what = f"the working directory cannot be read: {error.strerror}"
        problems.append(Problem(what, "change to another directory"))
    return None


def workers(given: str, problems: list[Problem]) -> list[dict[str, Any]]:
    """Each RPC worker with version and memory in bytes, or why it cannot be used.

    given: as --rpc takes it. Raises UsageError for a text that is no list of workers.
    """
    found = []
    for endpoint, answer in probe_all(endpoints(given)):
        if isinstance(answer, SpecllamaError):
            problems.append(Problem(answer.message, answer.hint, answer.exit_code))
            found.append({"endpoint": endpoint, "ok": False, "error": answer.message})
        else:
            devices = [{"free": free, "total": total} for free, total in answer.devices]
            about = {"address": answer.address, "protocol": answer.protocol, "devices": devices}
            found.append({"endpoint": endpoint, "ok": True, **about})
    return found
