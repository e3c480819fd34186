"""The drafter `model` with a draft of another vocabulary: it reads the text in its own tokens, drafts in
its own tokens, and proposes the tokens of the target that they spell.

A token proposed takes as many steps of the draft model as tokens of it are needed, none where the last
one spelt several. Losslessness depends on none of this: the target verifies.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from specllama.core.image_rows import without_images
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
from specllama.core.sequence import common_prefix
from specllama.core.translation import Translation, whole_characters
from specllama.drafters import MODEL, DrafterInputs
from specllama.drafters.model import ModelDrafter

# The draft of a model with another vocabulary, as tokens of the target.
#
# A token of the draft that the target has too is one of the target's, unless the target has a longer token
# that begins with its text and that the draft lacks: then the next token of the draft decides. What the
# target spells with other tokens is tokenised as its tokenizer does (SLEM, Timor et al., arXiv 2502.05202),
# except for its last token, which may still grow.


MAX_PENDING = 64  # bytes that spell no token of the target
_LONGEST_PIECE = 4096  # bytes of a token of the draft; a longer one ends the draft


class Retokenization:
    """end_ids: of the target, with which its generation ends.

    certain: the tokens that are settled, each with the product of the draft's probabilities of the tokens
    that spell it. ended: the draft ends here. pending: tokens of the target that the rest would be.
    """

    def __init__(self, translation: Translation, end_ids: Collection[int]) -> None:
        self._translation, self._end_ids = translation, end_ids
        self.certain: list[Proposal] = []
        self.ended = False
        self.pending: list[int] = []
        self._rest = b""
        self._parts: list[tuple[int, float]] = []  # of the rest: where a token begins, and its probability

    @property
    def tokens(self) -> list[int]:
        return [proposal.token for proposal in self.certain]

    def add(self, token: int, probability: float) -> None:
        """The draft has drafted a token, by its id in the shared space."""
        t = self._translation
        piece = t.piece(token)
        if not piece:
            self._finish()
            self.ended = token >= t.n_target or token in self._end_ids
            if token < t.n_target:
                self.certain.append(Proposal(token, probability))
        elif not self._rest and self._is_whole(token, piece):
            self.certain.append(Proposal(token, probability))
        elif len(piece) > _LONGEST_PIECE:
            self.ended = True
        else:
            self._parts.append((len(self._rest), probability))
            self._rest += piece
            self._retokenize()
            if self._rest == piece and not self.ended and not self.pending and self._is_whole(token, piece):
                self._emit(token)  # of an incomplete character, as where nothing is before it

    def _is_whole(self, token: int, piece: bytes) -> bool:
        """Whether the target's token is this one, whatever follows."""
        t = self._translation
        return token < t.n_target and (not t.may_grow[token] or _continues(piece))

    def _finish(self) -> None:
        """Settle what is pending, since no text follows."""
        for token in self.pending:
            self._emit(token)
        self.pending, self._rest, self._parts = [], b"", []

    def _retokenize(self) -> None:
        """Tokenise the rest up to an incomplete character; the draft ends where the tokens spell another
        text.
        """
        n = whole_characters(self._rest)
        try:
            tokens = self._translation.target.tokenize(self._rest[:n].decode()) if n else []
        except UnicodeDecodeError:
            tokens = []  # which do not spell the rest
        pieces = [self._translation.target.piece(token) for token in tokens]
        if b"".join(pieces) != self._rest[:n]:
            self.ended = True
            tokens = []
        grows = n == len(self._rest) and bool(tokens) and bool(self._translation.may_grow[tokens[-1]])
        certain = tokens[:-1] if grows else tokens
        for token in certain:
            self._emit(token)
        self.pending = tokens[len(certain) :]
        self.ended = self.ended or len(self._rest) > MAX_PENDING

    def _emit(self, token: int) -> None:
        """The rest begins with this token."""
        n = len(self._translation.target.piece(token))
        probability = math.prod(p for at, p in self._parts if at < n)
        self._parts = [(at - n, p) for at, p in self._parts if at >= n]
        self._rest = self._rest[n:]
        self.certain.append(Proposal(token, probability))


