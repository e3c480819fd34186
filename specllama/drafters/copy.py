"""The drafter `copy`: proposes what the text has said before. Knows token ids only; no model, no text.

Prompt lookup (Saxena 2023, https://github.com/apoorvumang/prompt-lookup-decoding) with copies that run into
themselves as in LZ77 (Ziv and Lempel 1977), and with changes of the source that are learnt and made again.
"""

from __future__ import annotations

from array import array
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from math import exp
from typing import NamedTuple

from specllama.core.interfaces import Mask, Proposal, Sampler
from specllama.drafters import COPY, DrafterInputs, RegisteredDrafter
from specllama.drafters.edits import Change, Edits
from specllama.drafters.ngram_index import Index, TokenIndex

MAX_CHANGE = 4  # tokens on either side of a change that is followed
N_AGREE = 2  # tokens after a change that must agree before it is remembered
MIN_COPIED_BEFORE_INSERTION = 8  # tokens; after fewer, an insertion is as likely the end of the copy
RECORD_RATE = 0.3  # of the moving average, per token
RECORD_AT_START = 0.6


class Divergence(NamedTuple):
    """Where the text left its source: position in the source, in the text, and how long the copy had been."""

    source: int
    text: int
    length: int


LENGTH_BINS = (2, 3, 4, 6, 10, 20, 32, 64)
LENGTH_LOGITS = (-0.9, 0.2, 1.1, 2.0, 2.6, 2.8, 3.3, 4.1, 4.5)  # fitted to recorded texts
RESUMED_LOGIT = 2.4  # after a first right token that follows a change
AGREEMENT_WEIGHT, RECORD_WEIGHT = 0.6, 2.2


def confidence(length: int, agreement: float, record: float, first: bool = True) -> float:
    """The probability that a copied token is right, before any acceptance table has seen one. first: it is
    the first one of a draft; of the others the one before is taken to be right.
    """
    resumed = length == 1 and not first
    logit = RESUMED_LOGIT if resumed else LENGTH_LOGITS[bisect(LENGTH_BINS, length)]
    logit += AGREEMENT_WEIGHT * (agreement - 1) + RECORD_WEIGHT * (record - 0.8)
    return 1 / (1 + exp(-logit))


