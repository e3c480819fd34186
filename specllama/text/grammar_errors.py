"""What llguidance reports of a grammar that it cannot use, in words."""

from __future__ import annotations

NOTHING = "no text satisfies it"
_REASONS = {
    "NoExtension": NOTHING,
    "NoExtensionBias": NOTHING,
    "LexerTooComplex": "it is too complex",
    "ParserTooComplex": "it is too complex",
    "InternalError": "llguidance fails on it",
}
"""Reasons to stop, which llguidance reports by their names where it has no message."""


def in_words(error: str) -> str:
    """A message of llguidance without the parser state after it, on one line."""
    if "ff_tokens)" in error:  # of the text that is the only one possible
        return "it asks for a text without end"
    line = " ".join(error.partition("<state>")[0].split())
    return _REASONS.get(line, line[:300])
