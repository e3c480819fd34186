"""The budget of an answer's reasoning: after so many tokens its end is written, whatever the model chooses.

It is a mask, as a grammar's is: where the end is due only its next token is legal, and `forced` gives the
rest as a draft. What it allows depends only on the tokens before, so drafts do not change the text.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import Mask

EFFORTS: Mapping[str, int] = {"none": 0, "minimal": 512, "low": 2048, "medium": 8192}
"""Budgets of the efforts of reasoning, for templates that know no efforts; others have none."""


class ReasoningTags(NamedTuple):
    """A way of writing reasoning. opening, closing: around it. end: what is written to end it, which contains
    `closing`; last_end: the same where it was ended before.
    """

    opening: str
    closing: str
    end: str
    last_end: str


@dataclass(frozen=True, slots=True)
class ReasoningForm:
    """How a model writes reasoning. tags: in one of these ways. within: whether it may begin within the
    answer, as in channels; otherwise only at its start. open: the tags that the prompt has opened.
    """

    tags: Sequence[ReasoningTags]
    within: bool = False
    open: ReasoningTags | None = None


class _State(NamedTuple):
    """left: tokens of reasoning until its end is due. tags: of the reasoning that is open. tail: the bytes at
    the end that may be part of a tag. due: what is left of the end that is being written. n_ended: how often
    an end was written. over: no reasoning can follow.
    """

    left: float = inf
    tags: ReasoningTags | None = None
    tail: bytes = b""
    due: Sequence[int] = ()
    n_ended: int = 0
    over: bool = False


class ReasoningBudget:
    """The mask of one answer; implements core.interfaces.Mask.

    budget: tokens, inf for no limit until `end`. bytes_of: a token's, those of its name for a control token.
    encode: the ids of a text, and whether control tokens are parsed in it. message: is written before the
    first end. inner: the grammar of the answer, its reasoning included; where it does not allow the end, none
    is written.
    """

    def __init__(
        self,
        form: ReasoningForm,
        budget: float,
        n_vocab: int,
        bytes_of: Callable[[int], bytes],
        encode: Callable[[str, bool], list[int]],
        message: str = "",
        inner: Mask | None = None,
    ) -> None:
        self._form, self._n_vocab, self._inner = form, n_vocab, inner
        self._bytes_of, self._encode, self._message = bytes_of, encode, message
        self._state = _State(budget, form.open)
        if form.open is not None:
            self._state = self._with_end(self._state)

    def end(self) -> None:
        """End the reasoning now, or as soon as it begins; without effect where it is over."""
        if self._state.left > 0 and not self._state.due and not self._state.over:
            self._state = self._with_end(self._state._replace(left=0))

    def allows(self, token: int, ahead: Sequence[int] = ()) -> bool:
        if self._inner is not None and not self._inner.allows(token, ahead):
            return False
        return self._is_far(len(ahead)) or self._permits(self._after(ahead), token, ahead)

    def allowed(self, ahead: Sequence[int] = ()) -> NDArray[np.bool_]:
        legal = np.ones(self._n_vocab, np.bool_) if self._inner is None else self._inner.allowed(ahead)
        if not self._is_far(len(ahead)):
            state = self._after(ahead)
            if (token := self._due(state, ahead)) is not None:
                legal = np.zeros(self._n_vocab, np.bool_)
                legal[token] = True
            elif (barred := self._barred(state)) is not None:
                legal[barred] = False
        return legal

    def legal(self, tokens: Sequence[int]) -> int:
        n = len(tokens) if self._inner is None else self._inner.legal(tokens)
        if self._is_far(n):
            return n
        state = self._state
        for i in range(n):
            if not self._permits(state, tokens[i], tokens[:i]):
                return i
            state = self._next(state, tokens[i])
        return n

    def forced(self, ahead: Sequence[int] = ()) -> list[int]:
        if not self._is_far(len(ahead)) and (due := self._after(ahead).due):
            return list(due)
        return self._inner.forced(ahead) if self._inner is not None else []

    def accept(self, token: int) -> None:
        if self._inner is not None:
            self._inner.accept(token)
        self._state = self._next(self._state, token)

    def _is_far(self, n: int) -> bool:
        """Whether nothing is forced or barred within the next n tokens and after them."""
        return not self._state.due and self._state.left > n

    def _permits(self, state: _State, token: int, ahead: Sequence[int]) -> bool:
        due = self._due(state, ahead)
        return token == due if due is not None else token != self._barred(state)

    def _due(self, state: _State, ahead: Sequence[int]) -> int | None:
        """The only token that may come next, None where there are others."""
        token = state.due[0] if state.due else None
        if token is not None and self._inner is not None and not self._inner.allows(token, ahead):
            return None
        return token

    def _barred(self, state: _State) -> int | None:
        """The token that would begin reasoning again after its end was written, where nothing follows that
        end from which it cannot begin.
        """
        if state.tags is not None or state.due or state.left > 0 or not state.n_ended:
            return None
        first = next((tags for tags in self._form.tags if tags.end == tags.last_end), None)
        return self._encode(first.opening, True)[0] if first is not None else None

    def _after(self, ahead: Sequence[int]) -> _State:
        state = self._state
        for token in ahead:
            state = self._next(state, token)
        return state

    def _next(self, state: _State, token: int) -> _State:
        if state.due:
            if token != state.due[0]:  # the grammar did not allow it
                return _OVER
            state = state._replace(due=state.due[1:])
            return state if state.due else self._outside(state)
        if state.over:
            return state
        tail = state.tail + self._bytes_of(token)
        if state.tags is None:
            return self._looked(state, tail)
        closing = state.tags.closing.encode()
        if closing in tail:
            return self._outside(state)
        return self._with_end(state._replace(left=state.left - 1, tail=tail[-len(closing) - _CHARACTER :]))

    def _outside(self, state: _State) -> _State:
        return state._replace(tags=None, tail=b"") if self._form.within else _OVER

    def _looked(self, state: _State, tail: bytes) -> _State:
        """The state where no reasoning is open, after looking for its beginning."""
        openings = [(tags.opening.encode(), tags) for tags in self._form.tags]
        begun = tail if self._form.within else tail.lstrip()
        for opening, tags in openings:
            at = begun.find(opening)
            if at == 0 or (at > 0 and self._form.within):
                return self._with_end(state._replace(tags=tags, tail=begun[at + len(opening) :]))
        if self._form.within:
            return state._replace(tail=begun[-max(len(opening) for opening, _ in openings) :])
        may_begin = any(opening.startswith(begun) for opening, _ in openings)
        return state._replace(tail=begun) if may_begin else _OVER

    def _with_end(self, state: _State) -> _State:
        """The state with the end of the open reasoning where that is due: not within a character or a tag."""
        tags, tail = state.tags, state.tail
        if tags is None or state.left > 0:
            return state
        if state.left > -_MOST_LATE and _is_cut(tail, tags.closing.encode()):
            return state
        message = self._encode(self._message, False) if self._message and not state.n_ended else []
        due = [*message, *self._encode(tags.last_end if state.n_ended else tags.end, True)]
        return state._replace(due=due, n_ended=state.n_ended + 1)


_OVER = _State(over=True)
_MOST_LATE = 8  # tokens that an end waits for the end of a character or a tag
_CHARACTER = 4  # most bytes


def _is_cut(tail: bytes, closing: bytes) -> bool:
    """Whether the text goes on within a character, or has begun the closing tag."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(tail)
    return bool(decoder.getstate()[0]) or any(tail.endswith(closing[:n]) for n in range(1, len(closing)))
