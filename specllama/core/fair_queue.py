"""The order in which waiting generations get slots. Knows neither slots nor clocks."""

from __future__ import annotations

from bisect import insort

from specllama.core.sequence import Generation

QUEUE_STEP = 4  # later requests that each further text of a request lets pass


class FairQueue:
    """The order in which generations get slots. Owners take turns; requests of one owner are served first
    come, first served, but further texts of a request (`Request.turn` 1, 2, …) let some later requests pass.

    Ranks are the start tags of start-time fair queueing (Goyal et al. 1996): those of an owner grow from the
    rank that was served last, so an owner with nothing waiting is next, and none waits forever.
    """

    def __init__(self) -> None:
        self._arrived: dict[str, int] = {}  # by owner: the rank of its latest request
        self._served = 0  # the highest rank that got a slot

    def join(self, waiting: list[Generation], generation: Generation) -> None:
        """Insert the generation into `waiting` by its rank."""
        owner, turn = generation.request.owner, generation.request.turn
        if turn == 0:
            self._arrived[owner] = max(self._arrived.get(owner, 0) + 1, self._served)
        generation.queue_rank = self._arrived.get(owner, 0) + turn * QUEUE_STEP
        insort(waiting, generation, key=lambda g: g.queue_rank)

    def served(self, generation: Generation) -> None:
        """The generation got a slot."""
        self._served = max(self._served, generation.queue_rank)
