"""What was stored may be anything by now: numbers are told from the rest here. Knows no files."""

from __future__ import annotations

from typing import TypeGuard

_LARGEST = 1e300  # beyond, whole numbers of JSON are no floats any more


def is_number(x: object, low: float = -_LARGEST, high: float = _LARGEST) -> TypeGuard[float]:
    """Whether it is a number from low to high; true and false are none, nor is what JSON calls NaN."""
    return isinstance(x, int | float) and not isinstance(x, bool) and low <= x <= high


def numbers(x: object, n: int, low: float = -_LARGEST, high: float = _LARGEST) -> list[float] | None:
    """The numbers of a list of n from low to high; None where it is something else."""
    if not isinstance(x, list) or len(x) != n or not all(is_number(v, low, high) for v in x):
        return None
    return [float(v) for v in x]
