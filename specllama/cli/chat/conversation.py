"""A conversation: its turns, and the messages of a request. Knows no engine and no files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specllama.client.protocol import EarlierTurn
from specllama.json_types import JsonObject


@dataclass(slots=True)
class Turn:
    """A message and its answer.

    results: messages with the results of the calls in the answer before; there is no message then. answer:
    None before there is one; else exactly as written, so that its ids can be kept, but without its calls.
    calls: the calls of tools in the answer, as chat templates read them. n_results: how many results there
    must be. id: of the generation that wrote it, None if another engine process did. n_regenerated: how
    often it was regenerated. cut: why the answer ended early ("cancel", "length", "context"), "" where it
    did not.
    """

    message: str
    answer: str | None = None
    results: list[JsonObject] = field(default_factory=list)
    calls: list[JsonObject] = field(default_factory=list)
    n_results: int = 0
    id: int | None = None
    n_regenerated: int = 0
    cut: str = ""

    @property
    def complete(self) -> bool:
        """Whether the results of all calls are there."""
        return len(self.results) >= self.n_results


@dataclass(slots=True)
class Conversation:
    """The system message ("" for none) and the turns, of which the last may wait for its answer.

    changed: whether there are unsaved changes. dropped: the turns before these, which the model does not see
    any more. tokens: the ids of the last answer and its prompt, None where they are not known.
    """

    system: str = ""
    turns: list[Turn] = field(default_factory=list)
    changed: bool = False
    dropped: list[Turn] = field(default_factory=list)
    tokens: EarlierTurn | None = None

    @property
    def waiting(self) -> bool:
        """Whether the last message has no answer."""
        return bool(self.turns) and self.turns[-1].answer is None

    def messages(self, answered: bool = True, first: int = 0) -> list[JsonObject]:
        """The messages for the chat template, from the turn `first` on; without `answered` the last answer is
        left out.
        """
        messages: list[JsonObject] = [{"role": "system", "content": self.system}] if self.system else []
        for turn in self.turns[first:]:
            messages += turn_messages(turn, answered or turn is not self.turns[-1])
        return messages

    @property
    def open_calls(self) -> list[JsonObject]:
        """The calls of the last answer, whose results come next."""
        return self.turns[-1].calls if self.turns and self.turns[-1].answer is not None else []

    @property
    def follows(self) -> int | None:
        """The id of the generation that the last message follows, None for none in this engine process."""
        return self.turns[-2].id if len(self.turns) > 1 else None

    def forget_ids(self) -> None:
        """Drop the ids of generations: the engine process that knew them is gone."""
        for turn in self.turns:
            turn.id = None

    def clear(self) -> None:
        """Forget all turns; the system message stays."""
        self.turns, self.dropped, self.tokens = [], [], None
        self.changed = False

    @property
    def cuts(self) -> list[int]:
        """The numbers of oldest turns that can be dropped: the last one stays, results follow their calls."""
        return [i for i in range(1, len(self.turns)) if not self.turns[i].results]

    def trim(self, n: int | None = None) -> int:
        """Move the oldest n turns to `dropped`; returns how many. None: one or more, until at most half of
        the text or only the last turn is left.
        """
        if n is None:
            n = _n_to_drop([len(turn.message) + len(turn.answer or "") for turn in self.turns])
        n = min(n, len(self.turns))
        while 0 < n < len(self.turns) and self.turns[n].results:  # they belong to the calls before them
            n += 1
        self.dropped += [turn for turn in self.turns[:n] if turn.answer is not None]
        del self.turns[:n]
        self.changed = self.changed or n > 0
        self.tokens = None if n else self.tokens
        return n


def turn_messages(turn: Turn, answered: bool = True) -> list[JsonObject]:
    """The messages of a turn; without `answered` its answer is left out."""
    messages = list(turn.results) or [{"role": "user", "content": turn.message}]
    if turn.answer is not None and answered:
        calls = {"tool_calls": turn.calls} if turn.calls else {}
        messages.append({"role": "assistant", "content": turn.answer, **calls})
    return messages


def _n_to_drop(sizes: Sequence[int]) -> int:
    """How many of the first sizes to drop until the rest is at most half of the sum, or only the last one."""
    n, left = 1, sum(sizes[1:])
    while n < len(sizes) - 1 and 2 * left > sum(sizes):
        left -= sizes[n]
        n += 1
    return n
