"""`specllama config`: where settings are read from."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specllama.cli import console
from specllama.config import sources
from specllama.config.places import working_directory
from specllama.models import manifest

EXAMPLES = """
Examples:
  specllama config
  specllama config path
  $EDITOR "$(specllama config path)"

A flag is taken before a variable SPECLLAMA_NAME, that before a project's specllama.toml, and that before your
own file.
"""


def config(given: Mapping[str, Any]) -> int:
    """Print the files of settings and names, there or not, and the variables; returns 0."""
    environ, cwd = os.environ, working_directory()
    user = sources.user_path(environ)
    project = sources.project_file(cwd, user) if cwd is not None else None
    own = manifest.user_path(environ)
    variables = sorted(v for v in environ if v.startswith(sources.PREFIX) and environ[v])
    if given.get("json"):
        files = {"user": user, "project": project, "models": own}
        report: dict[str, Any] = {name: None if path is None else str(path) for name, path in files.items()}
        report |= {"schema": "specllama.config/1", "environment": variables}
        console.data(json.dumps(report) + "\n")
        return 0
    console.data(f"your settings     {user}{_state(user)}\n")
    console.data(f"of this project   {project or f'no {sources.PROJECT_FILE}'}\n")
    console.data(f"names of models   {own}{_state(own)}\n")
    console.data(f"variables         {', '.join(variables) or 'none'}\n")
    return 0


def path(_given: Mapping[str, Any]) -> int:
    """Print the path of the user's settings, there or not; returns 0."""
    console.data(f"{sources.user_path(os.environ)}\n")
    return 0


def _state(file: Path) -> str:
    return "" if file.is_file() else ", not there"
