"""Small words for messages of the chat: the nearest of some names, text that is safe to show."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

FILE = "FILE"  # as a word behind a command: any path

_PICTURES = {c: 0x2400 + c for c in range(0x20)} | {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
_PICTURES = {c: to for c, to in _PICTURES.items() if c not in b"\n\t\r"}


def nearest(typed: str, names: Iterable[str]) -> str:
    """ "; did you mean X?", or nothing where no name is near."""
    found = difflib.get_close_matches(typed[:60], list(names), n=1, cutoff=0.5)
    return f"; did you mean {found[0]}?" if found else ""


def visible(text: str) -> str:
    """The text without a byte that a terminal could obey: control characters become pictures of them.

    Newlines and tabs stay; carriage returns, which could hide what stands in a line, are left out.
    """
    return text.replace("\r", "").translate(_PICTURES)


def counted(n: int, noun: str) -> str:
    """ "1 turn", "2 turns"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
