"""A request and its generation: ids so far, limits, statistics. Knows no caches and no drafters."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal, NamedTuple, Protocol

from specllama.core.exact import ExactRows
from specllama.core.image_rows import ImageRows
from specllama.core.interfaces import Mask, MaskError, Row, SampledToken, Sampler
from specllama.core.policy.base import Draft, DraftBranch, matching
from specllama.core.prefix.stored import Boundary, CachedSequence
from specllama.core.repetition import ENDED, EVERY, repeats
from specllama.core.sampling.dry import Breakers
from specllama.core.sampling.infill import InfillRule
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.proposal import top_logprobs
from specllama.core.sampling.sampler import NOTHING_LEGAL
from specllama.core.stats import RunStats
from specllama.core.verify import NO_CHOICE
from specllama.errors import SpecllamaError, UsageError

FinishReason = Literal["stop", "length", "context", "loop", "cancel"]
_NO_TOKEN = SampledToken(-1, inf)
_MAX_REDECIDED = 0.01  # share of tokens; where near-ties are more frequent, they are not decided again


class TokenSink(Protocol):
    """Turns tokens into text and detects where it ends."""

    @property
    def finish_reason(self) -> FinishReason:
        """Why `push` has ended the text."""

    def push(self, token: int, source: str) -> bool:
        """Add one token. source: its drafter, "target" where it was not drafted. True where it ends the
        text, by a stop string or a limit.
        """


class TokenLogprobs(NamedTuple):
    """Natural-log probability of an emitted token in the softmax of the raw row, and (id, log probability) of
    the most likely ones.
    """

    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Request:
    """A request to generate one text. prompt: ids. params, seed: the sampling rule. writer: receives the
    tokens. speculate: whether to draft. mask: a grammar in its initial state, not shared with another
    request. forced: ids to write instead of the chosen ones (teacher forcing); the generation ends after the
    last of them. draft_max: most draft tokens per round; None: the policy decides. owner, turn: see
    `scheduler.FairQueue`. history_scope: scope of the earlier texts that may be drafted from; None: no texts,
    and this one is not kept. cache_scope: cached prefixes are reused within it only. final_probs: log
    probabilities are those of `Sampler.final_logprobs`. exact: the text is the same with and without drafts,
    whatever that costs; see `core.exact`. prompt_seconds: time limit of the prompt, from submission to the
    first token. predict_seconds: time limit of the text, from the first token. warm: evaluate the prompt for
    later requests, and write nothing. infill, breakers: of the sampling steps `infill` and `dry`, None for
    none. boundaries: positions up to which later prompts may share the prompt, () where they are not known.
    kept: whether prompt and text may be written to the disk. end_loops: whether a text ends that goes on
    repeating itself, see `repetition`. prediction: ids that the text is expected to have, to draft from; ()
    for none. images: those of the prompt, in order.
    """

    prompt: Sequence[int]
    params: SamplingParams
    seed: int
    writer: TokenSink | None = None
    speculate: bool = True
    mask: Mask | None = None
    forced: Sequence[int] | None = None
    draft_max: int | None = None
    owner: str = ""
    turn: int = 0
    history_scope: str | None = ""
    cache_scope: str = ""
    final_probs: bool = False
    prompt_seconds: float = inf
    predict_seconds: float = inf
    warm: bool = False
    infill: InfillRule | None = None
    breakers: Breakers | None = None
    exact: bool = False
    boundaries: Sequence[Boundary] = ()
    kept: bool = True
    end_loops: bool = False
    prediction: Sequence[int] = ()
    images: Sequence[ImageRows] = ()


@dataclass(slots=True)
class Generation:
    """A request in the engine. history: prompt and output ids. n_past: how many of them are in the target's
    cache. epsilon, exact: see `engine.Engine`. exact_rows: its decodes have one width; None: they need
    not. alone: nothing else is decoded meanwhile.

    Invariant between rounds: 0 <= n_past <= len(history) - 1, and n_past == len(history) - 1 where the
    target's memory can take tokens back one by one, less the tokens that the last round accepted in a branch.
    """

    request: Request
    sampler: Sampler
    end_ids: Collection[int]
    n_ctx: int
    epsilon: float = 0.0
    exact: bool = False
    seq_id: int = -1
    history: list[int] = field(default_factory=list)
    n_past: int = 0
    prefilled: bool = False
    queue_rank: int = 0  # order among the waiting generations
    n_chunks: int = 0  # chunks of its prompt that were evaluated
    single_row: bool = False  # the next token must be chosen from a row decoded by itself
    shared: bool = False  # the current row was decoded together with others
    finish_reason: FinishReason | None = None
    exact_rows: ExactRows | None = None
    alone: bool = False
    boundaries: Sequence[Boundary] = ()  # at which the evaluation of its prompt stops
    stored: CachedSequence | None = None  # that was read from the disk for it, until it has a slot
    prefix_owner: Generation | None = field(
        default=None, compare=False, repr=False
    )  # evaluates the same prompt
    problem: SpecllamaError | None = None  # that ended it
    submitted: float = 0.0
    admitted: float = 0.0  # time of its first slot
    first_token: float = 0.0
    stats: RunStats = field(default_factory=RunStats)
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # of the output, where requested
    drafted: Sequence[int] = ()  # draft tokens of this round that are not yet verified
    sources: Sequence[str] = ()  # the drafter of each of them
    branches: Sequence[DraftBranch] = ()  # second candidates of this round's draft
    rejected: Sequence[tuple[int, str]] = ()  # of this round, from the first wrong one on
    _n_before: int = 0  # ids before this round
    _logprobs: TokenLogprobs | None = None  # of the last chosen token
    _choice: SampledToken = _NO_TOKEN

    @property
    def n_prompt(self) -> int:
        return len(self.request.prompt)

    @property
    def output(self) -> list[int]:
        """The ids generated so far, an end token included."""
        return self.history[self.n_prompt :]

    @property
    def n_output(self) -> int:
        return len(self.history) - self.n_prompt

    @property
    def complete(self) -> bool:
        """Whether the text may end here: its grammar, if it has one, asks for nothing more."""
        mask, end_ids = self.request.mask, self.end_ids
        return mask is None or self.finish_reason == "stop" or not end_ids or any(map(mask.allows, end_ids))

    @property
    def n_draft_max(self) -> int | None:
        """Most draft tokens of a round that the request allows, None for any number."""
        return self.request.draft_max if self.request.speculate else 0

    @property
    def room(self) -> int:
        """Most draft tokens of the next round, which emits one token more than it accepts."""
        room = self.n_ctx - len(self.history) - 1
        if self.request.params.max_tokens > 0:
            room = min(room, self.request.params.max_tokens - self.n_output - 1)
        if (n_max := self.n_draft_max) is not None:
            room = min(room, n_max)
        if self.exact_rows is not None:
            room = min(room, self.exact_rows.n_kept(len(self.history) - 1) - 1)
        return max(0, room)

    def time_left(self, now: float) -> float:
        """Seconds until the time limit of the prompt or, after the first token, of the text."""
        if self.first_token:
            return self.first_token + self.request.predict_seconds - now
        return self.submitted + self.request.prompt_seconds - now

    def fail(self, problem: SpecllamaError) -> None:
        """End it for this reason."""
        self.finish_reason, self.problem = "cancel", problem

    @property
    def next_image(self) -> ImageRows | None:
        """The image that is evaluated next, None where text is."""
        return next((image for image in self.request.images if image.begin == self.n_past), None)

    def begin_round(
        self,
        drafted: Sequence[int],
        sources: Sequence[str],
        branches: Sequence[DraftBranch] = (),
        shared: bool = False,
    ) -> None:
        """Set the draft that the next rows verify. sources: the drafter of each token. shared: whether the
        rows were decoded together with others.
        """
        self.drafted, self.sources, self.shared, self.rejected = drafted, sources, shared, ()
        self.branches, self._n_before = branches, len(self.history)

    def keep_legal(self, draft: Draft) -> None:
        """Cut the draft down to what the grammar and the room allow."""
        n, draft_length = self._n_legal(draft.tokens), len(draft.tokens)
        draft.n_discarded += draft_length - n
        draft.cut(n)
        kept = []
        for branch in draft.branches:
            before = draft.tokens[: branch.at]
            n = min(self.room - branch.at, self._n_legal([*before, *branch.tokens]) - branch.at)
            if n > 0:
                kept.append(replace(branch, tokens=branch.tokens[:n]))
        draft.branches = kept

    def _n_legal(self, draft: Sequence[int]) -> int:
        """Length of the prefix of the draft that the grammar allows; all of it without a grammar."""
        if self.request.mask is None or not draft:
            return len(draft)
        try:
            return self.request.mask.legal(draft)
        except MaskError:  # the choice that follows reports it
            return 0

    def choose(self, row: Row) -> int:
        """The next token. row: logits, shape (n_vocab,). NO_CHOICE where it must be chosen again from a row
        decoded by itself, or where the generation ends because the grammar allows no token.
        """
        forced = self.request.forced
        # a text whose decodes all have its one width is not compared with rows decoded by themselves
        margin = 2 * self.epsilon if self.shared or self.exact_rows is None else 0.0
        try:
            self._choice = choice = self.sampler.choose(row, self.history, margin, self.request.mask)
        except MaskError as error:
            self.fail(too_complex(error))
            return NO_CHOICE
        if forced is not None:  # the token is sampled all the same, so that the measured time includes it
            return self._with_logprobs(row, forced[self.n_output])
        if choice.token == NOTHING_LEGAL:
            self.finish_reason = "stop"
            return NO_CHOICE
        if choice.margin < margin:
            if self.shared and self._decides_again():
                self.stats.redecided += 1
                self.single_row = True
                return NO_CHOICE
            self.stats.near_ties += 1
        return self._with_logprobs(row, choice.token)

    def _with_logprobs(self, row: Row, token: int) -> int:
        """The token, after recording its log probability where that was requested."""
        n = self.request.params.logprobs
        if n is not None and self.request.final_probs:
            final = self.sampler.final_logprobs(row, self.history, self.request.mask, token, n)
            self._logprobs = TokenLogprobs(*final)
        elif n is not None:
            self._logprobs = TokenLogprobs(*top_logprobs(row, token, n))
        return token

    def _decides_again(self) -> bool:
        """Whether near-ties are decided again: always if `exact`, else while they are rare."""
        ties = self.stats.redecided + self.stats.near_ties
        return self.exact or ties <= _MAX_REDECIDED * max(100, self.n_output)

    def commit(self, token: int) -> bool:
        """Append the token; False where the generation ends with it (`finish_reason` says why)."""
        params, writer, mask = self.request.params, self.request.writer, self.request.mask
        self.history.append(token)
        self.sampler.advance(self._choice)
        self.stats.n_predict += 1
        if self._logprobs is not None:
            self.logprobs.append(self._logprobs)
        if mask is not None and token not in self.end_ids:
            try:
                mask.accept(token)
            except MaskError as error:
                self.fail(too_complex(error))
                return False
        source = self._source(token)
        if token in self.end_ids:
            self.finish_reason = "stop"
        elif writer is not None and writer.push(token, source):
            self.finish_reason = writer.finish_reason
        elif 0 < params.max_tokens <= self.n_output:
            self.finish_reason = "length"
        elif len(self.history) >= self.n_ctx:
            self.finish_reason = "context"
        elif self.request.end_loops and not self.n_output % EVERY and repeats(self.output[-ENDED:], ENDED):
            self.finish_reason = "loop"
        return self.finish_reason is None

    def _source(self, token: int) -> str:
        """The drafter of the token that is being committed, "target" where it was not drafted."""
        if self.drafted and self.drafted[0] == token:
            source, self.drafted, self.sources = self.sources[0], self.drafted[1:], self.sources[1:]
            return source
        self.rejected = list(zip(self.drafted, self.sources, strict=True))
        self.drafted, self.sources = (), ()
        n_accept, branches = len(self.history) - 1 - self._n_before, self.branches
        self.branches = ()
        for branch in matching(branches, n_accept, token):
            self.drafted, self.sources = branch.tokens[1:], [branch.source] * (len(branch.tokens) - 1)
            return branch.source
        return "target"


def too_complex(error: MaskError) -> UsageError:
    """The error of a grammar that cannot be followed."""
    return UsageError(f"the grammar is too complex: {error}")


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix of two sequences of ids."""
    n = min(len(a), len(b))
    if list(a[:n]) == list(b[:n]):
        return n
    return next(i for i in range(n) if a[i] != b[i])
