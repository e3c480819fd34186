"""Errors of the file system as errors of the program; settings from files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from specllama.cli import console
from specllama.config import build, sources
from specllama.config.escapes import unescaped
from specllama.config.option import OptionValues
from specllama.errors import SpecllamaError, UsageError


@contextlib.contextmanager
def mapped_errors(kind: type[SpecllamaError], what: str, hint: str = "") -> Iterator[None]:
    """Raise an OSError or ValueError of the block as this kind of error: "`what`: the system's reason"."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise kind(f"{what}: {getattr(error, 'strerror', None) or error}", hint) from None


def refuse_stdout(name: str, what: str) -> None:
    """Raise UsageError if a file to write is named -, which elsewhere is a standard stream. what: the option
    or argument that names it.
    """
    if name == "-":
        raise UsageError(f"{what} must be the path of a file: - for standard output is not possible here")


def resolved(given: Mapping[str, Any]) -> sources.Values:
    """The merged values of flags, environment and files, after a note that names the project's file; escapes
    in the flags' texts are processed. Raises ConfigError, UsageError.
    """
    values = build.resolved(_with_escapes(given))
    if values.ignored:
        others = f" and {len(values.ignored) - 1} more" if len(values.ignored) > 1 else ""
        console.note(f"note: {values.ignored[0]}{others} are of a service of that name, and no settings")
    if values.left_out:
        console.note(f"note: {values.left_out} is left out, as it goes with the model that is named there")
    if values.project is not None:
        console.note(f"settings: {sources.near(values.project)}")
    return values


def _with_escapes(given: Mapping[str, Any]) -> OptionValues:
    """Texts as llama.cpp takes them from a command line: a shell has no easy way to write a newline."""
    if given.get("escape") and given.get("no_escape"):
        raise UsageError("-e and --no-escape are both given")
    values = dict(given)
    if not given.get("no_escape"):
        if "prompt" in given:
            values["prompt"] = unescaped(given["prompt"], "prompt")
        for name in ("words", "stop"):
            if name in given:
                values[name] = [unescaped(text, name) for text in given[name]]
    return values
