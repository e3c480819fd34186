"""The drafter `model` with a draft of another vocabulary: it reads the text in its own tokens, drafts in its
own tokens, and proposes the tokens of the target that they spell.

A token proposed takes as many steps of the draft model as tokens of it are needed, none where the last one
spelt several. Losslessness depends on none of this: the target verifies.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import (
    CachingDrafter,
    Context,
    DraftCacheState,
    Mask,
    Proposal,
    Row,
    SampledToken,
    Sampler,
    Saved,
)
from specllama.core.translation import Translation
from specllama.drafters import MODEL, DrafterInputs, RegisteredDrafter
from specllama.drafters.model import ModelDrafter
from specllama.drafters.spelling import RetokenizedText, Spelling

MAX_STEPS = 8  # of the draft model for one token of the target


class _SharedTokens:
    """A grammar's mask over the target's ids: tokens of the draft alone are not allowed."""

    def __init__(self, mask: Mask, n_target: int) -> None:
        self._mask, self._n_target = mask, n_target

    def allows(self, token: int, ahead: Sequence[int] = ()) -> bool:
        return token < self._n_target and self._mask.allows(token, ahead)

    def allowed(self, ahead: Sequence[int] = ()) -> NDArray[np.bool_]:
        return self._mask.allowed(ahead)[: self._n_target]

    def legal(self, tokens: Sequence[int]) -> int:
        return self._mask.legal(tokens)

    def forced(self, ahead: Sequence[int] = ()) -> list[int]:
        return self._mask.forced(ahead)

    def accept(self, token: int) -> None:
        self._mask.accept(token)


@dataclass(slots=True)
class _Draft:
    """The draft of a round. base: tokens that other drafters proposed, which it continues. own: what the
    draft model has drafted after them.
    """

    spelling: Spelling
    base: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)

    def at(self, n: int) -> Proposal | None:
        """The proposal after n tokens of the draft, None where there is none yet."""
        i = n - len(self.base)
        return self.spelling.certain[i] if i < len(self.spelling.certain) else None

    def follows(self, draft: Sequence[int]) -> bool:
        """Whether it goes on after this draft."""
        n = len(self.base)
        mine = [p.token for p in self.spelling.certain[: max(0, len(draft) - n)]]
        return len(draft) >= n and [*self.base, *mine] == list(draft)


class _TargetRule:
    """The sequence's sampler for the rows of the draft model: positions and history are the target's.

    n_vocab: of the shared space. draft: of the round.
    """

    def __init__(
        self, sampler: Sampler, mask: Mask | None, text: RetokenizedText, n_vocab: int, draft: _Draft
    ) -> None:
        self.n_vocab, self.draft = n_vocab, draft
        self._sampler, self._mask, self._text = sampler, mask, text
        self.greedy = sampler.greedy

    def limited(self, n_vocab: int) -> Sampler:  # noqa: ARG002
        return self

    def widened(self, n_vocab: int) -> Sampler:  # noqa: ARG002
        return self

    def choose(
        self,
        row: Row,
        history: Sequence[int],  # noqa: ARG002
        margin: bool = False,
        mask: Mask | None = None,  # noqa: ARG002
        ahead: Sequence[int] = (),  # noqa: ARG002
    ) -> SampledToken:
        """history, mask, ahead: not used, since they are of the draft's tokens."""
        drafted = [*self.draft.base, *self.draft.spelling.tokens, *self.draft.spelling.pending]
        return self._sampler.choose(row, self._text.tokens, margin, self._mask, drafted)

    def final_logprobs(
        self, row: Row, history: Sequence[int], mask: Mask | None, token: int, n: int
    ) -> tuple[float, list[tuple[int, float]]]:
        return self._sampler.final_logprobs(row, history, mask, token, n)


@dataclass(slots=True)
class _Sequence:
    """A sequence being drafted for. n_settled: settled tokens of the text
    in the draft model's history. history_of: what that history was made from, as (number of tokens of the
    text, tokens of the target after them); None before the draft model was given any.
    """

    text: RetokenizedText
    rule: _TargetRule
    n_settled: int = 0
    history_of: tuple[int, tuple[int, ...]] | None = None

    @property
    def draft(self) -> _Draft:
        return self.rule.draft


