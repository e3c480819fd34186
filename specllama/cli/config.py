"""`specllama config`: where settings are read from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specllama.cli import console
from specllama.cli.options import resolved
from specllama.cli.serve import server_settings
from specllama.config import sources
from specllama.config.places import working_directory
from specllama.models import manifest


def config(given: Mapping[str, Any]) -> int:
    """Print the files of settings and names, there or not, and the variables; returns 0. Raises ConfigError,
    UsageError and NotFoundError, after that, for values that other commands refuse.
    """
    environ, cwd = os.environ, working_directory()
    user = sources.user_path(environ)
    project = sources.project_file(cwd, user) if cwd is not None else None
    own = manifest.user_path(environ)
    variables = sorted(v for v in environ if v.startswith(sources.PREFIX) and environ[v])
    files = {"user": user, "project": project, "models": own}
    report = {name: None if path is None else str(path) for name, path in files.items()}
    lines = (
        f"your settings     {user}{_state(user)}",
        f"of this project   {project or f'no {sources.PROJECT_FILE}'}",
        f"names of models   {own}{_state(own)}",
        f"variables         {', '.join(variables) or 'none'}",
    )
    console.report(given, {**report, "schema": "specllama.config/1", "environment": variables}, lines)
    values = resolved({})
    with_a_key = values.overlaid({"api_key": ["given elsewhere"]})  # an open host needs one
    server_settings(with_a_key, prepare=lambda load, _: load)
    known = manifest.load(environ)
    if cwd is not None and known.project is None and (other := manifest.project_path(environ, cwd)):
        without = "it has no [models.NAME], [[pairs]] or schema"
        console.note(f"note: {other} is left out, as of another program: {without}")
    return 0


def path(_given: Mapping[str, Any]) -> int:
    """Print the path of the user's settings, there or not; returns 0."""
    console.data(f"{sources.user_path(os.environ)}\n")
    return 0


def _state(file: Path) -> str:
    return "" if file.is_file() else ", not a file" if file.exists() else ", not there"
