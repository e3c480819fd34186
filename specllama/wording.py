"""Counts in sentences. Knows nothing else of the package."""

from __future__ import annotations


def counted(n: int, noun: str) -> str:
    """ "1 turn", "2 turns"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
