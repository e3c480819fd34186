"""What a chat does where the context of the model is full: the oldest turns go, if the user agrees."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specllama.cli import console
from specllama.cli.chat.conversation import Conversation, Turn
from specllama.cli.chat.engine import ChatEngine
from specllama.client.stream import GenerationResult
from specllama.core.sampling.params import UNTIL_CONTEXT_FULL
from specllama.errors import ContextLengthError
from specllama.wording import counted

_LEAST = 16  # tokens of room that are worth going on for
_WAYS = "/trim forgets the oldest turns, /clear all of them; -c N makes the context larger"


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


def rest_of(turn: Turn, params: Mapping[str, Any], last: GenerationResult | None) -> Mapping[str, Any] | None:
    """The parameters for the rest of an answer that filled the context; None where it cannot go on: it was to
    end there, has a form that only a whole answer has, or ends in calls. last: what was generated of it.
    """
    if last is None or last.params is None or turn.calls or {"json_schema", "grammar"} & set(params):
        return None
    n = last.params.max_tokens
    if n == UNTIL_CONTEXT_FULL:
        return None
    return {**params, "max_tokens": n - last.stats.n_predict} if n > 0 else params


class FullContext:
    """Makes room in a chat. variables: of the chat template. may_drop: asked once it has been said what goes
    and what that frees; None for a script, which has to say so before.
    """

    def __init__(
        self, engine: ChatEngine, variables: Mapping[str, Any], may_drop: Callable[[], bool] | None
    ) -> None:
        self._engine, self._variables, self._may_drop = engine, variables, may_drop
        self._was_refused = False

    def make_room(self, conversation: Conversation, n_tokens: int | None, prefix: str = "") -> bool:
        """Drop the oldest turns, if that makes room and the user agrees. The system message, the last message
        and what belongs to it stay. n_tokens: that there are, None for unknown. prefix: of the answer.
        """
        self._was_refused = False
        engine, n_ctx = self._engine, self._engine.info.n_ctx

        def count(n: int) -> int | None:
            return engine.count(conversation.messages(answered=False, first=n), self._variables, prefix)

        room = find_room(conversation.cuts, count, n_ctx) if self._may_drop is not None else None
        if room is None or self._may_drop is None:
            return False
        frees = (
            f"frees {counted(n_tokens - room.n_left, 'token')}"
            if n_tokens
            else f"leaves {counted(room.n_left, 'token')}"
        )
        stays = "; the system message stays" if conversation.system else ""
        turns = f"the oldest {counted(room.n_turns, 'turn')}"
        console.note(f"the context of {n_ctx} tokens is full: dropping {turns} {frees}{stays}")
        if not self._may_drop():
            self._was_refused = True
            return False
        conversation.trim(room.n_turns)
        return True

    def say_refused(self, error: ContextLengthError) -> None:
        """Say that no turns were dropped for a message, where the user decided so. Raises ContextLengthError
        where dropping them was not possible.
        """
        if not self._was_refused:
            raise ContextLengthError(error.message, f"it was not sent; {self._ways}", error.details)
        console.note(f"note: no turns were dropped; {self._ways}")

    def say_cut(self) -> None:
        """Say that the answer ends where the context does."""
        n_ctx = self._engine.info.n_ctx
        console.note(f"note: the context of {n_ctx} tokens is full, the answer was cut; {self._ways}")

    @property
    def _ways(self) -> str:
        return _WAYS if self._may_drop is not None else f"{_WAYS}; --drop-oldest drops the oldest turns"
