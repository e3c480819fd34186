"""What the algorithm asks of the outside: contexts that decode, samplers that choose, drafters that
propose, masks that forbid.

The engine knows these shapes only; llama/ implements `Context` with llama.cpp, testing.py with a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float32]  # logits of one position, shape (n_vocab,)


class NoRoomError(Exception):
    """The KV cache has no room for the batch; nothing of it was decoded."""


class DecodeError(Exception):
    """llama.cpp failed in the middle of a decode; the caches of the batch's sequences must be taken as
    lost.
    """


class MaskError(Exception):
    """A grammar proved too complex while it was followed."""


class BatchRow(NamedTuple):
    """One token of a decode: its id, its position in its sequence, and whether its logits are wanted."""

    token: int
    pos: int
    seq_id: int
    output: bool


Saved = Any  # the saved state of a sequence, opaque to all but its Context


class Context(Protocol):
    """A model with a KV cache for several sequences."""

    n_ctx: int  # tokens, the pool shared by all sequences
    n_vocab: int
    n_batch: int  # most tokens of one decode
    row_multiple: int  # batch sizes that are not a multiple of this are slow; 1: none are
    n_seq_max: int
    n_outputs_max: int  # most rows with logits in one decode
    max_rollback: int  # tokens that `truncate` may remove after a decode; large where it can cut anywhere
    cuts_need_checkpoint: bool  # the memory cannot cut: call `checkpoint` before a decode that may be cut

    def decode(self, batch: Sequence[BatchRow]) -> NDArray[np.float32]:
        """Evaluate the rows; the logits of the rows with `output`, shape (n_outputs, n_vocab), in batch
        order.

        The result is a view that dies with the next decode on this context. Raises NoRoomError (nothing
        decoded), DecodeError (caches lost), ValueError (rows that llama.cpp would abort on).
        """
        ...

    def n_past(self, seq_id: int) -> int:
        """Tokens in the cache of the sequence."""
        ...

    def checkpoint(self, seq_id: int) -> None:
        """Save the state of the sequence, for `truncate` to return to; replaces the previous one."""
        ...

    def truncate(self, seq_id: int, n_past: int) -> int:
        """Keep at most the first `n_past` tokens; the number really kept (0 where the memory cannot go
        back).
        """
        ...

    def copy(self, src: int, dst: int, n_past: int) -> int:
        """Give `dst` the first `n_past` tokens of `src`, sharing the cells; the number really shared."""
        ...

    def size(self, seq_id: int) -> int:
        """Bytes that `save` needs; 0 where a saved sequence could not be cut."""
        ...

    def save(self, seq_id: int) -> Saved | None:
        """A copy of what the cache holds of the sequence, outside of it; None where that failed."""
        ...

    def load(self, seq_id: int, saved: Saved) -> int:
        """Make the sequence what was saved, perhaps of another one; its tokens, 0 without room for it."""
        ...


class SampledToken(NamedTuple):
    """A chosen token; margin: logits by which the row must change for another choice (inf: not asked)."""

    token: int
    margin: float


class Sampler(Protocol):
    """The choice rule of one sequence, a pure function of row and history; sampling/sampler.py has it."""

    n_vocab: int  # ids at or above it are never chosen

    def limited(self, n_vocab: int) -> Sampler:
        """The same rule for a model that has `n_vocab` tokens only."""
        ...

    def choose(
        self,
        row: Row,
        history: Sequence[int],
        margin: bool = False,
        mask: Mask | None = None,
        ahead: Sequence[int] = (),
    ) -> SampledToken:
        """The token that follows `history` and `ahead` given its logits `row`, shape (at least n_vocab,)."""
        ...


class Proposal(NamedTuple):
    """One drafted token with the drafter's confidence in it.

    confidence: probability in [0, 1] that the target chooses it, by the drafter's own lights, uncalibrated.
    evidence: what an acceptance table may sort by; each drafter says what it puts there.
    """

    token: int
    confidence: float
    evidence: tuple[float, ...] = ()


class Drafter(Protocol):
    """A source of draft tokens for all sequences at once. It proposes; it never decides.

    name: unique; statistics and stored tables are keyed by it. priced: a step costs a decode of its own, so
    the planner asks only where that pays; others are free. continues: it can draft after tokens that another
    drafter proposed. forces: its tokens are implied by a grammar, not guessed; acceptance rates leave them
    out. prior: chance that its token is right, by bin of its confidence, before any observation; None: about
    the confidence itself.
    """

    @property
    def name(self) -> str: ...
    @property
    def priced(self) -> bool: ...
    @property
    def continues(self) -> bool: ...
    @property
    def forces(self) -> bool: ...
    @property
    def prior(self) -> Sequence[float] | None: ...

    def start(self, seq_id: int, prompt: Sequence[int], chooser: Sampler, mask: Mask | None = None) -> None:
        """A sequence begins with these ids, its tokens chosen by `chooser` among what `mask` allows. Real
        work waits for the first `step`. The engine keeps `mask` up to date.
        """
        ...

    def step(self, wanted: Mapping[int, Sequence[int]]) -> dict[int, Proposal]:
        """One more token for each sequence of `wanted` (seq_id → what this drafter drafted since the last
        commit).

        Sequences with nothing to propose are absent from the answer. The drafts of one sequence grow by what
        `step` itself proposed, or start over: from empty or, for drafters with `continues`, from what
        another drafter proposed.
        """
        ...

    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:
        """The sequence went on with these ids, drafted or not."""
        ...

    def forget(self, seq_id: int) -> None:
        """The sequence ended; free what belongs to it."""
        ...


class DraftCacheState(NamedTuple):
    """What a drafter's cache has of a sequence, in ids: left out at the start; held; to be evaluated for the
    next token, its last id included.
    """

    n_skipped: int
    n_held: int
    n_pending: int


@runtime_checkable
class CachingDrafter(Drafter, Protocol):
    """A drafter with a cache of its own: the cost of a step depends on what the cache holds."""

    def view(self, seq_id: int) -> DraftCacheState:
        """What the next `step` finds, asked for a first token."""
        ...

    def restart_from_tail(self, seq_id: int, n_last: int) -> None:
        """Empty the cache; hold only the last `n_last` ids of the sequence and what follows them."""
        ...


@runtime_checkable
class RememberingDrafter(Drafter, Protocol):
    """A drafter that drafts from other sequences' texts, of the same scope only."""

    def set_scope(self, seq_id: int, scope: str | None) -> None:
        """The sequence that starts next may use the texts of this scope; None: no texts."""
        ...


@runtime_checkable
class SpanDrafter(Drafter, Protocol):
    """A drafter that can propose several tokens of a sequence at once."""

    def propose(self, seq_id: int, limit: int) -> list[Proposal]:
        """The first `limit` tokens that `step` would propose one by one."""
        ...


class Mask(Protocol):
    """A grammar's view of what may come next in one sequence. Every call may raise MaskError.

    ahead: tokens after the sequence's last one, legal themselves as far as `legal` says, that the question
    supposes; asking changes nothing.
    """

    def allows(self, token: int, ahead: Sequence[int] = ()) -> bool:
        """Whether the token may come next."""
        ...

    def allowed(self, ahead: Sequence[int] = ()) -> NDArray[np.bool_]:
        """All that may come next, shape (n_vocab,); nothing where `ahead` is not legal."""
        ...

    def legal(self, tokens: Sequence[int]) -> int:
        """How many of the tokens, from the first on, may follow one another."""
        ...

    def forced(self, ahead: Sequence[int] = ()) -> list[int]:
        """Tokens that spell what the grammar forces next, in the vocabulary's usual way; others may spell
        the same.
        """
        ...

    def accept(self, token: int) -> None:
        """The sequence went on with this token, which is legal."""
        ...
