"""How long drafts are, and how wide: numbers of options, or words in their place."""

from __future__ import annotations

import re

from specllama.errors import UsageError


def tree_branches(text: str) -> int | None:
    """LoadSettings' draft_tree from the option's value. Raises UsageError."""
    if text in ("auto", "off"):
        return None if text == "auto" else 0
    if not re.fullmatch("[0-9]{1,9}", text):
        raise UsageError(f"must be a whole number from 0, auto or off, not {text!r}", option="draft_tree")
    return int(text)


def draft_tokens(text: str) -> int | None:
    """LoadSettings' draft_max from the option's value. Raises UsageError."""
    if text == "auto":
        return None
    if not re.fullmatch("[0-9]{1,9}", text):
        raise UsageError(f"must be a whole number from 0 or auto, not {text!r}", option="draft_max")
    return int(text)
