"""The drafter `copy`: proposes a continuation that occurred earlier in the text.

Prompt lookup (Saxena 2023, https://github.com/apoorvumang/prompt-lookup-decoding) with copies that may
overlap their own output as in LZ77 (Ziv and Lempel 1977), and with edits: where the text differs from
its source, the difference is learnt and applied again.
"""

from __future__ import annotations

from array import array
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from math import exp
from typing import NamedTuple

from specllama.core.image_rows import without_images
from specllama.core.interfaces import Alternative, Drafter, Mask, Proposal, Sampler
from specllama.drafters import COPY
from specllama.drafters.ngrams import NO_TOKEN, Index, TokenIndex


class Edit(NamedTuple):
    """The source has `old` where the text has `new`; each 1 to 5 tokens."""

    old: tuple[int, ...]
    new: tuple[int, ...]


class Edits:
    """The edits that a text has made to its source so far."""

    __slots__ = ("_by_first",)

    def __init__(self) -> None:
        self._by_first: dict[int, list[Edit]] = {}

    def at(self, tokens: Sequence[int], position: int) -> Edit | None:
        """The edit whose `old` is at `position` of the source `tokens`; the longest of several, None without
        one.
        """
        if position >= len(tokens):
            return None
        for edit in self._by_first.get(tokens[position], ()):
            old = edit.old
            if all(position + i < len(tokens) and tokens[position + i] == old[i] for i in range(1, len(old))):
                return edit
        return None

    def learn(self, edit: Edit) -> None:
        """Remember an edit; it replaces one with the same `old`."""
        same = self._by_first.setdefault(edit.old[0], [])
        same[:] = sorted(
            [edit, *(c for c in same if c.old != edit.old)], key=lambda c: len(c.old), reverse=True
        )

    def unlearn(self, edit: Edit) -> None:
        """Forget an edit, because the text has kept `old` elsewhere."""
        self._by_first[edit.old[0]].remove(edit)


MAX_EDIT = 4  # most tokens on either side of an edit
MIN_AGREEING = 2  # tokens after an edit that must agree with the source before the edit is learnt
MIN_COPIED_BEFORE_INSERTION = 8  # tokens; after fewer, an insertion may as well be the end of the copy
MAX_OTHER = 8  # tokens of a second candidate and what follows it
OTHER_LOGITS = (
    -3.2,
    -2.2,
)  # of a second candidate after a shorter match than the first, and after as long a one
HIT_RATE_SMOOTHING = 0.3  # weight of the latest token in the moving average
INITIAL_HIT_RATE = 0.6


class Divergence(NamedTuple):
    """Where the text left its source. source, text: positions. length: of the copy before it, in tokens."""

    source: int
    text: int
    length: int


LENGTH_BINS = (2, 3, 4, 6, 10, 20, 32, 64)
LENGTH_LOGITS = (-0.9, 0.2, 1.1, 2.0, 2.6, 2.8, 3.3, 4.1, 4.5)  # fitted to recorded texts
RESUMED_LOGIT = 2.4  # of a token after the first one of a draft that resumed after an edit
AGREEMENT_WEIGHT, HIT_RATE_WEIGHT = 0.6, 2.2


def confidence(length: int, agreement: float, hit_rate: float, first: bool = True) -> float:
    """The probability that a copied token is right, the tokens of the draft before it being right.

    length: tokens that match before it, 1 where the draft resumed right after an edit. agreement: share of
    the earlier occurrences with the same continuation. hit_rate: `CopiedText.hit_rate`. first: whether it is
    the first token of the draft.
    """
    resumed = length == 1 and not first
    logit = RESUMED_LOGIT if resumed else LENGTH_LOGITS[bisect(LENGTH_BINS, length)]
    logit += AGREEMENT_WEIGHT * (agreement - 1) + HIT_RATE_WEIGHT * (hit_rate - 0.8)
    return 1 / (1 + exp(-logit))


