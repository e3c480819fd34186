"""Scheduling: which generation has which slot, whose prompt is evaluated next, and which are in a round.

Which slot to use, and which evicted texts are kept, is decided in prefix/.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt

from specllama.core.image_rows import ImageEmbeddings, whole_runs
from specllama.core.interfaces import Context
from specllama.core.policy.base import Policy
from specllama.core.prefix.store import PrefixStore, Slot
from specllama.core.prefix.stored import CHUNK, Boundary, ahead, distances, next_stop
from specllama.core.sequence import FinishReason, Generation
from specllama.errors import SpecllamaError

QUEUE_STEP = 4  # later requests that each further text of a request lets pass


class FairQueue:
    """The order in which generations get slots. Owners take turns; requests of one owner are served first
    come, first served, but further texts of a request (`Request.turn` 1, 2, …) let some later requests pass.

    Ranks are the start tags of start-time fair queueing (Goyal et al. 1996): those of an owner grow from the
    rank that was served last, so an owner with nothing waiting is next, and none waits forever.
    """

    def __init__(self) -> None:
        self._arrived: dict[str, int] = {}  # by owner: the rank of its latest request
        self._served = 0  # the highest rank that got a slot

    def join(self, waiting: list[Generation], generation: Generation) -> None:
        """Insert the generation into `waiting` by its rank."""
        owner, turn = generation.request.owner, generation.request.turn
        if turn == 0:
            self._arrived[owner] = max(self._arrived.get(owner, 0) + 1, self._served)
        generation.queue_rank = self._arrived.get(owner, 0) + turn * QUEUE_STEP
        insort(waiting, generation, key=lambda g: g.queue_rank)

    def served(self, generation: Generation) -> None:
        """The generation got a slot."""
        self._served = max(self._served, generation.queue_rank)


CHUNK_GROWTH = 2  # at most: a chunk much larger than the one that was timed may take longer than predicted
_NOISE = 1.03  # factor on what was measured
UNSHARED_CHUNK = 1.5  # factor on the time of a prefill chunk for which no other sequence has to wait


class ChunkSize:
    """Sizes of prefill chunks in a target context, by what earlier ones took. prefill_seconds: target time of
    a chunk while other sequences wait. row_seconds: of a row of a prompt, None before one was evaluated.

    The seconds of a row are those of the last chunk, and grow with its position, since attention goes over
    all cells before it: linearly, as from the chunk before to the last one.
    """

    def __init__(self, target: Context, prefill_seconds: float) -> None:
        self.target, self.prefill_seconds = target, prefill_seconds
        self.row_seconds: float | None = None
        self._at = 0.0  # position of the last chunk's middle
        self._slope = 0.0  # seconds of a row for each further position
        self._timed_rows = CHUNK  # of the decode of which that was measured

    def observe(self, first: int, n: int, seconds: float) -> None:
        """A chunk of n rows took so many seconds. first: the position of its first row."""
        at, row = first + n / 2, seconds / n
        if self.row_seconds is not None:
            if n < CHUNK:  # in a small chunk a row costs more
                return
            if at > self._at:
                self._slope = max(0.0, (row - self.row_seconds) / (at - self._at))
        self._slope = min(self._slope, row / at)  # all of it is attention
        self.row_seconds, self._at, self._timed_rows = row, at, max(n, CHUNK)

    def _rows_within(self, first: int, seconds: float) -> float:
        """Rows from the position `first` on that are predicted to take so many seconds; inf where nothing has
        been observed.
        """
        if self.row_seconds is None or seconds == inf:
            return inf
        row, seconds = self.row_seconds + self._slope * (first - self._at), seconds / _NOISE
        # n rows take n * row + slope * n**2 / 2
        return 2 * seconds / (row + sqrt(row**2 + 2 * self._slope * seconds)) if seconds > 0 else 0.0

    def n_rows(
        self, first: int, rest: int, most_seconds: float = inf, round_seconds: float | None = None
    ) -> int:
        """Rows of the next chunk of a prompt. first: the position of its first row. rest: rows that are left.
        most_seconds: what the chunk may take. round_seconds: of the round that waits meanwhile; None: nothing
        waits.
        """
        if round_seconds is None:
            return self._closest(rest, UNSHARED_CHUNK * self.prefill_seconds, most_seconds, inf)
        # with their own round, the generations that wait see a gap of prefill_seconds at most
        longest = self.prefill_seconds - min(round_seconds, self.prefill_seconds / 2)
        fitting = self._rows_within(first, longest)
        n = self._closest(rest, self.prefill_seconds, most_seconds, fitting)
        most_rows = CHUNK_GROWTH * self._timed_rows
        return n if n <= most_rows else most_rows // CHUNK * CHUNK

    def _closest(self, rest: int, seconds: float, most: float, fitting: float) -> int:
        """With `rest` rows left, the multiple of CHUNK whose predicted time is closest to `seconds`, at most
        `most` seconds and `fitting` rows, but CHUNK at least.

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


