"""What `doctor` says of configuration: the files that count, the variables that are set, what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specllama.cli.doctor.words import Problem
from specllama.config import sources as configuration
from specllama.config.options import STORED
from specllama.errors import ConfigError


def config(environ: Mapping[str, str], problems: list[Problem]) -> dict[str, Any]:
    """Files in the order in which they are read, with the keys that they set; variables by name alone."""
    kinds: configuration.Kinds = {name: (o.kind, o.many) for name, o in STORED.items()}
    files = []
    for find in (lambda: configuration.user_file(environ), lambda: configuration.project_file(Path.cwd())):
        path = _tried(find, problems)
        if path is not None:
            values = _tried(lambda path=path: configuration.read_file(path, kinds), problems)  # type: ignore[misc]
            files.append({"path": str(path), "ok": values is not None, "sets": sorted(values or {})})
    _tried(lambda: configuration.read_environment(environ, kinds), problems)
    return {"files": files, "environment": sorted(v for v in environ if v.startswith(configuration.PREFIX))}


def _tried(read: Callable[[], Any], problems: list[Problem]) -> Any:
    try:
        return read()
    except ConfigError as error:
        problems.append(Problem(error.message, error.hint or "mend it or take it out", error.exit_code))
    except OSError as error:  # the working directory may be gone
        problems.append(
            Problem(f"the working directory cannot be read: {error.strerror}", "change to another")
        )
    return None