class CopiedText:
    """One sequence: its tokens, the position in the source that it is copied from, and its edits so far.

    Its proposals are a function of the source and the tokens pushed, however they were grouped. hit_rate:
    moving average of the share of tokens that copying would have predicted, drafted or not, in [0, 1].
    """

    def __init__(self, index: Index) -> None:
        self.index, self.hit_rate = index, INITIAL_HIT_RATE
        self.tokens, self.source = index.tokens, index.source
        self._edits = Edits()
        self._position: int | None = None  # of the source token to copy next; None: no source
        self._length = 0  # tokens copied up to there, edits included
        self._edit: tuple[Edit, Divergence] | None = None  # the edit in progress, and where it began
        self._edit_rest: tuple[int, ...] = ()  # its tokens that are still to come
        self._divergence: Divergence | None = None
        self._resume_at: tuple[int, int] | None = None  # (position, length) to draft from after a divergence
        self._unindexed: list[int] = []  # pushed before the prompt was indexed
        self._started = False
        self._drafted: list[Proposal] = []
        self._draft: Iterator[Proposal] | None = None

    def other(self) -> Alternative | None:
        """The text after the longest match among the earlier occurrences that continue in another way than
        the copy, after `propose`; None without one.
        """
        if not self._drafted:
            return None
        first, source = self._drafted[0].token, self.source
        ends = [
            end for end in self.index.candidates() if end < len(source) and source[end] not in (first, -1)
        ]
        position, length = self.index.longest(ends)
        tokens = list(source[position : min(position + MAX_OTHER, len(source))]) if position else []
        tokens = tokens[: next((i for i, token in enumerate(tokens) if token < 0), len(tokens))]
        if not tokens:
            return None
        return Alternative(tokens, 1 / (1 + exp(-OTHER_LOGITS[length >= self._length])))

    def push(self, tokens: Sequence[int]) -> None:
        """The sequence continued with these ids. They are queued until the prompt is indexed."""
        if not self._started:
            self._unindexed.extend(tokens)
            return
        for token in tokens:
            self._push(token)

    def propose(self, limit: int) -> list[Proposal]:
        """At most `limit` tokens that continue the copy."""
        if not self._started:
            self.start()
        if self._position is None and self._resume_at is None:
            return []
        if self._draft is None:
            self._drafted, self._draft = [], self._copy()
        while len(self._drafted) < limit:
            proposal = next(self._draft, None)
            if proposal is None:
                break
            self._drafted.append(proposal)
        return self._drafted[:limit]

    def start(self) -> None:
        """Index the rest of the prompt and process the tokens pushed so far."""
        if self._started:
            return
        self.index.build(len(self.tokens))
        self._started = True
        self._find_source()
        queued, self._unindexed = self._unindexed, []
        self.push(queued)

    def _push(self, token: int) -> None:
        if self._position is not None or self._resume_at is not None:
            expected = self._expected()
            if expected is not None:
                self.hit_rate += HIT_RATE_SMOOTHING * ((expected == token) - self.hit_rate)
            self._advance(token)
        self.index.append(token)
        if self._position is None:
            self._find_source()
        self._draft = None

    def _expected(self) -> int | None:
        """The token that copying predicts next; None without a source."""
        if self._edit_rest:
            return self._edit_rest[0]
        position = self._position if self._position is not None else self._resume_at and self._resume_at[0]
        if position is None or self.source[position] < 0:
            return None
        edit = self._edits.at(self.source, position)
        return edit.new[0] if edit else self.source[position]

    def _advance(self, token: int) -> None:
        """Move along the source if `token` follows it, else diverge from it."""
        if self._position is None:
            return
        here = Divergence(self._position, len(self.tokens), self._length)
        if not self._edit and self.source[here.source] < 0:
            self._position = None  # the source has ended, or was overwritten
            return
        self._length += 1
        if self._edit:
            edit, began = self._edit
            if self._edit_rest[0] == token:
                self._set_edit(edit, began, self._edit_rest[1:])
            else:
                self._edits.unlearn(edit)
                self._diverge(began)
            return
        edit_here = self._edits.at(self.source, here.source)
        if edit_here and edit_here.new[0] == token:
            self._position += len(edit_here.old)
            self._set_edit(edit_here, here, edit_here.new[1:])
        elif self.source[here.source] == token:
            self._position += 1
            if edit_here:
                self._edits.unlearn(edit_here)
        else:
            self._diverge(here)

    def _set_edit(self, edit: Edit, began: Divergence, rest: tuple[int, ...]) -> None:
        self._edit, self._edit_rest = ((edit, began), rest) if rest else (None, ())

    def _diverge(self, divergence: Divergence) -> None:
        self._position, self._edit, self._edit_rest, self._divergence = None, None, (), divergence

    def _follow_from(self, position: int, length: int) -> None:
        self._position, self._length, self._divergence, self._resume_at = position, length, None, None

    def _find_source(self) -> None:
        """Find a source: the one that the text left, else the longest match."""
        self._resume_at = None
        if self._divergence and self._rejoin(self._divergence):
            return
        position, length = self.index.longest()
        if position:
            self._follow_from(position, length)

    def _rejoin(self, left: Divergence) -> bool:
        """Return to the source if the last two tokens of the text follow a small edit of it; learn the edit.
        False where they do not.

        If only the last token does, drafting may resume after it; if the text has just diverged, drafting may
        resume at the next token of the source, as if one token had been replaced by one.
        """
        n_since = len(self.tokens) - left.text
        if n_since > MAX_EDIT + MIN_AGREEING:
            self._divergence = None  # the copy has ended
            return False
        if n_since == 1:
            self._resume_at = left.source + 1, 1
        for n_agree in (MIN_AGREEING, 1):
            n_old = self._n_replaced(left, n_agree)
            if n_old is None:
                continue
            position = left.source + n_old + n_agree
            if n_agree == 1:
                self._resume_at = position, 2
                return False
            self._learn(left, n_old, len(self.tokens) - n_agree)
            self._follow_from(position, n_agree)
            return True
        return False

    def _n_replaced(self, left: Divergence, n_agree: int) -> int | None:
        """The fewest source tokens to skip so that the text's last `n_agree` tokens follow in the source;
        None where they do not.
        """
        n_new = len(self.tokens) - left.text - n_agree
        if not 0 <= n_new <= MAX_EDIT:
            return None
        last, limit = self.tokens[-n_agree:], left.text if self.index.own else len(self.source)
        for n_old in range(MAX_EDIT + 1):
            start = left.source + n_old
            if start + n_agree > limit or self.source[start] != last[0]:
                continue
            if n_agree == 1 or self.source[start : start + n_agree] == last:
                return n_old
        return None

    def _learn(self, left: Divergence, n_old: int, new_end: int) -> None:
        old = tuple(self.source[left.source : left.source + n_old])
        new = tuple(self.tokens[left.text : new_end])
        if min(old, default=0) < 0:
            return  # the source changes to another text there
        if old and new:
            self._edits.learn(Edit(old, new))
        elif new and left.source and left.length >= MIN_COPIED_BEFORE_INSERTION:
            before = self.source[left.source - 1]
            if before >= 0:
                self._edits.learn(Edit((before,), (before, *new)))

    def _copy(self) -> Iterator[Proposal]:
        """The copy from here on; endless where it passes the end of the text and copies its own tokens."""
        source, n, drafted = self.source, len(self.source), array("i")
        if self._position is not None:
            position, length = self._position, self._length
        elif self._resume_at is not None:
            position, length = self._resume_at
        else:
            return
        rest, agreement, grows = self._edit_rest, self._agreement(), length > 1
        while True:
            if not rest:
                edit = self._edits.at(source, position)
                if edit:
                    position, rest = position + len(edit.old), edit.new
                elif position < n or self.index.own:
                    rest = (source[position] if position < n else drafted[position - n],)
                    position += 1
            if not rest or rest[0] < 0:
                return
            token, rest = rest[0], rest[1:]
            drafted.append(token)
            yield Proposal(token, confidence(length, agreement, self.hit_rate, len(drafted) == 1))
            length += grows

    def _agreement(self) -> float:
        """The share of the candidates that continue with the source's next token; 1 without candidates."""
        ends = self.index.candidates() if self._position is not None and not self._edit_rest else []
        if not ends:
            return 1.0
        expected = self.source[self._position or 0]
        return sum(self.source[end] == expected for end in ends) / len(ends)