def _continues(piece: bytes) -> bool:
    """Whether a piece begins within a character: its text has no tokens of its own."""
    return 0x80 <= piece[0] < 0xC0


# The text of a sequence as a draft with another vocabulary reads it, tokenised again as it grows.
#
# The tokens of a text depend on what follows, so the end of the text is tokenised again with every change.
# What is before a beginning of a word, some way back, is settled.


MIN_TAIL, MAX_TAIL = 8, 32  # tokens of the target at the end that are tokenised again
_LONGEST = 128  # without the beginning of a word, the text is cut anywhere
_CHUNK = 256  # tokens of a prompt that are settled at once


class RetokenizedText:
    """tokens: of the target. settled: the draft's tokens, by their ids in the shared space, of the first
    `n_settled` of them.
    """

    def __init__(self, translation: Translation) -> None:
        self._translation = translation
        self.tokens: list[int] = []
        self.settled: list[int] = []
        self.n_settled = 0
        self._marks = [(0, 0)]  # lengths at which the text was settled: in tokens of the target, of the draft

    def restart(self, tokens: Sequence[int]) -> None:
        """Become another text; what both begin with is not tokenised again."""
        n = common_prefix(self.tokens, tokens)
        while self._marks[-1][0] > n:
            self._marks.pop()
        self.n_settled, n_own = self._marks[-1]
        del self.settled[n_own:]
        self.tokens = list(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)

    def settle(self) -> None:
        """Settle what is not at the end."""
        while len(self.tokens) - self.n_settled > MAX_TAIL:
            low, high = self.n_settled + 1, min(len(self.tokens) - MIN_TAIL, self.n_settled + _CHUNK)
            at = next((i for i in range(high, low - 1, -1) if self._begins_word(i)), None)
            if at is None:
                if len(self.tokens) - self.n_settled < _LONGEST:
                    return
                at = high
            self.settled += self._translation.read(self.tokens[self.n_settled : at])
            self.n_settled = at
            self._marks.append((at, len(self.settled)))

    def tail(self, ahead: Sequence[int] = ()) -> list[int]:
        """The draft's tokens of what is not settled, and of further tokens of the target."""
        return self._translation.read([*self.tokens[self.n_settled :], *ahead])

    def _begins_word(self, i: int) -> bool:
        """Whether a word or a control token begins with this token of the target."""
        piece = self._translation.target.piece(self.tokens[i])
        return not piece or (piece[:1] == b" " and piece[1:2].isalpha())


MAX_STEPS = 8  # of the draft model for one token of the target


class _SharedTokens:
    """What a sampler uses of a Mask, over the target's ids: tokens of the draft alone are not allowed."""

    def __init__(self, mask: Mask, n_target: int) -> None:
        self._mask, self._n_target = mask, n_target

    def allows(self, token: int, ahead: Sequence[int] = ()) -> bool:
        return token < self._n_target and self._mask.allows(token, ahead)

    def allowed(self, ahead: Sequence[int] = ()) -> NDArray[np.bool_]:
        return self._mask.allowed(ahead)[: self._n_target]


@dataclass(slots=True)
class _Draft:
    """The draft of a round. base: tokens that other drafters proposed, which it continues. own: what the
    draft model has drafted after them.
    """

    retokenized: Retokenization
    base: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)

    def at(self, n: int) -> Proposal | None:
        """The proposal after n tokens of the draft, None where there is none yet."""
        i = n - len(self.base)
        return self.retokenized.certain[i] if i < len(self.retokenized.certain) else None

    def follows(self, draft: Sequence[int]) -> bool:
        """Whether it goes on after this draft."""
        n = len(self.base)
        mine = [p.token for p in self.retokenized.certain[: max(0, len(draft) - n)]]
        return len(draft) >= n and [*self.base, *mine] == list(draft)


