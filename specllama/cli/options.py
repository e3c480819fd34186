"""The options and arguments of the commands that load no model: pair-check, pull, models, doctor."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specllama.cli import console
from specllama.config import build, sources
from specllama.config.forms import unescaped
from specllama.config.load import MAX_THREADS
from specllama.config.options import MODELS_DIR
from specllama.config.places import near
from specllama.config.store import write_whole
from specllama.config.text_file import argument
from specllama.core.sampling.params import SamplingParams
from specllama.errors import ResourceError, SpecllamaError, UsageError
from specllama.json_types import JsonObject
from specllama.option import Option, OptionValues, tables
from specllama.regular_file import table_of

_TABLES = table_of(__file__)


def own_options(names: str, words: Mapping[str, object] = {}) -> list[Option]:
    """Those of tables in options.toml, whose names have blanks between them. words: see `tables`."""
    return [option for name in names.split() for option in tables(_TABLES[name], words)]


MODELS = [*MODELS_DIR, *own_options("output debug")]


@contextlib.contextmanager
def mapped_errors(kind: type[SpecllamaError], what: str, hint: str = "") -> Iterator[None]:
    """Raise an OSError or ValueError of the block as this kind of error: "`what`: the system's reason"."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise kind(f"{what}: {getattr(error, 'strerror', None) or error}", hint) from None


def write_file(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a file, and its directory, as a whole. Raises ResourceError."""
    with mapped_errors(ResourceError, f"{path} cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text, mode)


def refuse_stdout(name: str, what: str) -> None:
    """Raise UsageError for a file to write that is -, a standard stream elsewhere. what: what names it."""
    if name == "-":
        raise UsageError(f"{what} must be the path of a file: - for standard output is not possible here")


def checked_threads(given: Mapping[str, Any]) -> int:
    """The value of -t. Raises UsageError."""
    n = int(given.get("n_threads", 0))
    if not 0 <= n <= MAX_THREADS:
        raise UsageError(f"-t must be from 1 to {MAX_THREADS}, or 0 for the physical cores, not {n}")
    return n


def resolved(given: Mapping[str, Any]) -> sources.Values:
    """The merged values of flags, environment and files, after a note that names the project's file; escapes
    in the flags' texts are processed. Raises ConfigError, UsageError.
    """
    values = sources.resolve(_with_escapes(given))
    if values.ignored:
        names = f"{values.ignored[0]} is"
        if len(values.ignored) > 1:
            names = f"{values.ignored[0]} and {len(values.ignored) - 1} more are"
        console.note(f"note: {names} of a service of that name, and no settings")
    if values.left_out:
        console.note(f"note: {values.left_out} is left out, as it goes with the model that is named there")
    if values.project is not None:
        console.note(f"settings: {near(values.project)}")
    return values


def sampling(values: Mapping[str, Any]) -> JsonObject:
    """The sampling parameters, with a schema or grammar that can be used. Raises UsageError."""
    params = build.sampling(values)
    for idle in SamplingParams.merge(params).without_effect([*params]):
        console.note(f"note: {idle}")
    schema, grammar = params.get("json_schema"), params.get("grammar")
    if schema is not None or grammar is not None:
        from specllama.text.grammar import check  # needs numpy

        check(schema, grammar)
    return params


# What is read as text. The names of files, the others, may have any bytes.
_ESCAPED = ("words", "prompt", "stop", "dry_sequence_breakers")
_TEXTS = (
    *(*_ESCAPED, "system_prompt", "query", "json_schema", "grammar", "chat_template"),
    "reasoning_budget_message",
)


def _with_escapes(given: Mapping[str, Any]) -> OptionValues:
    """Texts as llama.cpp takes them from a command line: a shell has no easy way to write a newline. Raises
    UsageError, for bytes that are no text too.
    """
    if given.get("escape") and given.get("no_escape"):
        raise UsageError("-e and --no-escape are both given")
    values = dict(given)
    for name in (name for name in _TEXTS if name in given):
        texts = [given[name]] if isinstance(given[name], str) else given[name]
        texts = [argument(text, name) for text in texts]
        if name in _ESCAPED and not given.get("no_escape"):
            texts = [unescaped(text, name) for text in texts]
        values[name] = texts[0] if isinstance(given[name], str) else texts
    return values
