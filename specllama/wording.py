"""Words in sentences: counts, and names that may be meant. Knows nothing else of the package."""

from __future__ import annotations

from collections.abc import Collection


def counted(n: int, noun: str) -> str:
    """ "1 turn", "2 turns"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def similar(name: str, names: Collection[str]) -> list[str]:
    """Up to three names that resemble this one, the nearest first; of a misspelt name that alone."""
    from difflib import get_close_matches

    return get_close_matches(name[:100], names, 1, 0.85) or get_close_matches(name[:100], names)