class ForeignDrafter(RegisteredDrafter):
    """Drafts with the model of `context`, whose ids and rows are those of the shared space of `translation`.

    confident, end_ids: as in ModelDrafter. Counts of cached ids are in the draft's tokens. n_steps: of the
    draft model so far, of all sequences together. `step` raises DecodeError where the draft model fails.
    """

    entry = MODEL

    def __init__(
        self,
        context: Context,
        translation: Translation,
        confident: bool = True,
        end_ids: Collection[int] = (),
    ) -> None:
        self.context, self._translation, self._end_ids = context, translation, frozenset(end_ids)
        self.n_steps = 0
        self._model = ModelDrafter(context, context.n_vocab, confident, self._end_ids)
        self._sequences: dict[int, _Sequence] = {}
        self._texts: dict[int, RetokenizedText] = {}  # of the last sequence of each slot

    def set_cache_scope(self, seq_id: int, scope: str) -> None:
        self._forget_text_of_other_scope(seq_id, scope)
        self._model.set_cache_scope(seq_id, scope)

    def start(self, seq_id: int, prompt: Sequence[int], sampler: Sampler, mask: Mask | None = None) -> None:
        text = self._text(seq_id)
        text.restart(prompt)
        n_vocab = self.context.n_vocab
        shared = _SharedTokens(mask, self._translation.n_target) if mask is not None else None
        rule = _TargetRule(sampler.widened(n_vocab), shared, text, n_vocab, self._draft())
        self._sequences[seq_id] = _Sequence(text, rule)

    def step(self, drafts: Mapping[int, Sequence[int]]) -> dict[int, Proposal]:
        for seq, draft in drafts.items():
            one = self._sequences[seq]
            if not draft or not one.draft.follows(draft):
                one.rule.draft = self._draft(draft)
                self._write_history(seq, draft)
        for _ in range(MAX_STEPS):
            waiting = {
                seq: self._sequences[seq].draft.own
                for seq, draft in drafts.items()
                if self._sequences[seq].draft.at(len(draft)) is None
                and not self._sequences[seq].draft.spelling.ended
            }
            if not waiting:
                break
            self.n_steps += 1
            chosen = self._model.step(waiting)
            for seq in waiting:
                self._add(self._sequences[seq].draft, chosen.get(seq))
        proposals = {seq: self._sequences[seq].draft.at(len(draft)) for seq, draft in drafts.items()}
        return {seq: proposal for seq, proposal in proposals.items() if proposal is not None}

    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:
        one = self._sequences[seq_id]
        one.text.extend(tokens)
        one.rule.draft = self._draft()

    def forget(self, seq_id: int) -> None:
        """The sequence ended; its cache is kept for the next sequence with a common prefix."""
        self._sequences.pop(seq_id, None)
        self._model.forget(seq_id)

    def cache_state(self, seq_id: int) -> DraftCacheState:
        self._write_history(seq_id)
        return self._model.cache_state(seq_id)

    def restart_from_tail(self, seq_id: int, n_last: int) -> None:
        """As in `CachingDrafter`."""
        self._write_history(seq_id)
        self._model.restart_from_tail(seq_id, n_last)

    def catch_up(self, seq_id: int, n_most: int) -> bool:
        """See `CatchingUp`."""
        self._write_history(seq_id)
        return self._model.catch_up(seq_id, n_most)

    def save_cache(self, seq_id: int, ids: Sequence[int], scope: str, copy_rate: float) -> Saved | None:
        """See `SavingDrafter`."""
        if seq_id in self._sequences or self._model.scopes[seq_id] != scope:
            return None
        return self._model.save_cache(seq_id, self._read(seq_id, ids), scope, copy_rate)

    def load_cache(self, seq_id: int, ids: Sequence[int], scope: str, saved: Saved, copy_rate: float) -> int:
        """See `SavingDrafter`; the number is that of the draft's tokens."""
        if seq_id in self._sequences:
            return 0
        self._forget_text_of_other_scope(seq_id, scope)
        return self._model.load_cache(seq_id, self._read(seq_id, ids), scope, saved, copy_rate)

    def _read(self, seq_id: int, ids: Sequence[int]) -> list[int]:
        """The draft's tokens of a text of the target, from now on the text of an idle slot: what that begins
        with has been tokenised before.
        """
        text = self._text(seq_id)
        text.restart(ids)
        text.settle()
        return [*text.settled, *text.tail()]

    def _text(self, seq_id: int) -> RetokenizedText:
        return self._texts.setdefault(seq_id, RetokenizedText(self._translation))

    def _forget_text_of_other_scope(self, seq_id: int, scope: str) -> None:
        if self._model.scopes[seq_id] != scope:
            self._texts.pop(seq_id, None)

    def _draft(self, base: Sequence[int] = ()) -> _Draft:
        return _Draft(Spelling(self._translation, self._end_ids), list(base))

    def _add(self, draft: _Draft, chosen: Proposal | None) -> None:
        """The draft model's next token, None where it has none."""
        if chosen is None:
            draft.spelling.ended = True
            return
        draft.own.append(chosen.token)
        draft.spelling.add(chosen.token, chosen.confidence)

    def _write_history(self, seq_id: int, base: Sequence[int] = ()) -> None:
        """Make the draft model's history the text and `base`, tokens of the target, in the draft's tokens."""
        one = self._sequences[seq_id]
        history_of = len(one.text.tokens), tuple(base)
        if history_of == one.history_of:
            return
        one.text.settle()
        settled, tail = one.text.settled, one.text.tail(base)
        if one.history_of is None:
            self._model.start(seq_id, [*settled, *tail], one.rule)
        else:
            self._model.rewrite(seq_id, one.n_settled, [*settled[one.n_settled :], *tail])
        one.history_of, one.n_settled = history_of, len(settled)


def make(inputs: DrafterInputs) -> CachingDrafter | None:
    """The drafter `model` for a draft of either kind, None where no draft model is loaded."""
    if inputs.draft_context is None:
        return None
    confident, end_ids = inputs.confident, inputs.end_ids
    if inputs.translation is not None:
        return ForeignDrafter(inputs.draft_context, inputs.translation, confident, end_ids)
    return ModelDrafter(inputs.draft_context, inputs.n_vocab, confident, end_ids)