UNUSED_SECONDS = 0.5  # after which an idle cache is moved out of the context


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """The next n_rows of a generation's prompt. boundary: at their end, None where there is none. image: that
    they are; None for text.
    """

    generation: Generation
    n_rows: int
    boundary: Boundary | None
    image: ImageEmbeddings | None = None


class Scheduler:
    """The slots of one target context and the generations that wait for them or use them.

    store: the prefix store of the context. prefill_seconds: target time of a prefill chunk while other
    sequences wait.
    """

    def __init__(self, store: PrefixStore, policy: Policy, prefill_seconds: float = 0.5) -> None:
        self.store, self.policy = store, policy
        self.target, self.clock, self.slots = store.target, store.clock, store.slots
        self.chunk_size = ChunkSize(store.target, prefill_seconds)
        self.waiting: list[Generation] = []
        self.active: list[Generation] = []
        self._queue = FairQueue()
        self._offloaded = 0.0  # time of the last offload
        self.last_round = 0, inf  # generations in it, and its seconds

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
        """Give free slots to waiting generations; end those past their limit. Returns the active ones."""
        for g in self.active:
            if g.prefix_owner is not None and not any(other is g.prefix_owner for other in self.active):
                g.n_chunks = g.prefix_owner.n_chunks
                g.prefix_owner = None
                g.prefix_owner = self._find_prefix_owner(g)
        while self.waiting and self.store.idle():
            together = not self.active or not any(g.alone for g in (self.waiting[0], *self.active))
            if not self._fits(self.waiting[0]) or not together:
                break
            generation, scope = self.waiting[0], self.waiting[0].request.cache_scope
            if self.active and not self.store.is_prepared(generation.history, scope, generation.stored):
                break  # it would hold up the active generations
            self.waiting.pop(0)
            self._queue.served(generation)
            rows = generation.exact_rows
            if generation.alone and rows is not None:
                self._assign_slot(
                    generation, *self.store.acquire_slot_alone(generation.history, rows.chunk, scope)
                )
                break
            generation.prefix_owner = owner = self._find_prefix_owner(generation)
            slot, n_past = self.store.acquire_slot(
                [] if owner else generation.history, scope, generation.stored
            )
            for other in self.slots:
                other.n_whole = 0
            if rows is not None and not self.active:
                n_past = self.store.cut_to_chunks(slot, generation.history, n_past, rows.chunk)
            elif generation.exact and self.target.rounds_prompts:
                n_past = self.store.cut_to_equal_rows(slot, n_past, len(generation.history))
            self._assign_slot(generation, slot, n_past)
        for generation in [*self.active, *self.waiting]:
            if generation.time_left(self.clock()) < 0 and (generation.n_chunks or generation.seq_id < 0):
                generation.finish_reason = "length"
        return list(self.active)

    def _assign_slot(self, generation: Generation, slot: Slot, n_past: int) -> None:
        """Give a slot to a generation, n_past of whose ids are in its cache."""
        slot.owner, slot.ids, slot.scope = generation, [], generation.request.cache_scope
        slot.kept, generation.stored = generation.request.kept, None
        generation.seq_id, generation.n_past = slot.seq_id, n_past
        rows, n_prompt = generation.exact_rows, len(generation.history)
        slot.n_begun, goes_on = n_past, n_past and not generation.exact
        slot.n_first = min(slot.n_first, max(n_past, CHUNK + 1)) if goes_on else n_prompt
        if self.store.needs_partials:
            known = generation.request.boundaries or distances(n_prompt)
            chunk = rows.chunk if rows is not None else None
            stops = ahead(known, n_past, n_prompt, chunk)
            if generation.request.images:
                kept = {whole_runs(generation.history, stop.n): stop.kind for stop in stops}
                stops = [Boundary(n, kind) for n, kind in sorted(kept.items()) if n > n_past]
            generation.boundaries = stops
        stats = generation.stats
        stats.n_reused = min(n_past, generation.n_prompt)
        stats.n_from_disk = min(stats.n_from_disk, stats.n_reused)
        generation.admitted = generation.admitted or self.clock()
        self.active.append(generation)

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
        generation = next_to_fill([g for g in self._filling() if self._is_encoded(g)])
        now = self.clock() if generation is not None else 0.0
        if generation is None or not self._may_prefill(generation, ready, now):
            return None
        history, n_past, exact = generation.history, generation.n_past, generation.exact_rows
        stop, boundary = next_stop(generation.boundaries, n_past, len(history))
        if (image := generation.next_image) is not None:
            at_end = boundary if stop == image.end else None
            return PromptChunk(generation, image.end - n_past, at_end, image.encoded())
        stop = min([stop, *(i.begin for i in generation.request.images if i.begin > n_past)])
        boundary = boundary if boundary is not None and boundary.n == stop else None
        rest = stop - n_past
        if rest >= CHUNK and stop == len(history) and self.target.rounds_prompts:
            rest -= 1  # the last row by itself, as where the same prompt is used again
        if exact is not None and not ready:
            n = min(rest, exact.chunk)
        else:
            most = min(g.time_left(now) for g in (generation, *ready))
            n_before, seconds = self.last_round
            round_seconds = (seconds if n_before else 0.0) if ready else None
            n = self.chunk_size.n_rows(n_past, rest, most, round_seconds)
        return PromptChunk(generation, n, boundary if n_past + n == stop else None)

    def _filling(self) -> list[Generation]:
        """The generations that evaluate their prompts."""
        running = [g for g in self.active if g.finish_reason is None]
        return [g for g in running if not g.prefilled and g.prefix_owner is None]

    @staticmethod
    def _is_encoded(generation: Generation) -> bool:
        """Whether the next rows of its prompt can be decoded; it ends where its image cannot be encoded."""
        try:
            image = generation.next_image
            return image is None or image.encoded() is not None
        except SpecllamaError as error:
            generation.fail(error)
            return False

    @property
    def encoding(self) -> bool:
        """Whether nothing can be decoded before an image is encoded."""
        ready, filling, joining = self.ready(), self._filling(), self.waiting and self.store.idle()
        return bool(filling) and not ready and not joining and not any(map(self._is_encoded, filling))

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
        seconds = CHUNK * (self.chunk_size.row_seconds or 0.0)
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
            same_scope = other.request.cache_scope == generation.request.cache_scope
            same_rows = other.exact or not (generation.exact and self.target.rounds_prompts)
            same = same_scope and same_rows and other.history == generation.history
            if fills and same and other.n_output == 0:
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
        now = self.clock()
        if decoding and now - self._offloaded > UNUSED_SECONDS:
            self.store.offload(now - UNUSED_SECONDS)
            self._offloaded = now
        return decoding

    def _end_before_limit(self, decoding: Sequence[Generation]) -> None:
        """End the generations whose time limit a round without drafts is predicted to exceed.

        Each has one round: a prediction that is wrong, because the machine was busy when it was measured,
        would otherwise end every text before a decode could correct it. After that a round is not expected to
        take longer than the one before it, which was as wide at least.
        """
        timed = [g for g in decoding if g.request.predict_seconds < inf and g.stats.rounds]
        if timed:
            n_before, before = self.last_round
            seconds, now = self.policy.predict(len(decoding)), self.clock()
            seconds = min(seconds, before) if len(decoding) <= n_before else seconds
            for generation in timed:
                if generation.time_left(now) < seconds:
                    generation.finish_reason = "length"

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


def next_to_fill(filling: Sequence[Generation]) -> Generation | None:
    """The generation whose prompt is evaluated next, the one with the fewest chunks so far: a short prompt
    does not wait for a long one. None without any.
    """
    return min(filling, key=lambda g: g.n_chunks, default=None)
