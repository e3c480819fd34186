"""How many of the oldest turns of a conversation have to go where its context is full. Knows no engine."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_LEAST = 16  # tokens of room that are worth going on for


@dataclass(frozen=True, slots=True)
class Room:
    """n_turns: to drop. n_left: tokens of the prompt without them."""

    n_turns: int
    n_left: int


def find_room(cuts: Sequence[int], count: Callable[[int], int | None], n_ctx: int) -> Room | None:
    """The fewest turns whose end leaves half of the context free, since what follows a cut is read again and
    a next cut should be far; where none does, all that can go. None where that makes too little room.

    cuts: the numbers of turns that can go, increasing. count: tokens of the prompt without so many turns,
    None for more than the context; it decreases.
    """
    if not cuts:
        return None

    def is_enough(n: int) -> bool:
        left = count(n)
        return left is not None and 2 * left <= n_ctx

    at = bisect.bisect_left(cuts, True, key=is_enough)
    n = cuts[min(at, len(cuts) - 1)]
    left = count(n)
    if left is None or left > n_ctx - max(_LEAST, n_ctx // 8):
        return None
    return Room(n, left)
