"""Scheduling: admission, prefill in chunks, prefix sharing, eviction, when idle caches are moved out.

Knows contexts and policies by their interfaces; no files, no threads; the clock is passed in. The round
itself is in engine.py; which slot to use, and which evicted texts are kept, in prefix/.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from specllama.core.exact import ExactRows
from specllama.core.fair_queue import FairQueue
from specllama.core.interfaces import BatchRow, Context, DecodeError, NoRoomError, Row
from specllama.core.limits import ends_ignored, with_forced_limit
from specllama.core.policy.base import Policy, TreeLimits
from specllama.core.prefill_cost import PrefillCost
from specllama.core.prefix.boundaries import ahead, distances, next_stop
from specllama.core.prefix.slot import Slot
from specllama.core.prefix.store import PrefixStore
from specllama.core.prefix.stored import StoredText
from specllama.core.sampling.sampler import KeyedSampler
from specllama.core.sequence import FinishReason, Generation, Request
from specllama.core.verify import NO_CHOICE
from specllama.errors import ContextLengthError, EngineError, option

CHUNK = 64  # rows; kernels round groups of this size the same way in a decode of any width
CHUNK_GROWTH = 2  # at most: a chunk much larger than the one that was timed may take longer than predicted
UNSHARED_CHUNK = 1.5  # factor on the time of a prefill chunk for which no other sequence has to wait
UNUSED_SECONDS = 0.5  # after which an idle cache is moved out of the context
MAX_PENDING = 16  # rows lost by a truncation that a round evaluates again; more are prefilled in chunks


class Scheduler:
    """The slots of one target context and the generations that wait for them or use them.

    end_ids: tokens that end a generation. suppressed: tokens that are never chosen. epsilon: how much a logit
    of a batched row may differ from the same row decoded by itself (0: bit-equal; None: not measured,
    near-ties are ignored). max_rows: limit of a decode with drafts, where wider ones are rounded differently;
    None: no limit. exact: the text must not depend on drafts: all near-ties are decided on rows decoded by
    themselves or, with exact_rows, all decodes of a text have one width. exact_rows: None where rows are
    bit-equal; the texts of such requests are decoded one after another. prefill_seconds: target time of a
    prefill chunk while other sequences wait. draft_tree: branches of each draft, where there are as many;
    None: the policy decides. room, cache_budget, max_partials: see `PrefixStore`. draft_failed: the draft
    model raised DecodeError and was removed; `notices` has a message.
    """

    def __init__(
        self,
        target: Context,
        policy: Policy,
        *,
        end_ids: Collection[int],
        clock: Callable[[], float],
        suppressed: Sequence[int] = (),
        epsilon: float | None = None,
        max_rows: int | None = None,
        exact: bool = False,
        prefill_seconds: float = 0.5,
        room: Callable[[int], bool] | None = None,
        exact_rows: ExactRows | None = None,
        cache_budget: float = inf,
        max_partials: int | None = None,
        draft_tree: int | None = None,
    ) -> None:
        self.target, self.policy, self.clock = target, policy, clock
        self.end_ids, self.suppressed = frozenset(end_ids), tuple(suppressed)
        self.epsilon, self.exact, self.prefill_seconds = epsilon, exact, prefill_seconds
        self.max_rows, self.exact_rows = max_rows, exact_rows
        self.tree_forced = bool(draft_tree)
        self.draft_tree = -(-target.n_branches // target.n_seq_max) if draft_tree is None else draft_tree
        self.store, self._offloaded = PrefixStore(target, clock, room, cache_budget, max_partials), 0.0
        self.waiting: list[Generation] = []
        self.queue = FairQueue()
        self.active: list[Generation] = []
        self.notices: list[str] = []
        self.draft_failed = False
        self._cost = PrefillCost()
        self._timed_rows = CHUNK  # of the decode of which that was measured
        self._last_width, self._n_same = 0, 0  # of the last round's decode, and rounds of it in a row
        self._last_round = 0, inf  # generations in it, and its seconds

    @property
    def slots(self) -> list[Slot]:
        """The sequences of the target's cache."""
        return self.store.slots

    @property
    def row_seconds(self) -> float | None:
        """Seconds of a row of a prompt, None before one was evaluated."""
        return self._cost.row_seconds

    @property
    def busy(self) -> bool:
        """Whether a generation is waiting or active."""
        return bool(self.waiting or self.active)

    # Requests

    def submit(self, request: Request, stored: StoredText | None = None) -> Generation:
        """Queue a request. stored: a text that was read from the disk for it. Raises EngineError for an empty
        prompt, ContextLengthError where the context has no room for the prompt and one token, or for the
        prompt and the forced ids, UsageError for invalid forced ids.
        """
        n_prompt, n_ctx = len(request.prompt), self.target.n_ctx
        if n_prompt == 0:
            raise EngineError("a prompt needs at least one token")
        if n_prompt >= n_ctx:
            raise context_length_error(n_prompt, n_ctx)
        request = with_forced_limit(request, self.target.n_vocab, n_ctx)
        forbidden = [*self.suppressed, *(self.end_ids if ends_ignored(request.params) else ())]
        infill = None if ends_ignored(request.params) else request.infill
        sampler = KeyedSampler(request.params, request.seed, self.target.n_vocab, forbidden, infill)
        end_ids = self.end_ids if request.forced is None else ()
        exact, epsilon = self.exact or request.exact, self.epsilon or 0.0
        if (rows := self.exact_rows if exact else None) is not None:  # nothing is left to decide again
            exact, epsilon, n_ctx = False, 0.0, n_ctx - max(0, rows.width - 1 - self.target.n_spare)
        generation = Generation(
            request, sampler, end_ids, n_ctx, epsilon, exact, submitted=self.clock(), exact_rows=rows
        )
        generation.history, generation.stored = list(request.prompt), stored
        generation.stats.n_prompt = n_prompt
        generation.stats.exact_width = rows.width if rows is not None else None
        self.queue.join(self.waiting, generation)
        return generation

    def cancel(self, generation: Generation, reason: FinishReason = "cancel") -> None:
        """End a generation now, keeping its output so far; without effect where it has ended already."""
        if generation.finish_reason is None:
            generation.finish_reason = reason
            self._retire()

    def _admit(self) -> list[Generation]:
        """Give free slots to waiting generations; end those past their deadline. Returns the active ones."""
        for g in self.active:
            if g.prefix_owner is not None and not any(other is g.prefix_owner for other in self.active):
                g.n_chunks = g.prefix_owner.n_chunks
                g.prefix_owner = None
                g.prefix_owner = self._find_prefix_owner(g)
        while self.waiting and self.store.idle():
            if not self._fits(self.waiting[0]) or not self._may_join(self.waiting[0]):
                break
            if not self._is_prepared(self.waiting[0]):
                break
            generation = self.waiting.pop(0)
            self.queue.served(generation)
            if (rows := generation.exact_rows) is not None:
                scope = generation.request.cache_scope
                self._seat(generation, *self.store.take_alone(generation.history, rows.chunk, scope))
                break
            owner, scope = self._find_prefix_owner(generation), generation.request.cache_scope
            generation.prefix_owner = owner
            slot, n_past = self.store.take([] if owner else generation.history, scope, generation.stored)
            for other in self.slots:
                other.n_whole = 0
            self._seat(generation, slot, n_past)
        for generation in [*self.active, *self.waiting]:
            deadline, now = generation.request.deadline, self.clock()
            if deadline is not None and now > deadline:
                generation.finish_reason = "cancel"
            elif generation.time_left(now) < 0 and (generation.n_chunks or generation.seq_id < 0):
                generation.finish_reason = "length"
        return list(self.active)

    def _seat(self, generation: Generation, slot: Slot, n_past: int) -> None:
        """Give a slot to a generation, n_past of whose ids are in its cache."""
        slot.owner, slot.ids, slot.scope = generation, [], generation.request.cache_scope
        slot.kept, generation.stored = generation.request.kept, None
        generation.seq_id, generation.n_past = slot.seq_id, n_past
        rows, n_prompt = generation.exact_rows, len(generation.history)
        if self.store.needs_partials:
            known = generation.request.boundaries or distances(n_prompt)
            chunk = rows.chunk if rows is not None else None
            generation.boundaries = ahead(known, n_past, n_prompt, chunk)
        stats = generation.stats
        stats.n_reused = min(n_past, generation.n_prompt)
        stats.n_from_disk = min(stats.n_from_disk, stats.n_reused)
        generation.admitted = generation.admitted or self.clock()
        self.active.append(generation)

    def _may_join(self, generation: Generation) -> bool:
        """Whether the generation may be decoded together with the active ones."""
        return not self.active or not any(g.exact_rows for g in (generation, *self.active))

    def _is_prepared(self, generation: Generation) -> bool:
        """Whether a slot can be had without holding up the active generations."""
        ids, scope = generation.history, generation.request.cache_scope
        return not self.active or self.store.is_prepared(ids, scope, generation.stored)

    def _fits(self, generation: Generation) -> bool:
        """Whether the pool has room for the generation and some growth; True if no other is active."""
        used = sum(len(g.history) for g in self.active)
        needed = len(generation.history) + self.target.n_ctx // 16
        return not self.active or used + needed <= self.target.n_ctx

    def _retire(self) -> None:
        """Free the slots of ended generations; their caches are kept for requests with a common prefix."""
        for generation in [g for g in self.active if g.finish_reason is not None]:
            self._release(generation, keep=True)
            self.active.remove(generation)
        self.waiting = [g for g in self.waiting if g.finish_reason is None]

    def _release(self, generation: Generation, keep: bool = False) -> None:
        slot = self.slots[generation.seq_id]
        ids = generation.history[: generation.n_past] if keep else []
        n_whole = min(generation.n_prompt, len(ids)) if generation.exact_rows is not None else 0
        self.store.release(slot, ids, generation.n_prompt, n_whole)
        self.policy.forget(slot.seq_id)

    def _abandon(self) -> None:
        """Cancel everything after a failed decode: the state of the caches is unknown."""
        for generation in self.active:
            generation.finish_reason = "cancel"
            self._release(generation)
        self.active.clear()
        self.store.clear()

    # Prefill

    def _prefill_next(self) -> list[Generation]:
        """Evaluate one chunk of a prompt, if any is left; returns the generations that decode now."""
        running = [g for g in self.active if g.finish_reason is None]
        filling = next_to_fill([g for g in running if not g.prefilled and g.prefix_owner is None])
        ready = [g for g in running if g.prefilled]
        if filling is not None and self._may_prefill(filling, ready):
            self._prefill(filling, ready)
        decoding = [g for g in ready if g.prefilled and g.finish_reason is None]
        self._end_before_limit(decoding)
        decoding = [g for g in decoding if g.finish_reason is None]
        if decoding:
            self._offload()
        return decoding

    def _may_prefill(self, generation: Generation, decoding: Sequence[Generation]) -> bool:
        """Whether the least chunk of a prompt is predicted to end within all time limits; where it does not
        end within that of the prompt, the generation ends. The first chunk is always evaluated, so that
        repeated requests get further.
        """
        now, seconds = self.clock(), CHUNK * (self.row_seconds or 0.0)
        if generation.n_chunks and generation.time_left(now) < seconds:
            generation.finish_reason = "length"
            return False
        return all(seconds <= g.time_left(now) for g in decoding)

    def _end_before_limit(self, decoding: Sequence[Generation]) -> None:
        """End the generations whose time limit a round without drafts is predicted to exceed.

        Each has one round: a prediction that is wrong, because the machine was busy when it was measured,
        would otherwise end every text before a decode could correct it. After that a round is not expected to
        take longer than the one before it, which was as wide at least.
        """
        timed = [g for g in decoding if g.request.predict_seconds < inf and g.stats.rounds]
        if timed:
            n_before, before = self._last_round
            seconds, now = self.policy.predict(len(decoding)), self.clock()
            seconds = min(seconds, before) if len(decoding) <= n_before else seconds
            for generation in timed:
                if generation.time_left(now) < seconds:
                    generation.finish_reason = "length"

    def _prefill(self, generation: Generation, decoding: Sequence[Generation]) -> None:
        """Evaluate a chunk of the prompt; after the last chunk, choose the first token. decoding: the
        generations that have to wait meanwhile.
        """
        started, history = self.clock(), generation.history
        seconds = self.prefill_seconds if decoding else UNSHARED_CHUNK * self.prefill_seconds
        most = min(g.time_left(started) for g in (generation, *decoding))
        stop, boundary = next_stop(generation.boundaries, generation.n_past, len(history))
        rest, exact = stop - generation.n_past, generation.exact_rows
        fitting = self._cost.rows_within(generation.n_past, self._longest(decoding))
        n = self._chunk(rest, seconds, most, fitting) if exact is None else min(rest, exact.chunk)
        if decoding and n > CHUNK_GROWTH * self._timed_rows:
            n = CHUNK_GROWTH * self._timed_rows // CHUNK * CHUNK
        last = generation.n_past + n == len(history)
        batch = [
            BatchRow(history[pos], pos, generation.seq_id, last and pos == len(history) - 1)
            for pos in range(generation.n_past, generation.n_past + n)
        ]
        rows = self._decode(batch)
        if rows is None:
            return
        self._interrupted()
        generation.n_past += n
        generation.n_chunks += 1
        stats = generation.stats
        stats.n_evaluated = min(generation.n_past, generation.n_prompt) - stats.n_reused
        if last:
            self._begin(generation, rows[0])
        took = self.clock() - started
        if n >= CHUNK or self.row_seconds is None:  # in a small chunk a row costs more
            self._cost.observe(generation.n_past - n, n, took)
            self._timed_rows = max(n, CHUNK)
            self.store.row_seconds = self.row_seconds or self.store.row_seconds
        if boundary is not None and generation.n_past == stop:
            self.store.mark(self.slots[generation.seq_id], boundary)
        stats.encode_seconds += took
        if last:
            self._share_prefix(generation, rows[0])

    def _longest(self, decoding: Sequence[Generation]) -> float:
        """Seconds that a chunk may be predicted to take, so that with their own round the generations that
        have to wait see a gap of `prefill_seconds` at most.
        """
        if not decoding:
            return inf
        own = self._last_round[1] if self._last_round[0] else 0.0
        return self.prefill_seconds - min(own, self.prefill_seconds / 2)

    def _chunk(self, rest: int, seconds: float, most: float = inf, fitting: float = inf) -> int:
        """Rows of the next prefill decode, with `rest` rows left: the multiple of CHUNK whose predicted time
        is closest to `seconds`, at most `most` seconds and `fitting` rows, but CHUNK at least.

        The last decode has CHUNK rows plus the remainder (without the rows beyond a multiple of row_multiple,
        which follow by themselves), however fast the machine is: rounding depends on the width of the decode,
        and the same prompt must give the same logits.
        """
        n_batch = self.target.n_batch
        if rest < 2 * CHUNK or n_batch < 2 * CHUNK:
            n, multiple = min(rest, n_batch), self.target.row_multiple
            return n - n % multiple if n > multiple else n
        before_last = (rest // CHUNK - 1) * CHUNK
        timed = CHUNK
        if self.row_seconds is not None:
            one = self.row_seconds * CHUNK
            timed = max(1, round(seconds / one if seconds < most else max(0.0, most) // one)) * CHUNK
        timed = max(CHUNK, int(min(timed, fitting)) // CHUNK * CHUNK)
        return min(before_last, timed, n_batch // CHUNK * CHUNK)

    def _begin(self, generation: Generation, row: Row) -> None:
        """Choose the first token and start drafting; end a request that only evaluates its prompt. row:
        logits after the prompt, shape (n_vocab,).
        """
        if generation.request.warm:
            generation.finish_reason = "length"
            return
        generation.begin_round((), ())
        token = generation.choose(row)
        if token == NO_CHOICE:  # the grammar allows no token
            return
        generation.commit(token)
        generation.prefilled = True
        if generation.first_token == 0:
            generation.first_token = self.clock()
            generation.stats.ttft_seconds = generation.first_token - generation.submitted
        request, history = generation.request, generation.history
        scopes = request.memory_scope, request.cache_scope
        self.policy.start(generation.seq_id, history, generation.sampler, request.mask, *scopes)

    def _share_prefix(self, prefix_owner: Generation, row: Row) -> None:
        """Share the cells of the prompt, and `row`, with the generations that wait for the same prompt. Where
        the memory cannot share cells, they evaluate the prompt themselves.
        """
        for generation in self.active:
            if generation.prefix_owner is not prefix_owner:
                continue
            generation.prefix_owner = None
            generation.n_past = self.target.copy(prefix_owner.seq_id, generation.seq_id, prefix_owner.n_past)
            partials = self.slots[prefix_owner.seq_id].partials if generation.n_past else []
            self.slots[generation.seq_id].partials = list(partials)
            generation.stats.n_reused = generation.n_past
            if generation.n_past == len(generation.history) and generation.finish_reason is None:
                self._begin(generation, row)

    def _find_prefix_owner(self, generation: Generation) -> Generation | None:
        """The generation of the same scope that is evaluating the same prompt; its cells are shared after
        that.
        """
        for other in self.active:
            fills = other is not generation and not other.prefilled and other.prefix_owner is None
            if not fills or not _shares(other, generation.request.cache_scope):
                continue
            if other.n_output == 0 and other.history == generation.history:
                return other
        return None

    # Decoding

    def _decode(
        self,
        batch: list[BatchRow],
        n_rows: int = 0,
        branches: Sequence[Sequence[BatchRow]] = (),
        n_apart: int = 0,
    ) -> NDArray[np.float32] | None:
        """Logits of the outputs, shape (n_outputs, n_vocab). Other parameters: see `Context.decode`. Without
        room idle caches are evicted; where that is not enough, a generation is returned to the queue or
        ended, and the result is None.
        """
        while True:
            try:
                if not n_apart:
                    return self.target.decode(batch, n_rows, n_rows)
                return self.target.decode(batch, n_rows, n_rows, branches, n_apart)
            except NoRoomError:
                if self.store.make_room():
                    continue
                self._put_back()
                return None

    def _put_back(self) -> None:
        """Return the youngest generation to the queue for lack of room; end it if it is the only one."""
        youngest = self.active[-1]
        if len(self.active) == 1:
            youngest.finish_reason = "context"
            return
        self._release(youngest)
        youngest.n_past, youngest.prefilled, youngest.queue_rank, youngest.prefix_owner = 0, False, 0, None
        self.active.remove(youngest)
        self.waiting.insert(0, youngest)

    def _draft_limit(self, active: Sequence[Generation]) -> int:
        """Most draft tokens per generation that fit into one decode and that the memory can roll back."""
        max_rows = min(self.target.n_outputs_max, self.max_rows or self.target.n_outputs_max)
        pending = max(len(g.history) - g.n_past for g in active)
        per_batch = self.target.n_batch // len(active) - pending
        return min((max_rows - len(active)) // len(active), per_batch, self.target.max_rollback)

    def _tree_limits(self, active: Sequence[Generation], limit: int) -> TreeLimits:
        """The branches that the round may have. limit: most draft tokens per generation. Where all decodes of
        a text have one width, rows depend on where their cells lie, so it has none.
        """
        n_again = sum(len(g.history) - 1 - g.n_past for g in active)
        n_branches = min(self.draft_tree, self.target.n_branches // len(active))
        if not n_branches or any(g.exact_rows for g in active):
            return TreeLimits(n_again=n_again)
        room = self.target.n_ctx - sum(len(g.history) for g in self.active)
        at_once = self.target.n_ubatch - len(active) - n_again
        n_tokens = min(limit, max(0, min(room, at_once)) // len(active))
        return TreeLimits(n_branches, n_tokens, self.tree_forced, n_again)

    def _width(self, batch: Sequence[BatchRow], n: int) -> int:
        """How many rows the round's decode should have, at least the n of batch and branches: as many as the
        policy wants, where they fit and can be removed again.
        """
        if (rows := self.active[0].exact_rows) is not None:
            return rows.width
        target = self.target
        width = self.policy.width(n) if target.can_pad else n
        n_last = sum(row.seq_id == batch[-1].seq_id for row in batch)
        room = target.n_ctx - sum(len(g.history) for g in self.active)
        most = min(
            target.n_outputs_max,
            target.n_batch,
            self.max_rows or target.n_outputs_max,
            n + target.max_rollback + 1 - n_last,
            room,
        )
        return width if n < width <= most else n

    def _same_width(self) -> int:
        """Count the decode of a round; returns how many of its width there were in a row, with this one."""
        width = self.target.n_decoded
        self._n_same = self._n_same + 1 if width == self._last_width else 1
        self._last_width = width
        return self._n_same

    def _interrupted(self) -> None:
        """Other decodes than those of rounds were made."""
        self._last_width = 0
        self.policy.interrupted()

    def _time_left(self, active: Sequence[Generation]) -> float:
        """Seconds until the first time limit of these generations."""
        timed = [g for g in active if g.request.predict_seconds < inf]
        return min((g.time_left(self.clock()) for g in timed), default=inf)

    def _remove_model(self, error: DecodeError) -> None:
        """Remove the drafters that decode, one of which failed."""
        for name in [d.name for d in self.policy.drafters if d.priced]:
            self.policy.remove_drafter(name)
        self.draft_failed, self.store.copies.drafter = True, None
        self.notices.append(f"the draft failed ({error}); continuing without it")

    def _checkpoint(self, generation: Generation) -> None:
        """Save the state before a draft, where the memory cannot roll back, after evaluating all but the last
        token.
        """
        pending = generation.history[generation.n_past : -1]
        while pending:
            chunk, pending = pending[: self.target.n_batch], pending[self.target.n_batch :]
            n = generation.n_past
            self.target.decode([BatchRow(t, n + i, generation.seq_id, False) for i, t in enumerate(chunk)])
            generation.n_past += len(chunk)
            self._interrupted()
        self.target.checkpoint(generation.seq_id)

    def _check_prefilled(self, generation: Generation) -> None:
        """Prefill in chunks again where a truncation has lost many rows."""
        generation.prefilled = len(generation.history) - 1 - generation.n_past < MAX_PENDING

    def _offload(self) -> None:
        """Every UNUSED_SECONDS, move the caches of unused slots out of the context."""
        now = self.clock()
        if now - self._offloaded > UNUSED_SECONDS:
            self.store.offload(now - UNUSED_SECONDS)
            self._offloaded = now


def _shares(generation: Generation, scope: str) -> bool:
    """Whether generations of this scope may reuse what is evaluated for this one."""
    return generation.request.cache_scope == scope


def next_to_fill(filling: Sequence[Generation]) -> Generation | None:
    """The generation whose prompt is evaluated next, the one with the fewest chunks so far: a short prompt
    does not wait for a long one. None without any.
    """
    return min(filling, key=lambda g: g.n_chunks, default=None)


def context_length_error(n_prompt: int, n_ctx: int, at_least: bool = False) -> ContextLengthError:
    """The error for a prompt of `n_prompt` tokens, or at least as many, which the context cannot hold."""
    return ContextLengthError(
        f"the prompt has {'at least ' if at_least else ''}{n_prompt} tokens, which exceeds the available "
        f"context size of {n_ctx}",
        f"use {option('n_ctx', n_prompt + 256)} or more",
        {"n_prompt_tokens": n_prompt, "n_ctx": n_ctx},
    )
