"""The positions of a prompt at which partial states are saved. Pure functions of the prompt.

They depend on the text alone, so a prompt is evaluated in the same pieces for every request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, get_args

GAP = 64  # ids between two states at least: reading so few again costs less than a decode for each state
_FIRST_DISTANCE, _DISTANCE_FACTOR = 64, 4
_ALWAYS = ("system", "reasoning")  # kinds for which a piece of _SHORT ids is worth a decode of its own
_SHORT = 8
Kind = Literal["system", "user", "reasoning", "end", "answer", "distance"]
"""Where a partial state was made: after the system prompt and the tools; at the start of a user message;
before an answer whose reasoning the template strips later; before the last words of a prompt; after an
answer; at a distance from the end of a prompt without known boundaries.
"""
KINDS: tuple[str, ...] = get_args(Kind)


class Boundary(NamedTuple):
    """A position in a prompt up to which later prompts may share it. n: the ids before it."""

    n: int
    kind: Kind


def distances(n_prompt: int) -> list[Boundary]:
    """Boundaries at growing distances from the end of a prompt of unknown structure, at multiples of
    GAP.
    """
    ends, distance = set(), _FIRST_DISTANCE
    while distance < n_prompt:
        ends.add((n_prompt - distance) // GAP * GAP)
        distance *= _DISTANCE_FACTOR
    return [Boundary(n, "distance") for n in sorted(ends) if n]


def ahead(
    boundaries: Iterable[Boundary], n_past: int, n_prompt: int, chunk: int | None = None
) -> list[Boundary]:
    """The boundaries at which an evaluation stops that begins with n_past ids in the cache, without those
    that are too close to the one before. chunk: pieces end at multiples of it only; None: anywhere.
    """
    stops = list[Boundary]()
    last = n_past
    for n, kind in sorted(boundaries):
        at = n if chunk is None else n // chunk * chunk
        gap = GAP if kind not in _ALWAYS or at < GAP else _SHORT
        if last + gap <= at < n_prompt:
            stops.append(Boundary(at, kind))
            last = at
    return stops


def next_stop(boundaries: Sequence[Boundary], n_past: int, n: int) -> tuple[int, Boundary | None]:
    """(The ids after the next piece of a prompt of n ids, the boundary there)."""
    stop = next((b for b in boundaries if b.n > n_past), None)
    return (n, None) if stop is None or stop.n >= n else (stop.n, stop)
