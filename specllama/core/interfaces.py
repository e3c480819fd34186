"""The interfaces that the algorithm depends on: contexts decode, samplers choose, drafters propose, masks
restrict the choice.

The engine knows only these; llama/ implements `Context` with llama.cpp, testing.py with a table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from specllama.core.image_rows import ImageEmbeddings

Row = NDArray[np.float32]  # logits of one position, shape (n_vocab,)
Hidden = NDArray[np.float32]  # hidden states, one per row


class NoRoomError(Exception):
    """The KV cache has no room for the batch; no row of it was decoded."""


class DecodeError(Exception):
    """llama.cpp failed during a decode; the cache contents of the batch's sequences are undefined."""


class MaskError(Exception):
    """The grammar became too complex to continue."""


class BatchRow(NamedTuple):
    """One row of a decode. token: id. pos: position in its sequence. output: whether to return its logits."""

    token: int
    pos: int
    seq_id: int
    output: bool


Saved = Any  # the saved state of a sequence, opaque to all but its Context


class Context(Protocol):
    """A model with a KV cache for several sequences."""

    n_ctx: int  # tokens; one pool shared by all sequences
    n_spare: int  # further cells, for rows that fill up a decode
    n_vocab: int
    n_batch: int  # most rows of one decode
    n_ubatch: int  # rows that are computed at once
    row_multiple: int  # batch sizes that are not a multiple of this are slow; 1: none are
    rounds_prompts: bool  # rows are bit-equal in small decodes, and rounded otherwise in those of many rows
    n_seq_max: int
    n_outputs_max: int  # most rows with logits in one decode
    max_rollback: int  # tokens that `truncate` may remove after a decode; large for an ordinary KV cache
    cuts_need_checkpoint: bool  # recurrent memory: call `checkpoint` before a decode that may be truncated
    cuts_anywhere: (
        bool  # every prefix of a sequence can be kept; else those with a partial state at their end
    )
    can_pad: bool  # a decode can be filled up with rows that are removed again
    n_branches: int  # most branches of one decode; 0 where the memory cannot hold any
    n_decoded: int  # rows of the last decode, with those that filled it up
    decode_seconds: float  # spent in decodes so far

    def decode(
        self,
        batch: Sequence[BatchRow],
        n_rows: int = 0,
        n_outputs: int = 0,
        branches: Sequence[Sequence[BatchRow]] = (),
        n_apart: int = 0,
    ) -> NDArray[np.float32]:
        """Evaluate the batch; returns the logits of the rows with `output`, shape (n_outputs, n_vocab), in
        batch order, then those of the branches.

        n_rows, n_outputs: the decode is filled up to so many rows, and so many rows of logits, where the
        memory allows that and has room. Further rows follow the last one; they are removed from the cache
        again, and their logits are not returned. branches: each is rows of a sequence of the batch at
        positions that follow each other, the first of them after a row of the batch. They see the sequence up
        to there and themselves, in place of the batch's rows from there on, and are removed from the cache
        again. n_apart: sequences for branches of each text, used or not: where their number changes,
        llama.cpp prepares a decode again. The result is a view, valid until the next decode on this context.
        Raises NoRoomError (nothing was decoded), DecodeError (caches lost), ValueError (rows on which
        llama.cpp would abort).
        """

    def decode_image(
        self, seq_id: int, first: int, image: ImageEmbeddings, output: bool
    ) -> NDArray[np.float32]:
        """Evaluate an image after the first `first` ids of a sequence; the logits after it, shape (1,
        n_vocab), or (0, n_vocab) without `output`. In all other methods each of its rows counts as one token.
        Raises as `decode`; after NoRoomError the sequence may have fewer tokens than before.
        """

    def n_past(self, seq_id: int) -> int:
        """The number of the sequence's tokens in the cache."""

    def checkpoint(self, seq_id: int) -> None:
        """Save the sequence's state so that `truncate` can return to it; replaces the previous checkpoint."""

    def truncate(self, seq_id: int, n_past: int) -> int:
        """Keep at most the first `n_past` tokens; returns the number kept (0 where the memory cannot roll
        back that far).
        """

    def can_truncate(self, seq_id: int, n_past: int) -> bool:
        """Whether `truncate` would keep exactly the first `n_past` tokens, without a checkpoint."""

    def can_copy(self, seq_id: int, n_past: int) -> bool:
        """Whether the first `n_past` tokens of the sequence can be copied without a partial state."""

    def copy(self, src: int, dst: int, n_past: int, partial: Saved | None = None) -> int:
        """Replace `dst` by the first `n_past` tokens of `src`, cells shared; returns the number shared.
        partial: the state of `src` there (`save_partial`), without which only some prefixes can be copied.
        """

    def partial_size(self, seq_id: int) -> int:
        """Bytes that `save_partial` needs."""

    def save_partial(self, seq_id: int) -> Saved | None:
        """A copy of what cannot be cut of the sequence's state, in host memory: recurrent states, and the
        cells of layers with a sliding window. None if that failed.
        """

    def restore_partial(self, seq_id: int, n_past: int, partial: Saved) -> int:
        """Return to the first `n_past` tokens of the sequence, or of another one of which this one has the
        attention cells. partial: was saved there. Returns the number kept, 0 where that failed.
        """

    def size(self, seq_id: int) -> int:
        """Bytes that `save` needs."""

    def prepare_save(self, seq_id: int) -> bool:
        """Whether memory for `save` is there; otherwise it is provided meanwhile, without holding up decodes.
        `save` works without it, and takes longer.
        """

    def save(self, seq_id: int) -> Saved | None:
        """A copy of the sequence's cache contents in host memory; None if that failed."""

    def load(self, seq_id: int, saved: Saved) -> int:
        """Replace the sequence by a saved state, its own or another's; returns the number of its tokens, 0
        where there is no room.
        """


