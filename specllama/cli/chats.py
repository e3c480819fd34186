"""`specllama chats`: the conversations that `chat` has saved; `chats rm`, `chats clear`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specllama.cli import console
from specllama.cli.chat.library import ChatLibrary, SavedChat, to_remove
from specllama.cli.formatting import age, listing, wrapped
from specllama.json_types import JsonObject
from specllama.models.quants import size
from specllama.text.terminal import printable
from specllama.wording import counted


def ls(given: Mapping[str, Any]) -> int:
    """Print the saved conversations, the newest first; returns 0. Raises ResourceError."""
    library, now = ChatLibrary(), time.time()
    chats = [_about(chat, now) for chat in library.chats()]
    report = {"schema": "specllama.chats/1", "path": str(library.path), "chats": chats}
    console.report(given, report, _lines(report, console.width()))
    for chat in chats if not given.get("json") else ():
        if chat["problem"]:
            problem = printable(f"{chat['name']!r} cannot be read: {chat['problem']}")
            console.warning(f"{problem} (id {chat['id']})")
    return 0


def _lines(report: JsonObject, width: int | None) -> Iterator[str]:
    chats, path = report["chats"], report["path"]
    if not chats:
        yield from wrapped(f"no conversations are saved in {path}", width)
        return
    total = size(sum(chat["bytes"] for chat in chats))
    yield from wrapped(f"{counted(len(chats), 'conversation')}, {total}, in {path}", width)
    rows = [
        (
            printable(chat["name"]),
            "" if chat["problem"] else str(chat["turns"]),
            printable(chat["model"]),
            age(chat["age_seconds"]),
            size(chat["bytes"]),
        )
        for chat in chats
    ]
    yield from listing(("name", "turns", "model", "age", "size"), rows, width, least=(0, 1, 3))


def rm(given: Mapping[str, Any]) -> int:
    """Remove conversations by their whole names or their ids; returns 0.

    Raises NotFoundError and ResourceError, before anything is removed.
    """
    library = ChatLibrary()
    chats = list(library.chats())
    chosen = {(chat := to_remove(name, chats)).path: chat for name in given["names"]}
    return _remove(library, list(chosen.values()), given)


def remove_all(given: Mapping[str, Any]) -> int:
    """Remove all conversations; returns 0. Raises ResourceError, before anything is removed."""
    library = ChatLibrary()
    return _remove(library, list(library.chats()), given)


def _remove(library: ChatLibrary, chats: Sequence[SavedChat], given: Mapping[str, Any]) -> int:
    library.remove(chats)
    removed = [{"id": chat.id, "name": chat.name, "bytes": chat.n_bytes} for chat in chats]
    lines = [f"removed {printable(chat.name)}, {counted(chat.n_turns, 'turn')}" for chat in chats]
    lines = lines or [f"no conversations are saved in {library.path}"]
    return console.report(given, {"schema": "specllama.chats-rm/1", "removed": removed}, lines)


def _about(chat: SavedChat, now: float) -> JsonObject:
    return {
        "id": chat.id,
        "name": chat.name,
        "turns": chat.n_turns,
        "model": chat.model,
        "age_seconds": max(0.0, now - chat.changed),
        "bytes": chat.n_bytes,
        "problem": chat.problem or None,
    }
