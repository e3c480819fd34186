"""`specllama cache`: evaluated prompts, and answers to draft from, on disk; `cache rm`, `cache clear`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from specllama.cli import console
from specllama.cli.formatting import age, listing, wrapped
from specllama.cli.options import mapped_errors
from specllama.errors import NotFoundError, ResourceError
from specllama.json_types import JsonObject
from specllama.models.demo import called
from specllama.models.quants import size
from specllama.prefix_disk import directory as disk
from specllama.prefix_disk.memory_store import listed_memories
from specllama.text.terminal import printable
from specllama.wording import counted

_MEMORY = "memory"


def ls(given: Mapping[str, Any]) -> int:
    """Print what is on disk, the newest first; returns 0. Raises ResourceError."""
    directory, kept = _kept()
    about = sorted(kept.values(), key=lambda one: float(one["age_seconds"]))
    n_bytes = sum(one["bytes"] for one in about)
    report = {"schema": "specllama.cache/1", "path": str(directory.path), "bytes": n_bytes, "states": about}
    return console.report(given, report, _lines(report, console.width()))


def _lines(report: JsonObject, width: int | None) -> Iterator[str]:
    states, path = report["states"], report["path"]
    if not states:
        yield from wrapped(f"no prompts are kept in {path}", width)
        return
    n_memories = sum(state["kind"] == _MEMORY for state in states)
    n_prompts = len(states) - n_memories
    what = [counted(n_prompts, "prompt")] if n_prompts else []
    what += [f"{counted(n_memories, 'file')} of answers to draft from"] if n_memories else []
    yield from wrapped(f"{' and '.join(what)}, {size(report['bytes'])}, in {path}", width)
    rows = [
        (
            state["id"],
            (printable(state["model"]) or "unknown") + (" (answers)" if state["kind"] == _MEMORY else ""),
            str(state["tokens"]),
            size(state["bytes"]),
            age(state["age_seconds"]),
            str(state["uses"]),
        )
        for state in states
    ]
    yield from listing(("id", "model", "tokens", "size", "age", "uses"), rows, width, least=(0, 1, 3))


def rm(given: Mapping[str, Any]) -> int:
    """Remove what has these ids, or is of a model of this name; returns 0.

    Raises NotFoundError, before anything is removed, and ResourceError.
    """
    directory, kept = _kept()
    chosen = {file: kept[file] for name in given["names"] for file in _named(name, kept)}
    with _possible(directory):
        disk.remove_states(directory, chosen)
    shown = "id", "model", "bytes"
    removed: list[JsonObject] = [{name: one[name] for name in shown} for one in chosen.values()]
    lines = (f"removed {s['id']}, {printable(s['model'])}, {size(s['bytes'])} freed" for s in removed)
    return console.report(given, {"schema": "specllama.cache-rm/1", "removed": removed}, lines)


def remove_all(given: Mapping[str, Any]) -> int:
    """Remove all that is on disk; returns 0. Raises ResourceError."""
    directory = disk.StateDirectory(disk.default_directory())
    with _possible(directory):
        n, n_bytes = disk.clear(directory)
    report = {"schema": "specllama.cache-clear/1", "removed": n, "bytes": n_bytes}
    return console.report(given, report, [f"removed {counted(n, 'file')}, {size(n_bytes)} freed"])


def _kept() -> tuple[disk.StateDirectory, dict[str, JsonObject]]:
    """The directory, and what is known of each of its files. Raises ResourceError."""
    directory, now = disk.StateDirectory(disk.default_directory(), console.note), time.time()
    with _possible(directory):
        kept = [*disk.listed(directory), *listed_memories(directory)]
        return directory, {one.name: _about(one, now) for one in kept}


def _possible(directory: disk.StateDirectory) -> AbstractContextManager[None]:
    hint = "specllama doctor says whether the cache can be written"
    return mapped_errors(ResourceError, f"{directory.path} cannot be used", hint)


def _named(name: str, kept: Mapping[str, JsonObject]) -> list[str]:
    """The files that a name means: the beginning of one id, or the name of a model. Raises NotFoundError."""
    matches = [file for file, one in kept.items() if one["model"] == name]
    by_id = [file for file in kept if len(name) >= 4 and file.startswith(name)]
    if not matches and len(by_id) == 1:
        return by_id
    if not matches:
        problem = "more than one prompt has" if by_id else "no prompt on disk has"
        raise NotFoundError(f"{problem} the id or model {name!r}", "specllama cache lists them")
    return matches


def _about(one: disk.ListedFile, now: float) -> JsonObject:
    return {
        "id": one.id,
        "model": called(one.model),
        "kind": one.kind,
        "tokens": one.n_tokens,
        "bytes": one.n_bytes,
        "seconds": one.seconds,
        "age_seconds": max(0.0, now - one.changed),
        "uses": one.uses,
    }