class CopyDrafter(Drafter, like=COPY):
    """Drafts by copying, for all sequences; see the module."""

    def __init__(self) -> None:
        self._texts: dict[int, CopiedText] = {}

    def start(
        self,
        seq_id: int,
        prompt: Sequence[int],
        sampler: Sampler | None = None,  # noqa: ARG002
        mask: Mask | None = None,  # noqa: ARG002
    ) -> None:
        """A sequence starts with these ids. The engine removes tokens that a grammar does not allow."""
        self._texts.pop(seq_id, None)
        if (text := self._text(seq_id, without_images(prompt, NO_TOKEN))) is not None:
            self._texts[seq_id] = text

    def _text(self, seq_id: int, prompt: Sequence[int]) -> CopiedText | None:  # noqa: ARG002
        """The text of a sequence that starts with these ids, which are indexed at the first `step`; None for
        one that nothing is copied for.
        """
        return CopiedText(TokenIndex(prompt))

    def step(self, drafts: Mapping[int, Sequence[int]]) -> dict[int, Proposal]:
        """One more token for each sequence with a source to copy; see `Drafter.step`."""
        runs = {seq_id: self.propose(seq_id, len(draft) + 1) for seq_id, draft in drafts.items()}
        return {seq_id: run[-1] for seq_id, run in runs.items() if len(run) > len(drafts[seq_id])}

    def propose(self, seq_id: int, limit: int) -> list[Proposal]:
        """At most `limit` tokens of the copy, the first one with a second candidate if wanted."""
        if (text := self._texts.get(seq_id)) is None:
            return []
        run = text.propose(limit)
        if run and self.with_alternatives:
            run[0] = run[0]._replace(other=text.other())
        return run

    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:
        """The sequence continued with these ids; before the first `step` they are only queued."""
        if (text := self._texts.get(seq_id)) is not None:
            text.push(tokens)

    def forget(self, seq_id: int) -> None:
        """The sequence ended; unknown ones are ignored."""
        self._texts.pop(seq_id, None)
