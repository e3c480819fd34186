"""Backslash escapes in texts of a command line, as llama.cpp processes them."""

from __future__ import annotations

import re

from specllama.errors import UsageError

_ESCAPE = re.compile(rb"\\(?:x([0-9A-Fa-f]{2})|([nrt'\"\\]))")
_CHARACTERS = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def unescaped(text: str, name: str) -> str:
    r"""The text with \n \r \t \' \" \\ as the characters they stand for, and \xHH as a byte of UTF-8; others
    stay as they are (string_process_escapes of llama.cpp's common.cpp).

    name: of the option. Raises UsageError if the bytes are no text.
    """
    data = text.encode("utf-8", "surrogateescape")  # an argument may have bytes that are not UTF-8
    processed = _ESCAPE.sub(_character, data)
    if processed == data:
        return text
    problem = UsageError(
        r"has escapes \x that make no text", "each character has to be whole UTF-8", option=name
    )
    if b"\0" in processed:
        raise problem
    try:
        return processed.decode("utf-8", "strict" if _is_text(text) else "surrogateescape")
    except UnicodeDecodeError:
        raise problem from None


def _character(match: re.Match[bytes]) -> bytes:
    return bytes.fromhex(match[1].decode()) if match[1] else _CHARACTERS.get(match[2], match[2])


def _is_text(text: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in text)