class CopiedText:
    """One sequence: its tokens, the place that it is copied from, and the changes made on the way.

    What it proposes is a function of the source and the tokens pushed, however they were grouped. record:
    moving average of what copying would have got right.
    """

    def __init__(self, index: Index) -> None:
        self.index, self.record = index, RECORD_AT_START
        self.tokens, self.source = index.tokens, index.source
        self._changes = Edits()
        self._source: int | None = None  # the position that the next token is copied from
        self._length = 0  # tokens that agree before it, changes included
        self._making: tuple[Change, Divergence] | None = None  # the change under way, and where it began
        self._todo: tuple[int, ...] = ()  # what is left of it
        self._left: Divergence | None = None
        self._resumed: tuple[int, int] | None = None  # (position, length) to draft from while away
        self._waiting: list[int] = []  # pushed before the prompt was indexed
        self._started = False
        self._drafted: list[Proposal] = []
        self._draft: Iterator[Proposal] | None = None

    def push(self, tokens: Sequence[int]) -> None:
        """The sequence goes on with these ids. They wait while the prompt is not indexed."""
        if not self._started:
            self._waiting.extend(tokens)
            return
        for token in tokens:
            self._push(token)

    def propose(self, limit: int) -> list[Proposal]:
        """At most `limit` tokens that would go on as before."""
        if not self._started:
            self.start()
        if self._source is None and self._resumed is None:
            return []
        if self._draft is None:
            self._drafted, self._draft = [], self._follow()
        while len(self._drafted) < limit:
            proposal = next(self._draft, None)
            if proposal is None:
                break
            self._drafted.append(proposal)
        return self._drafted[:limit]

    def start(self) -> None:
        """Index what is left of the prompt and process what was pushed meanwhile."""
        if self._started:
            return
        self.index.build(len(self.tokens))
        self._started = True
        self._find()
        waiting, self._waiting = self._waiting, []
        self.push(waiting)

    def _push(self, token: int) -> None:
        if self._source is not None or self._resumed is not None:
            expected = self._expected()
            if expected is not None:
                self.record += RECORD_RATE * ((expected == token) - self.record)
            self._advance(token)
        self.index.append(token)
        if self._source is None:
            self._find()
        self._draft = None

    def _expected(self) -> int | None:
        """What copying says comes next."""
        if self._todo:
            return self._todo[0]
        position = self._source if self._source is not None else self._resumed and self._resumed[0]
        if position is None or self.source[position] < 0:
            return None
        change = self._changes.at(self.source, position)
        return change.new[0] if change else self.source[position]

    def _advance(self, token: int) -> None:
        """Move along the source, or leave it, as the next token says."""
        if self._source is None:
            return
        here = Divergence(self._source, len(self.tokens), self._length)
        if not self._making and self.source[here.source] < 0:
            self._source = None  # the source has ended, or was forgotten
            return
        self._length += 1
        if self._making:
            change, began = self._making
            if self._todo[0] == token:
                self._make(change, began, self._todo[1:])
            else:
                self._changes.unlearn(change)
                self._leave(began)
            return
        change_here = self._changes.at(self.source, here.source)
        if change_here and change_here.new[0] == token:
            self._source += len(change_here.old)
            self._make(change_here, here, change_here.new[1:])
        elif self.source[here.source] == token:
            self._source += 1
            if change_here:
                self._changes.unlearn(change_here)
        else:
            self._leave(here)

    def _make(self, change: Change, began: Divergence, todo: tuple[int, ...]) -> None:
        self._making, self._todo = ((change, began), todo) if todo else (None, ())

    def _leave(self, departure: Divergence) -> None:
        self._source, self._making, self._todo, self._left = None, None, (), departure

    def _join(self, position: int, length: int) -> None:
        self._source, self._length, self._left, self._resumed = position, length, None, None

    def _find(self) -> None:
        """Look for a source: the one that was left, else the longest match."""
        self._resumed = None
        if self._left and self._rejoined(self._left):
            return
        position, length = self.index.longest()
        if position:
            self._join(position, length)

    def _rejoined(self, left: Divergence) -> bool:
        """Whether the last two tokens stand in the source after a small change; learns it.

        While only one does, drafting may resume after it; while none does, right after the divergence, as if
        one token had been replaced by one.
        """
        n_away = len(self.tokens) - left.text
        if n_away > MAX_CHANGE + N_AGREE:
            self._left = None  # the copy has ended
            return False
        if n_away == 1:
            self._resumed = left.source + 1, 1
        for n_agree in (N_AGREE, 1):
            n_old = self._n_replaced(left, n_agree)
            if n_old is None:
                continue
            position = left.source + n_old + n_agree
            if n_agree == 1:
                self._resumed = position, 2
                return False
            self._learn(left, n_old, len(self.tokens) - n_agree)
            self._join(position, n_agree)
            return True
        return False

    def _n_replaced(self, left: Divergence, n_agree: int) -> int | None:
        """The fewest tokens of the source to skip so that it goes on with the text's last `n_agree`."""
        n_new = len(self.tokens) - left.text - n_agree
        if not 0 <= n_new <= MAX_CHANGE:
            return None
        end, most = self.tokens[-n_agree:], left.text if self.index.own else len(self.source)
        for n_old in range(MAX_CHANGE + 1):
            start = left.source + n_old
            if start + n_agree > most or self.source[start] != end[0]:
                continue
            if n_agree == 1 or self.source[start : start + n_agree] == end:
                return n_old
        return None

    def _learn(self, left: Divergence, n_old: int, new_end: int) -> None:
        old = tuple(self.source[left.source : left.source + n_old])
        new = tuple(self.tokens[left.text : new_end])
        if min(old, default=0) < 0:
            return  # two texts meet there
        if old and new:
            self._changes.learn(Change(old, new))
        elif new and left.source and left.length >= MIN_COPIED_BEFORE_INSERTION:
            before = self.source[left.source - 1]
            if before >= 0:
                self._changes.learn(Change((before,), (before, *new)))

    def _follow(self) -> Iterator[Proposal]:
        """The copy from here on; without end where it overtakes the text and reads its own tokens."""
        source, n, drafted = self.source, len(self.source), array("i")
        if self._source is not None:
            position, length = self._source, self._length
        elif self._resumed is not None:
            position, length = self._resumed
        else:
            return
        todo, agreement, grows = self._todo, self._agreement(), length > 1
        while True:
            if not todo:
                change = self._changes.at(source, position)
                if change:
                    position, todo = position + len(change.old), change.new
                elif position < n or self.index.own:
                    todo = (source[position] if position < n else drafted[position - n],)
                    position += 1
            if not todo or todo[0] < 0:
                return
            token, todo = todo[0], todo[1:]
            drafted.append(token)
            yield Proposal(
                token, confidence(length, agreement, self.record, len(drafted) == 1), (length, agreement)
            )
            length += grows

    def _agreement(self) -> float:
        """The share of the candidates that go on as the source does; 1 without any."""
        ends = self.index.candidates() if self._source is not None and not self._todo else []
        if not ends:
            return 1.0
        goes_on = self.source[self._source or 0]
        return sum(self.source[end] == goes_on for end in ends) / len(ends)


