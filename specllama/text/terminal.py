"""The filter for text on a terminal that others wrote: models, templates, GGUF files, hubs, file names.

A terminal acts on control characters: sequences that begin with ESC or with a byte of C1 move its cursor, set
its title or the clipboard (OSC 52), or hide the target of a link (OSC 8). Each character is judged alone, so
that a sequence in two pieces of a stream does not pass either. cli/console.py applies the filter to what it
writes to terminals; pipes and files get the bytes as they are.
"""

from __future__ import annotations

_KEPT = "\n\t"
_REPLACEMENT = 0xFFFD
_PICTURES: dict[int, int | None] = {
    **{c: 0x2400 + c for c in range(0x20) if chr(c) not in _KEPT},
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), _REPLACEMENT),  # C1
    **dict.fromkeys((0x202D, 0x202E), _REPLACEMENT),  # show letters in another order than they have
    0x0D: None,  # what follows it would hide the line so far
}


def visible(text: str) -> str:
    """A text of several lines made safe for a terminal: control characters become their Unicode pictures, or
    U+FFFD where there is none, as do overrides of the text's direction.

    Newlines and tabs stay; carriage returns are left out.
    """
    return text.translate(_PICTURES)


def printable(text: str) -> str:
    """A text of one line, such as a name, with escapes for every character that is not printable."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