class SampledToken(NamedTuple):
    """A chosen token. margin: change of the logits below which the choice is certain to stay the same; inf
    where it was not requested. state: for `Sampler.advance`.
    """

    token: int
    margin: float
    state: tuple[float, ...] = ()


class Sampler(Protocol):
    """The sampling rule of one sequence, a pure function of row, history and, for steps that adapt themselves
    to the text, a state; see sampling/sampler.py.
    """

    n_vocab: int  # ids at or above it are never chosen

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is chosen."""

    def limited(self, n_vocab: int) -> Sampler:
        """The same rule for a model with a vocabulary of only `n_vocab` tokens."""

    def widened(self, n_vocab: int) -> Sampler:
        """The same rule for a draft model with tokens that the target lacks: ids from the target's `n_vocab`
        up to this one.
        """

    def choose(
        self,
        row: Row,
        history: Sequence[int],
        margin: float = 0.0,
        mask: Mask | None = None,
        ahead: Sequence[int] = (),
    ) -> SampledToken:
        """The token after `history` and `ahead`. row: the logits there, shape (at least n_vocab,)."""

    def advance(self, choice: SampledToken) -> None:
        """The sequence goes on with this choice."""

    def final_logprobs(
        self, row: Row, history: Sequence[int], mask: Mask | None, token: int, n: int
    ) -> tuple[float, list[tuple[int, float]]]:
        """Log probability of `token`, and (id, log probability) of the n most likely ones, in the
        distribution from which `choose` chooses.
        """


class Alternative(NamedTuple):
    """A second candidate in place of a drafted token. tokens: that candidate, then what may follow it.
    confidence: as in `Proposal`, that the target chooses the first of them.
    """

    tokens: Sequence[int]
    confidence: float


class Proposal(NamedTuple):
    """One drafted token.

    confidence: the drafter's own, uncalibrated estimate that the target chooses it, in [0, 1]. other: what
    the target may choose in its place, None where the drafter knows nothing or is not asked.
    """

    token: int
    confidence: float
    other: Alternative | None = None


class Drafter(ABC):
    """A source of draft tokens for all sequences at once. It proposes; it never decides.

    name: unique; the key of statistics and stored tables. runs_model: a draft model or a head, whose steps
    cost decodes, so the planner uses it only where that pays; other drafters are free. continues: it can
    draft after tokens that another drafter proposed. forces: its tokens are implied by a grammar, not
    guessed; acceptance rates leave them out. prior: chance that its token is right, by bin of its confidence,
    before any observation; None: about the confidence itself. n_positions: positions in a draft whose
    acceptance is learnt apart, the last one for all later tokens. reads_features: it drafts from hidden
    states of the target. drafts_blocks: the first step of a draft evaluates a whole block, its other steps
    cost no decode. remembers: it drafts from the texts of earlier sequences. predicts: it drafts from the
    prediction of a request. confident: it reports how
    probable its tokens are, which costs time; else a confidence of 1. with_alternatives: its proposals have
    second candidates, where it knows them; off at first, since finding them takes some time.
    """

    name: str
    runs_model, continues, forces, reads_features, drafts_blocks, remembers, predicts = (False,) * 7
    prior: Sequence[float] | None = None
    n_positions = 1
    confident, with_alternatives = True, False

    def __init_subclass__(cls, like: object = None) -> None:
        """like: the entry in the registry whose attributes the drafter has."""
        super().__init_subclass__()
        for name in _OF_ENTRY if like is not None else ():
            setattr(cls, name, getattr(like, name))

    def set_scope(self, seq_id: int, scope: str | None) -> None:  # noqa: B027
        """Set the scope of the sequence that starts next: whose texts it may use. None: it uses no texts."""

    def set_prediction(self, seq_id: int, prediction: Sequence[int], n_output: int) -> None:  # noqa: B027
        """Set the ids that the sequence that starts next is expected to have, () for none. n_output: how many
        ids it has after its prompt.
        """

    @abstractmethod
    def start(self, seq_id: int, prompt: Sequence[int], sampler: Sampler, mask: Mask | None = None) -> None:
        """A sequence starts with these ids; `sampler` chooses its tokens among those that `mask` allows.
        Expensive work is left to the first `step`. The engine keeps `mask` up to date.
        """

    @abstractmethod
    def step(self, drafts: Mapping[int, Sequence[int]]) -> dict[int, Proposal]:
        """One more token for each sequence. drafts: by seq_id, the tokens drafted since the last commit.

        Sequences without a proposal are absent from the result. From call to call a draft grows by the token
        that `step` proposed, or starts over: from an empty one or, for drafters with `continues`, from tokens
        that another drafter proposed.
        """

    def propose(self, seq_id: int, limit: int) -> list[Proposal]:
        """At most `limit` tokens of a sequence, those that `step` proposes one by one from an empty draft."""
        run: list[Proposal] = []
        while len(run) < limit and (got := self.step({seq_id: [proposal.token for proposal in run]})):
            run.append(got[seq_id])
        return run

    @abstractmethod
    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:
        """The sequence continued with these ids, drafted or not."""

    def features_decoded(  # noqa: B027
        self, batch: Sequence[BatchRow], features: Hidden, branches: Sequence[Sequence[BatchRow]] = ()
    ) -> None:
        """The target decoded these rows, then those of branches; `features`, shape (number of all rows,
        n_features), is valid until the call returns. Called for a drafter with `reads_features`.
        """

    @abstractmethod
    def forget(self, seq_id: int) -> None:
        """The sequence ended; free its state."""


_OF_ENTRY = ("name", "runs_model", "continues", "forces", "prior", "n_positions", "reads_features")


class DraftCacheState(NamedTuple):
    """How much of a sequence a drafter's cache holds, in ids. n_skipped: left out at the start. n_held: in
    the cache. n_pending: to be evaluated for the next token, the last id included.
    """

    n_skipped: int
    n_held: int
    n_pending: int


class CachingDrafter(Drafter):
    """A drafter with a cache of its own: the cost of a step depends on what the cache holds."""

    @abstractmethod
    def set_cache_scope(self, seq_id: int, scope: str) -> None:
        """Set the scope of the sequence that starts next; it reuses what the same scope has cached."""

    @abstractmethod
    def cache_state(self, seq_id: int) -> DraftCacheState:
        """The state of the cache before the next `step` with an empty draft."""

    @abstractmethod
    def restart_from_tail(self, seq_id: int, n_last: int) -> None:
        """Empty the cache; from now on it covers only the last `n_last` ids and those after them."""

    def catch_up(self, seq_id: int, n_most: int) -> bool:  # noqa: ARG002
        """Whether a step evaluates at most n_most ids of the history; where it would evaluate more, so many
        of them are evaluated now.
        """
        return True

    def save_cache(self, seq_id: int, ids: Sequence[int], scope: str, copy_rate: float) -> Saved | None:  # noqa: ARG002
        """A copy of the cells of an idle sequence, those of the first ids of a text of this scope, to be kept
        with the target's; None where they are too few, or reading them again takes less time than the copy.
        copy_rate: bytes per second.
        """
        return None

    def load_cache(self, seq_id: int, ids: Sequence[int], scope: str, saved: Saved, copy_rate: float) -> int:  # noqa: ARG002
        """Replace the cells of an idle sequence by a copy of those of the first of these ids, where that is
        faster than reading them and longer than what is there. Returns the number of cells, 0 where nothing
        was replaced.
        """
        return 0


class Mask(Protocol):
    """The tokens that a grammar allows next in one sequence. Every method may raise MaskError.

    ahead: tokens to assume after the sequence's last one, such as a draft; only `accept` changes the state.
    """

    def allows(self, token: int, ahead: Sequence[int] = ()) -> bool:
        """Whether the token may come next."""

    def allowed(self, ahead: Sequence[int] = ()) -> NDArray[np.bool_]:
        """Whether each token may come next, shape (n_vocab,); all False where `ahead` is not legal."""

    def legal(self, tokens: Sequence[int]) -> int:
        """Length of the longest prefix of `tokens` that may come next."""

    def forced(self, ahead: Sequence[int] = ()) -> list[int]:
        """The text that the grammar forces next, in its usual tokenization; other tokens may spell it too."""

    def accept(self, token: int) -> None:
        """The sequence continued with this token, which must be legal."""


# The interface of trained heads: small networks that draft from hidden states of the target.


@dataclass(frozen=True, slots=True, eq=False)
class BlockRows:
    """Logits of each token, whatever those before it are. rows: shape (n, n_vocab)."""

    rows: NDArray[np.float32]

    def logits(self, draft: Sequence[int]) -> Row | None:
        """Logits of the token after these tokens of the block, shape (n_vocab,); None where the block says
        nothing about it.
        """
        return self.rows[len(draft)] if len(draft) < len(self.rows) else None


@dataclass(frozen=True, slots=True, eq=False)
class BlockLattice:
    """A few candidates for each token, with scores that depend on the candidate before (DFlash 2).

    ids: the candidates of each token, shape (n, k). scores: of each candidate after each one of the token
    before, shape (n, k, k); those of the first token are the same for all.
    """

    ids: NDArray[np.int32]
    scores: NDArray[np.float32]
    n_vocab: int

    def logits(self, draft: Sequence[int]) -> Row | None:
        """As those of BlockRows."""
        n, before = len(draft), 0
        if n >= len(self.ids):
            return None
        if n:
            candidates = np.flatnonzero(self.ids[n - 1] == draft[-1])
            if not len(candidates):
                return None
            before = int(candidates[0])
        row = np.full(self.n_vocab, -np.inf, np.float32)
        row[self.ids[n]] = self.scores[n, before]
        return row


DraftedBlock = BlockRows | BlockLattice  # that follows a text


class HeadRow(NamedTuple):
    """One row of a head's decode: a token and the hidden state that it is paired with, shape (n_embd,).

    output: whether to return logits and hidden state of the row.
    """

    token: int
    pos: int
    seq_id: int
    hidden: Hidden
    output: bool


class DraftHead(Protocol):
    """A trained head with a cache of its own.

    Its row for token i of a text pairs the token with the target's features of token i - 1; later rows of a
    draft take the head's own hidden state instead, or that of the head that drafted the token before.
    """

    n_ctx: int  # tokens; one pool shared by all sequences
    n_batch: int  # most rows of one decode
    n_vocab: int
    n_seq_max: int
    n_features: int  # width of the target's features
    lag: int  # positions in its cache are those of the text minus this
    reads_target: bool  # it reads the target's cache and keeps none: all rows of a draft have one position

    @property
    def following(self) -> Sequence[DraftHead]:
        """Heads that draft the second token of a draft, the third and so on, each with a cache of its own;
        the last one drafts all further tokens. Empty where this head drafts all.
        """

    def hidden(self, seq_id: int, features: Hidden) -> Hidden:
        """The hidden states for features of consecutive tokens, shape (n, n_embd). Raises DecodeError."""

    def decode(self, rows: Sequence[HeadRow], n_rows: int = 0) -> tuple[NDArray[np.float32], Hidden]:
        """Logits, shape (n_outputs, n_vocab), and hidden states, shape (n_outputs, n_embd), of the rows with
        `output`. Logits are a view, valid until the next call. n_rows: the decode is filled up to so many,
        where there is room. Raises NoRoomError, DecodeError.
        """

    def truncate(self, seq_id: int, pos: int) -> None:
        """Remove the cells at and after a position; does nothing where the cache is the target's."""


@runtime_checkable
class BlockHead(Protocol):
    """A head that drafts a whole block of tokens in one decode, from the target's features in its cache."""

    n_ctx: int  # tokens; one pool shared by all sequences
    n_vocab: int
    n_seq_max: int
    n_features: int  # width of the target's features
    n_draft: int  # tokens of a block

    def inject(self, seq_id: int, first: int, features: Hidden) -> None:
        """Put the features of the tokens at positions `first` and after into the cache, shape (n,
        n_features). Raises NoRoomError, DecodeError.
        """

    def draft(self, last: Mapping[int, tuple[int, int]]) -> dict[int, DraftedBlock]:
        """The block of `n_draft` tokens after the last one of each sequence; the cache stays as it was. last:
        id and position, by sequence. Raises NoRoomError, DecodeError.
        """

    def truncate(self, seq_id: int, pos: int) -> None:
        """Remove the cells at and after a position."""
