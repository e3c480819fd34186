"""What `doctor` reports on configuration: files and variables in use, and the RPC workers of --rpc."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specllama.cli.doctor import Problem, reported
from specllama.config import sources
from specllama.config.options import STORED
from specllama.errors import SpecllamaError
from specllama.rpc.endpoints import endpoints
from specllama.rpc.probe import probe_all


def config(environ: Mapping[str, str], problems: list[Problem]) -> dict[str, Any]:
    """Configuration files in the order of reading, with the keys that they set; names of variables."""
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
    """What `read` returns, None after an error, which is reported."""
    try:
        with reported(problems, "correct it or remove it"):
            return read()
    except OSError as error:  # the working directory may be gone
        what = f"the working directory cannot be read: {error.strerror}"
        problems.append(Problem(what, "change to another directory"))
    return None


def workers(given: str, problems: list[Problem]) -> list[dict[str, Any]]:
    """Each RPC worker with version and memory in bytes, or why it cannot be used.

    given: the value of --rpc. Raises UsageError if it is not a list of workers.
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
