"""Halves of surrogate pairs in texts that JSON can escape and no tokenizer accepts."""

from __future__ import annotations


def without_lone_surrogates(text: str) -> str:
    """The text with U+FFFD for each half of a pair that stands alone, such as where a client has cut the text
    inside a character.
    """
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