class _TargetRule:
    """The sequence's sampler for the rows of the draft model: positions and history are the target's. It has
    what a draft model uses of a Sampler.

    n_vocab: of the shared space. draft: of the round.
    """

    def __init__(
        self, sampler: Sampler, mask: Mask | None, text: RetokenizedText, n_vocab: int, draft: _Draft
    ) -> None:
        self.n_vocab, self.draft = n_vocab, draft
        self._sampler, self._mask, self._text = sampler, mask, text
        self.greedy = sampler.greedy

    def limited(self, n_vocab: int) -> _TargetRule:  # noqa: ARG002
        return self

    def choose(
        self,
        row: Row,
        history: Sequence[int],  # noqa: ARG002
        margin: float = 0.0,
        mask: Mask | None = None,  # noqa: ARG002
        ahead: Sequence[int] = (),  # noqa: ARG002
    ) -> SampledToken:
        """history, mask, ahead: not used, since they are of the draft's tokens."""
        drafted = [*self.draft.base, *self.draft.retokenized.tokens, *self.draft.retokenized.pending]
        return self._sampler.choose(row, self._text.tokens, margin, self._mask, drafted)


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


class ForeignDrafter(CachingDrafter, like=MODEL):
    """Drafts with the model of `context`, whose ids and rows are those of the shared space of `translation`.

    confident, end_ids: as in ModelDrafter. Counts of cached ids are in the draft's tokens. n_steps: of the
    draft model so far, of all sequences together. `step` raises DecodeError where the draft model fails.
    """

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
        text.restart(without_images(prompt))
        n_vocab = self.context.n_vocab
        shared = _SharedTokens(mask, self._translation.n_target) if mask is not None else None
        rule = _TargetRule(sampler.widened(n_vocab), cast(Mask, shared), text, n_vocab, self._draft())
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
                and not self._sequences[seq].draft.retokenized.ended
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
        self._write_history(seq_id)
        self._model.restart_from_tail(seq_id, n_last)

    def catch_up(self, seq_id: int, n_most: int) -> bool:
        self._write_history(seq_id)
        return self._model.catch_up(seq_id, n_most)

    def save_cache(self, seq_id: int, ids: Sequence[int], scope: str, copy_rate: float) -> Saved | None:
        if seq_id in self._sequences or self._model.scopes[seq_id] != scope:
            return None
        return self._model.save_cache(seq_id, self._read(seq_id, ids), scope, copy_rate)

    def load_cache(self, seq_id: int, ids: Sequence[int], scope: str, saved: Saved, copy_rate: float) -> int:
        """See `CachingDrafter`; the number is that of the draft's tokens."""
        if seq_id in self._sequences:
            return 0
        self._forget_text_of_other_scope(seq_id, scope)
        return self._model.load_cache(seq_id, self._read(seq_id, ids), scope, saved, copy_rate)

    def _read(self, seq_id: int, ids: Sequence[int]) -> list[int]:
        """The draft's tokens of a text of the target, from now on the text of an idle slot: what that begins
        with has been tokenised before.
        """
        text = self._text(seq_id)
        text.restart(without_images(ids))
        text.settle()
        return [*text.settled, *text.tail()]

    def _text(self, seq_id: int) -> RetokenizedText:
        return self._texts.setdefault(seq_id, RetokenizedText(self._translation))

    def _forget_text_of_other_scope(self, seq_id: int, scope: str) -> None:
        if self._model.scopes[seq_id] != scope:
            self._texts.pop(seq_id, None)

    def _draft(self, base: Sequence[int] = ()) -> _Draft:
        return _Draft(Retokenization(self._translation, self._end_ids), list(base))

    def _add(self, draft: _Draft, chosen: Proposal | None) -> None:
        """The draft model's next token, None where it has none."""
        if chosen is None:
            draft.retokenized.ended = True
            return
        draft.own.append(chosen.token)
        draft.retokenized.add(chosen.token, chosen.confidence)

    def _write_history(self, seq_id: int, base: Sequence[int] = ()) -> None:
        """Make the draft model's history the text and `base`, tokens of the target, in the draft's tokens."""
        one = self._sequences[seq_id]
        history_of = len(one.text.tokens), tuple(base)
        if history_of == one.history_of:
            return
        one.text.settle()
        settled, tail = one.text.settled, one.text.tail(base)
        if one.history_of is None:
            self._model.start(seq_id, [*settled, *tail], cast(Sampler, one.rule))
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
