"""Errors of the file system as errors of the program; settings from files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from specllama.cli import console
from specllama.config import build, sources
from specllama.errors import SpecllamaError


@contextlib.contextmanager
def mapped_errors(kind: type[SpecllamaError], what: str, hint: str = "") -> Iterator[None]:
    """Raise an OSError or ValueError of the block as this kind of error: "`what`: the system's reason"."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise kind(f"{what}: {getattr(error, 'strerror', None) or error}", hint) from None


def resolved(given: Mapping[str, Any]) -> sources.Values:
    """The merged values of flags, environment and files, after a note that names the project's file. Raises
    ConfigError.
    """
    values = build.resolved(given)
    if values.project is not None:
        console.note(f"settings: {sources.near(values.project)}")
    return values
