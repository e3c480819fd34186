"""The rule for figures that a process measures and stores for later ones.

Figures decide what is tried, and what is not tried is not measured: a wrong one must not prevent its own
correction. Each is bounded by what it can be, and is measured again by the first process that has loaded it:
with every load where that takes milliseconds, else once it is older than FRESH_SECONDS. What a process sees
itself outweighs what it has read. Knows no files and no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import exp, log

FRESH_SECONDS = 7 * 24 * 3600.0  # after which a figure that takes long to measure is measured again
_BETWEEN_ROWS = 2.0  # a factor: devices have other kernels for more rows, of which each takes less


def is_fresh(measured: object, now: float) -> bool:
    """Whether a figure need not be measured again. measured, now: times of day in seconds; a figure without
    one, or from a time to come, is not fresh.
    """
    known = isinstance(measured, int | float) and not isinstance(measured, bool)
    return known and now - FRESH_SECONDS < measured <= now  # type: ignore[operator]


def measured_at(data: object, names: Iterable[str]) -> dict[str, float]:
    """The stored times of day at which figures of these names were measured; malformed ones are left out."""
    stored: Mapping[object, object] = data if isinstance(data, Mapping) else {}
    times = ((name, stored.get(name)) for name in names)
    return {name: float(x) for name, x in times if isinstance(x, int | float) and 0 < x < 1e12}


def can_take(n: int, seconds: float, m: int, known: float) -> bool:
    """Whether a decode of n rows can take so long, where one of m rows takes `known` seconds: more rows take
    about as long at least, and at most in proportion.
    """
    least, most = min(1.0, n / m), max(1.0, n / m)
    return least / _BETWEEN_ROWS <= seconds / known <= most * _BETWEEN_ROWS


def moved(before: float, seen: float, share: float, most: float) -> float:
    """A figure after one further measurement, which counts by this share, and as at most `most` times off."""
    off = max(-log(most), min(log(most), log(seen / before)))
    return before * (1 + share * (exp(off) - 1))
