"""`specllama cache`: evaluated prompts that are kept on disk; `cache rm`, `cache clear`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specllama.cli import console
from specllama.cli.formatting import age, listing, wrapped
from specllama.errors import NotFoundError, ResourceError
from specllama.json_types import JsonObject
from specllama.models.quants import size
from specllama.prefix_disk.directory import (
    ListedState,
    StateDirectory,
    clear,
    default_directory,
    listed,
    remove_states,
)
from specllama.text.terminal import printable
from specllama.wording import counted

EXAMPLES = """
Examples:
  specllama cache
  specllama cache rm 3f2a9c01b7de 'Qwen3 8B Q4_K_M'
  specllama cache clear

A prompt on disk can be read back as text. It is kept for the model, the build and the settings that it was
evaluated with, in files that only you may read, within --cache-disk; --cache-disk 0 keeps none.
"""


def ls(given: Mapping[str, Any]) -> int:
    """Print the states on disk, the newest first; returns 0. Raises ResourceError."""
    directory, states = _states()
    now, n_bytes = time.time(), sum(one.state.file_bytes for one in states)
    about = [_about(state, now) for state in states]
    report = {"schema": "specllama.cache/1", "path": str(directory.path), "bytes": n_bytes, "states": about}
    return console.report(given, report, _lines(report, console.width()))


def _lines(report: JsonObject, width: int | None) -> Iterator[str]:
    states, path = report["states"], report["path"]
    if not states:
        yield from wrapped(f"no prompts are kept in {path}", width)
        return
    yield from wrapped(f"{counted(len(states), 'prompt')}, {size(report['bytes'])}, in {path}", width)
    rows = [
        (
            state["id"],
            printable(state["model"]) or "unknown",
            str(state["tokens"]),
            size(state["bytes"]),
            age(state["age_seconds"]),
            str(state["uses"]),
        )
        for state in states
    ]
    yield from listing(("id", "model", "tokens", "size", "age", "uses"), rows, width, least=(0, 1, 3))


def rm(given: Mapping[str, Any]) -> int:
    """Remove states by their ids, or all of a model by its name; returns 0.

    Raises NotFoundError, before anything is removed, and ResourceError.
    """
    directory, states = _states()
    chosen = {one.state.name: one for name in given["names"] for one in _named(name, states)}
    with _possible(directory):
        remove_states(directory, chosen)
    removed: list[JsonObject] = [
        {"id": s.id, "model": s.model, "bytes": s.state.file_bytes} for s in chosen.values()
    ]
    lines = (f"removed {s['id']}, {printable(s['model'])}, {size(s['bytes'])} freed" for s in removed)
    return console.report(given, {"schema": "specllama.cache-rm/1", "removed": removed}, lines)


def remove_all(given: Mapping[str, Any]) -> int:
    """Remove all states; returns 0. Raises ResourceError."""
    directory = StateDirectory(default_directory())
    with _possible(directory):
        n, n_bytes = clear(directory)
    report = {"schema": "specllama.cache-clear/1", "removed": n, "bytes": n_bytes}
    return console.report(given, report, [f"removed {counted(n, 'prompt')}, {size(n_bytes)} freed"])


def _states() -> tuple[StateDirectory, list[ListedState]]:
    """Raises ResourceError."""
    directory = StateDirectory(default_directory(), console.note)
    with _possible(directory):
        return directory, listed(directory)


@contextlib.contextmanager
def _possible(directory: StateDirectory) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        hint = "specllama doctor says whether the cache can be written"
        raise ResourceError(f"{directory.path} cannot be used: {why}", hint) from None


def _named(name: str, states: Sequence[ListedState]) -> list[ListedState]:
    """The states that a name means: the beginning of one id, or the name of a model. Raises NotFoundError."""
    matches = [one for one in states if one.model == name]
    by_id = [one for one in states if len(name) >= 4 and one.state.name.startswith(name)]
    if not matches and len(by_id) == 1:
        return by_id
    if not matches:
        problem = "more than one prompt has" if by_id else "no prompt on disk has"
        raise NotFoundError(f"{problem} the id or model {name!r}", "specllama cache lists them")
    return matches


def _about(one: ListedState, now: float) -> JsonObject:
    return {
        "id": one.id,
        "model": one.model,
        "kind": one.state.meta.kind,
        "tokens": one.state.n_tokens,
        "bytes": one.state.file_bytes,
        "seconds": one.state.meta.seconds,
        "age_seconds": max(0.0, now - one.changed),
        "uses": one.uses,
    }
