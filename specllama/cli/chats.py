"""`specllama chats`: the conversations that `chat` has saved; `chats rm`, `chats clear`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from specllama.cli import console
from specllama.cli.chat.library import ChatLibrary, SavedChat, to_remove
from specllama.cli.formatting import age, columns, listing, wrapped
from specllama.json_types import JsonObject
from specllama.models.quants import size
from specllama.text.terminal import printable
from specllama.wording import counted

EXAMPLES = """
Examples:
  specllama chats
  specllama chat --continue 'What is a monad'
  specllama chats rm 'What is a monad'
  specllama chats clear

A conversation is saved as it goes, as text, in a file that only you may read; chat --no-save saves none. What
a model has computed from it is in specllama cache.
"""


def ls(given: Mapping[str, Any]) -> int:
    """Print the saved conversations, the newest first; returns 0. Raises ResourceError."""
    library, now = ChatLibrary(), time.time()
    chats = library.chats()
    if given.get("json"):
        report = {"schema": "specllama.chats/1", "path": str(library.path)}
        console.data(json.dumps({**report, "chats": [_about(chat, now) for chat in chats]}) + "\n")
        return 0
    width = columns(sys.stdout)
    if not chats:
        lines = wrapped(f"no conversations are saved in {library.path}", width)
    else:
        total = f"{counted(len(chats), 'conversation')}, {size(sum(c.n_bytes for c in chats))}"
        head = ("name", "turns", "model", "age", "size")
        rows = [
            (
                printable(chat.name),
                "" if chat.problem else str(chat.n_turns),
                printable(chat.model),
                age(chat.changed, now),
                size(chat.n_bytes),
            )
            for chat in chats
        ]
        lines = [*wrapped(f"{total}, in {library.path}", width), *listing(head, rows, width, least=(0, 1, 3))]
    console.data("".join(f"{line}\n" for line in lines))
    for chat in chats:
        if chat.problem:
            console.warning(f"{printable(f'{chat.name!r} cannot be read: {chat.problem}')} (id {chat.id})")
    return 0


def rm(given: Mapping[str, Any]) -> int:
    """Remove conversations by their whole names or their ids; returns 0.

    Raises NotFoundError and ResourceError, before anything is removed.
    """
    library = ChatLibrary()
    chats = library.chats()
    return _remove(
        library, list({(c := to_remove(name, chats)).path: c for name in given["names"]}.values()), given
    )


def remove_all(given: Mapping[str, Any]) -> int:
    """Remove all conversations; returns 0. Raises ResourceError, before anything is removed."""
    library = ChatLibrary()
    return _remove(library, library.chats(), given)


def _remove(library: ChatLibrary, chats: Sequence[SavedChat], given: Mapping[str, Any]) -> int:
    library.remove(chats)
    if given.get("json"):
        removed = [{"id": chat.id, "name": chat.name, "bytes": chat.n_bytes} for chat in chats]
        console.data(json.dumps({"schema": "specllama.chats-rm/1", "removed": removed}) + "\n")
        return 0
    for chat in chats:
        console.data(f"removed {printable(chat.name)}, {counted(chat.n_turns, 'turn')}\n")
    if not chats:
        console.data(f"no conversations are saved in {library.path}\n")
    return 0


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