class CopyDrafter(RegisteredDrafter):
    """Drafts by copying, for all sequences; see the module.

    Evidence of a proposal: (match length at that token, agreement of the candidates). Length 1, all along:
    drafting resumed right after a change. Length 2, growing: it resumed after one token that agreed again.
    """

    entry = COPY

    def __init__(self) -> None:
        self._texts: dict[int, CopiedText] = {}

    def start(
        self,
        seq_id: int,
        prompt: Sequence[int],
        sampler: Sampler | None = None,  # noqa: ARG002
        mask: Mask | None = None,  # noqa: ARG002
    ) -> None:
        """A sequence begins with these ids; they are indexed by `index` or at the first `step`. What a
        grammar would refuse of a copy is left out by the engine.
        """
        self._texts[seq_id] = CopiedText(TokenIndex(prompt))

    def index(self, seq_id: int, n_tokens: int) -> int:
        """Index up to `n_tokens` more of the prompt, while the target prefills; the number left."""
        return self._texts[seq_id].index.build(n_tokens)

    def step(self, drafts: Mapping[int, Sequence[int]]) -> dict[int, Proposal]:
        """One more token for each sequence that has something to copy; `Drafter.step`."""
        proposals = {}
        for seq_id, drafted in drafts.items():
            run = self._texts[seq_id].propose(len(drafted) + 1)
            if len(run) > len(drafted):
                proposals[seq_id] = run[-1]
        return proposals

    def propose(self, seq_id: int, limit: int) -> list[Proposal]:
        """What `step` would propose one by one, at most `limit` tokens."""
        return self._texts[seq_id].propose(limit)

    def record(self, seq_id: int) -> float:
        """Share of the latest tokens that copying would have got right, used or not, in [0, 1]."""
        text = self._texts[seq_id]
        text.start()
        return text.record

    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:
        """The sequence went on with these ids; before the first `step` they only wait."""
        self._texts[seq_id].push(tokens)

    def forget(self, seq_id: int) -> None:
        """The sequence ended; unknown ones are nothing to forget."""
        self._texts.pop(seq_id, None)


def make(inputs: DrafterInputs) -> CopyDrafter:  # noqa: ARG001
    """The drafter; it needs nothing."""
    return CopyDrafter()
