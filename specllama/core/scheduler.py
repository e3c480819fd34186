"""Scheduling: which generation has which slot, whose prompt is evaluated next, and which are in a round.

Knows the prefix store, and policies by their interface; decodes nothing and chooses no tokens: engine.py,
prefill.py. Which slot to use, and which evicted texts are kept, is decided in prefix/.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from specllama.core.chunk_size import ChunkSize
from specllama.core.fair_queue import FairQueue
from specllama.core.policy.base import Policy
from specllama.core.prefix.boundaries import Boundary, ahead, distances, next_stop
from specllama.core.prefix.slot import Slot
from specllama.core.prefix.store import PrefixStore
from specllama.core.sequence import FinishReason, Generation

UNUSED_SECONDS = 0.5  # after which an idle cache is moved out of the context


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """The next n_rows of a generation's prompt. boundary: at their end, None where there is none."""

    generation: Generation
    n_rows: int
    boundary: Boundary | None


class Scheduler:
    """The slots of one target context and the generations that wait for them or use them.

    store: the prefix store of the context. prefill_seconds: target time of a prefill chunk while other
    sequences wait.
    """

    def __init__(self, store: PrefixStore, policy: Policy, prefill_seconds: float = 0.5) -> None:
        self.store, self.policy = store, policy
        self.target, self.clock = store.target, store.clock
        self.chunk_size = ChunkSize(store.target, prefill_seconds)
        self.waiting: list[Generation] = []
        self.active: list[Generation] = []
        self._queue = FairQueue()
        self._offloaded = 0.0  # time of the last offload
        self._last_round = 0, inf  # generations in it, and its seconds

    @property
    def slots(self) -> list[Slot]:
        """The sequences of the target's cache."""
        return self.store.slots

    @property
    def busy(self) -> bool:
        """Whether a generation is waiting or active."""
        return bool(self.waiting or self.active)

    # Requests

    def add(self, generation: Generation) -> None:
        """Queue a generation."""
        self._queue.join(self.waiting, generation)

    def cancel(self, generation: Generation, reason: FinishReason = "cancel") -> None:
        """End a generation now, keeping its output so far; without effect where it has ended already."""
        if generation.finish_reason is None:
            generation.finish_reason = reason
            self.retire()

    def admit(self) -> list[Generation]:
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
            self._queue.served(generation)
            rows = generation.exact_rows
            if generation.alone and rows is not None:
                scope = generation.request.cache_scope
                self._seat(generation, *self.store.take_alone(generation.history, rows.chunk, scope))
                break
            owner, scope = self._find_prefix_owner(generation), generation.request.cache_scope
            generation.prefix_owner = owner
            slot, n_past = self.store.take([] if owner else generation.history, scope, generation.stored)
            for other in self.slots:
                other.n_whole = 0
            if rows is not None and not self.active:
                n_past = self.store.cut_to_chunks(slot, n_past, rows.chunk)
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
        slot.n_begun = n_past
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
        return not self.active or not any(g.alone for g in (generation, *self.active))

    def _is_prepared(self, generation: Generation) -> bool:
        """Whether a slot can be had without holding up the active generations."""
        ids, scope = generation.history, generation.request.cache_scope
        return not self.active or self.store.is_prepared(ids, scope, generation.stored)

    def _fits(self, generation: Generation) -> bool:
        """Whether the pool has room for the generation and some growth; True if no other is active."""
        used = sum(len(g.history) for g in self.active)
        needed = len(generation.history) + self.target.n_ctx // 16
        return not self.active or used + needed <= self.target.n_ctx

    def retire(self) -> None:
        """Free the slots of ended generations; their caches are kept for requests with a common prefix."""
        for generation in [g for g in self.active if g.finish_reason is not None]:
            self._release(generation, keep=True)
            self.active.remove(generation)
        self.waiting = [g for g in self.waiting if g.finish_reason is None]

    def _release(self, generation: Generation, keep: bool = False) -> None:
        slot = self.slots[generation.seq_id]
        ids = generation.history[: generation.n_past] if keep else []
        n_whole = min(generation.n_prompt, len(ids)) if generation.alone else 0
        self.store.release(slot, ids, generation.n_prompt, n_whole)
        self.policy.forget(slot.seq_id)

    def abandon(self) -> None:
        """Cancel everything after a failed decode: the state of the caches is unknown."""
        for generation in self.active:
            generation.finish_reason = "cancel"
            self._release(generation)
        self.active.clear()
        self.store.clear()

    # Prefill

    def next_chunk(self, ready: Sequence[Generation]) -> PromptChunk | None:
        """The prompt rows to evaluate next, None where no prompt is left or there is no time for one. ready:
        the generations that have to wait meanwhile.
        """
        running = [g for g in self.active if g.finish_reason is None]
        generation = next_to_fill([g for g in running if not g.prefilled and g.prefix_owner is None])
        now = self.clock() if generation is not None else 0.0
        if generation is None or not self._may_prefill(generation, ready, now):
            return None
        history, n_past, exact = generation.history, generation.n_past, generation.exact_rows
        stop, boundary = next_stop(generation.boundaries, n_past, len(history))
        if exact is not None and not ready:
            n = min(stop - n_past, exact.chunk)
        else:
            most = min(g.time_left(now) for g in (generation, *ready))
            n_before, seconds = self._last_round
            round_seconds = (seconds if n_before else 0.0) if ready else None
            n = self.chunk_size.n_rows(n_past, stop - n_past, most, round_seconds)
        return PromptChunk(generation, n, boundary if n_past + n == stop else None)

    def observe_chunk(self, chunk: PromptChunk, first: int, seconds: float) -> None:
        """A chunk was evaluated, in so many seconds. first: the position of its first row."""
        self.chunk_size.observe(first, chunk.n_rows, seconds)
        self.store.row_seconds = self.chunk_size.row_seconds or self.store.row_seconds
        if chunk.boundary is not None:
            self.store.mark(self.slots[chunk.generation.seq_id], chunk.boundary)

    def _may_prefill(self, generation: Generation, ready: Sequence[Generation], now: float) -> bool:
        """Whether the least chunk of a prompt is predicted to end within all time limits; where it does not
        end within that of the prompt, the generation ends. The first chunk is always evaluated, so that
        repeated requests get further.
        """
        seconds = self.chunk_size.least_seconds
        if generation.n_chunks and generation.time_left(now) < seconds:
            generation.finish_reason = "length"
            return False
        return all(seconds <= g.time_left(now) for g in ready)

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

    # Rounds

    def ready(self) -> list[Generation]:
        """The generations whose prompts are evaluated."""
        return [g for g in self.active if g.prefilled and g.finish_reason is None]

    def in_round(self, ready: Sequence[Generation]) -> list[Generation]:
        """Those of the generations that decode now: they still have a slot, and time for a round."""
        decoding = [g for g in ready if g.prefilled and g.finish_reason is None]
        self._end_before_limit(decoding)
        decoding = [g for g in decoding if g.finish_reason is None]
        if decoding:
            self._offload()
        return decoding

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

    def observe_round(self, n: int, seconds: float) -> None:
        """A round of n generations took so many seconds."""
        self._last_round = n, seconds

    def make_room(self) -> bool:
        """Make room in a full cache: evict an idle one, else take the youngest generation out. True for the
        former, after which the same decode may have room.
        """
        if self.store.make_room():
            return True
        self._put_back()
        return False

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

    def time_left(self, active: Sequence[Generation]) -> float:
        """Seconds until the first time limit of these generations."""
        timed = [g for g in active if g.request.predict_seconds < inf]
        return min((g.time_left(self.clock()) for g in timed), default=inf)

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
