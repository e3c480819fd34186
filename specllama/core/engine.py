"""Slots and rounds: draft, one decode of all rows, verify each, commit, cut, observe.

Knows contexts, drafters and policies by their interfaces; no files, no threads; the clock is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import BatchRow, Context, DecodeError, MaskError, NoRoomError, Row
from specllama.core.policy.base import Draft, Policy, Round, VerifyResult
from specllama.core.sampling.sampler import Sampler
from specllama.core.scheduler import FairQueue, Slot, empty, next_to_fill, offload_idle, take_slot
from specllama.core.sequence import FinishReason, Generation, Request, ends_ignored, with_forced_limit
from specllama.core.verify import NO_CHOICE, verify
from specllama.errors import ContextLengthError, EngineError, option

NO_DRAFT = Draft()
CHUNK = 64  # rows: kernels evaluate so many alike, whatever multiple of it a decode has
ALONE = 1.5
UNUSED_SECONDS = 0.5  # after which a cache makes room for those that are decoded
MOST_PENDING = 16  # rows that a memory may have lost in a cut before they are prefilled in chunks again


class Engine:
    """Decodes many requests together over the slots of one target context.

    end_ids: tokens that end a generation. suppressed: tokens that are never chosen. epsilon: logits by which
    a row of a batch may differ from the same row decoded alone (0: bit-equal; None: not measured, near-ties
    are not looked for). most_rows: of a decode with drafts, where wider ones are rounded in another way;
    None: any number. exact: always decide near-ties on rows decoded alone. prefill_seconds: how long a chunk
    should take that others wait for; ALONE times that where nobody does, and only a cancel would. room:
    whether so many bytes may be taken for a cache that nobody uses; without it caches stay where they are.
    draft_failed: the draft model raised DecodeError; the policy was told to go on without it.
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
        most_rows: int | None = None,
        exact: bool = False,
        prefill_seconds: float = 0.5,
        room: Callable[[int], bool] | None = None,
    ) -> None:
        self.target, self.policy, self.clock = target, policy, clock
        self.end_ids, self.suppressed = frozenset(end_ids), tuple(suppressed)
        self.epsilon, self.exact, self.prefill_seconds = epsilon, exact, prefill_seconds
        self.most_rows = most_rows
        self.room, self._looked = room, 0.0
        self.slots = [Slot(i) for i in range(target.n_seq_max)]
        self.waiting: list[Generation] = []
        self.line = FairQueue()
        self.active: list[Generation] = []
        self.notices: list[str] = []
        self.draft_failed = False
        self._row_seconds: float | None = None  # of a row of prefill, as last measured

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.active)

    def submit(self, request: Request) -> Generation:
        """Queue a request. Raises ContextLengthError where the prompt leaves no room for one token, or for
        the text that is given, UsageError for one that cannot be written.
        """
        n_prompt, n_ctx = len(request.prompt), self.target.n_ctx
        if n_prompt == 0:
            raise EngineError("a prompt needs at least one token")
        if n_prompt >= n_ctx:
            raise ContextLengthError(
                f"the prompt has {n_prompt} tokens and the context {n_ctx}",
                f"use {option('n_ctx', n_prompt + 256)} or more",
                {"n_prompt_tokens": n_prompt, "n_ctx": n_ctx},
            )
        request = with_forced_limit(request, self.target.n_vocab, n_ctx)
        forbidden = [*self.suppressed, *(self.end_ids if ends_ignored(request.params) else ())]
        chooser = Sampler(request.params, request.seed, self.target.n_vocab, forbidden)
        end_ids = self.end_ids if request.forced is None else ()
        generation = Generation(
            request, chooser, end_ids, n_ctx, self.epsilon or 0.0, self.exact, submitted=self.clock()
        )
        generation.history = list(request.prompt)
        generation.stats.n_prompt = n_prompt
        self.line.join(self.waiting, generation)
        return generation

    def cancel(self, generation: Generation, reason: FinishReason = "cancel") -> None:
        """End a generation now; its text so far stays. Nothing happens where it has ended already."""
        if generation.finish_reason is None:
            generation.finish_reason = reason
            self._retire()

    def step(self) -> list[Generation]:
        """Admit, prefill one chunk, decode one round; the generations that went on or ended.

        Raises DecodeError where llama.cpp failed; every generation is cancelled then and all caches are
        emptied.
        """
        self._admit()
        for generation in [*self.active, *self.waiting]:
            deadline = generation.request.deadline
            if deadline is not None and self.clock() > deadline:
                generation.finish_reason = "cancel"
        touched = list(self.active)
        try:
            going = [g for g in self.active if g.finish_reason is None]
            filling = next_to_fill([g for g in going if not g.prefilled and g.prefix_owner is None])
            ready = [g for g in going if g.prefilled]
            if filling is not None:
                self._prefill(filling, ready)
            decoding = [g for g in ready if g.prefilled and g.finish_reason is None]
            if decoding:
                self._make_room()
                self._round(decoding)
        except DecodeError:
            self._abandon()
            raise
        self._retire()
        return touched

    def _make_room(self) -> None:
        """Every now and then, what nobody uses is put aside."""
        now = self.clock()
        if self.room is not None and now - self._looked > UNUSED_SECONDS:
            offload_idle(self.target, self.slots, now - UNUSED_SECONDS, self.room)
            self._looked = now

    def _round(self, active: list[Generation]) -> None:
        """One round: draft → decode → verify and commit → cut → observe."""
        clock, started = self.clock, self.clock()
        alone = next((g for g in active if g.alone), None)
        active = [alone] if alone else active
        drafts = {} if alone else self._draft(active)
        drafted = clock()
        batch, spans = self._batch(active, drafts)
        rows = self._decode(batch)
        if rows is None:
            return
        decoded = clock()
        outcomes = []
        for generation, (begin, end) in zip(active, spans, strict=True):
            draft, before = drafts.get(generation.seq_id, NO_DRAFT), len(generation.history)
            generation.shared = len(batch) > 1 and not alone
            generation.drafted, generation.sources = draft.tokens, draft.sources
            n_accept = verify(rows[begin:end], draft.tokens, generation.choose, generation.commit)
            generation.alone = generation.alone and len(generation.history) == before
            generation.stats.drafted(draft.sources, n_accept, draft.n_discarded, self.policy.forced_sources)
            outcomes.append(
                VerifyResult(generation.seq_id, draft, n_accept, len(generation.history) - before)
            )
        sampled = clock()
        for generation, outcome in zip(active, outcomes, strict=True):
            self._settle(generation, len(outcome.draft.tokens), outcome.n_emitted)
        done = Round(len(batch), decoded - drafted, drafted - started, clock() - started, outcomes)
        self.policy.observe(done)
        self._account(active, done, sampled - decoded)

    def _draft(self, active: list[Generation]) -> dict[int, Draft]:
        most = min(self.target.n_outputs_max, self.most_rows or self.target.n_outputs_max)
        budget = (most - len(active)) // len(active)
        pending = max(len(g.history) - g.n_past for g in active)
        budget = min(budget, self.target.n_batch // len(active) - pending, self.target.max_rollback)
        rooms = {g.seq_id: max(0, min(g.room, budget)) for g in active}
        try:
            drafts = self.policy.draft(rooms)
        except MaskError:
            return {}
        except DecodeError as error:
            for drafter in [d for d in self.policy.drafters if d.priced]:
                self.policy.remove_drafter(drafter.name)
            self.draft_failed = True
            self.notices.append(f"the draft model failed ({error}); going on without it")
            return {}
        for generation in active:
            self._keep_legal(generation, drafts.get(generation.seq_id, NO_DRAFT))
        if self.target.cuts_need_checkpoint:
            try:
                for generation in active:
                    if drafts.get(generation.seq_id, NO_DRAFT).tokens:
                        self._catch_up(generation)
            except NoRoomError:  # the round itself makes room
                return {}
        return drafts

    def _keep_legal(self, generation: Generation, draft: Draft) -> None:
        """Leave out what the generation's grammar would refuse."""
        mask = generation.request.mask
        if mask is None or not draft.tokens:
            return
        try:
            n = mask.legal(draft.tokens)
        except MaskError:  # the choice that follows says so
            n = 0
        draft.n_discarded += len(draft.tokens) - n
        del draft.tokens[n:], draft.sources[n:]

    def _catch_up(self, generation: Generation) -> None:
        """Before rows that may have to be taken back from a memory that cannot: all but the last token, then
        a mark.
        """
        missing = generation.history[generation.n_past : -1]
        while missing:
            chunk, missing = missing[: self.target.n_batch], missing[self.target.n_batch :]
            n = generation.n_past
            self.target.decode([BatchRow(t, n + i, generation.seq_id, False) for i, t in enumerate(chunk)])
            generation.n_past += len(chunk)
        self.target.checkpoint(generation.seq_id)

    def _batch(
        self, active: list[Generation], drafts: dict[int, Draft]
    ) -> tuple[list[BatchRow], list[tuple[int, int]]]:
        """The rows of a round, and for each generation the range of its logits among the outputs."""
        batch: list[BatchRow] = []
        spans, n = [], 0
        for g in active:
            tokens = drafts.get(g.seq_id, NO_DRAFT).tokens
            last = len(g.history) - 1
            for pos in range(g.n_past, last):
                batch.append(BatchRow(g.history[pos], pos, g.seq_id, False))
            batch.append(BatchRow(g.history[last], last, g.seq_id, True))
            for j, token in enumerate(tokens, 1):
                batch.append(BatchRow(token, last + j, g.seq_id, True))
            spans.append((n, n + 1 + len(tokens)))
            n += 1 + len(tokens)
        return batch, spans

    def _settle(self, generation: Generation, n_draft: int, n_emitted: int) -> None:
        """Bring the cache back to the invariant and tell the drafters what was committed."""
        history = generation.history
        cached = len(history) - n_emitted + n_draft
        keep = len(history) - 1
        generation.n_past = self.target.truncate(generation.seq_id, keep) if cached > keep else cached
        generation.prefilled = keep - generation.n_past < MOST_PENDING
        self.policy.committed(generation.seq_id, history[len(history) - n_emitted :])

    def _account(self, active: list[Generation], done: Round, sampling: float) -> None:
        for generation in active:
            stats = generation.stats
            stats.rounds += 1
            stats.decode_seconds += done.seconds
            stats.verify_seconds += done.verify_seconds
            stats.draft_seconds += done.draft_seconds
            stats.sampling_seconds += sampling
            count, seconds = stats.round_seconds.get(done.n_rows, (0, 0.0))
            stats.round_seconds[done.n_rows] = (count + 1, seconds + done.verify_seconds)
            if done.plain:
                stats.plain_rounds += 1
                stats.plain_seconds += done.seconds - done.draft_seconds

    def _prefill(self, generation: Generation, decoding: Sequence[Generation]) -> None:
        """Evaluate a chunk of the prompt; with its last one the first token is chosen. decoding: who waits
        for it.
        """
        started, history = self.clock(), generation.history
        seconds = self.prefill_seconds if decoding else ALONE * self.prefill_seconds
        n = self._chunk(len(history) - generation.n_past, seconds)
        last = generation.n_past + n == len(history)
        batch = [
            BatchRow(history[pos], pos, generation.seq_id, last and pos == len(history) - 1)
            for pos in range(generation.n_past, generation.n_past + n)
        ]
        rows = self._decode(batch)
        if rows is None:
            return
        generation.n_past += n
        generation.n_chunks += 1
        if last:
            self._begin(generation, rows[0])
        took = self.clock() - started
        if n >= CHUNK or self._row_seconds is None:  # few rows cost more each than those of a chunk
            self._row_seconds = took / n
        generation.stats.encode_seconds += took
        if last:
            self._join(generation, rows[0])

    def _begin(self, generation: Generation, row: Row) -> None:
        """The first token, by the row behind the last one of the prompt."""
        generation.shared = False
        generation.drafted = ()
        token = generation.choose(row)
        if token == NO_CHOICE:  # a grammar that has ended
            return
        generation.commit(token)
        generation.prefilled = True
        if generation.first_token == 0:
            generation.first_token = self.clock()
            generation.stats.ttft_seconds = generation.first_token - generation.submitted
        request, history = generation.request, generation.history
        self.policy.start(generation.seq_id, history, generation.chooser, request.mask, request.owner)

    def _join(self, prefix_owner: Generation, row: Row) -> None:
        """Those of the same prompt share its cells and its last row, which is the same for all. A memory that
        shares nothing leaves them to evaluate it themselves.
        """
        for generation in self.active:
            if generation.prefix_owner is not prefix_owner:
                continue
            generation.prefix_owner = None
            generation.n_past = self.target.copy(prefix_owner.seq_id, generation.seq_id, prefix_owner.n_past)
            generation.stats.n_reused = generation.n_past
            if generation.n_past == len(generation.history) and generation.finish_reason is None:
                self._begin(generation, row)

    def _find_prefix_owner(self, generation: Generation) -> Generation | None:
        """Who is evaluating the same prompt; at its end the cells are shared."""
        for other in self.active:
            fills = other is not generation and not other.prefilled and other.prefix_owner is None
            if fills and other.n_output == 0 and other.history == generation.history:
                return other
        return None

    def _chunk(self, rest: int, seconds: float) -> int:
        """Rows of the next prefill decode of `rest`: the multiple of CHUNK that is predicted to come closest.

        The last decode has CHUNK rows and what is left over (that alone where it is dear beside them),
        however quick the machine is at the moment: a row is rounded by the decode that it is in, and the same
        prompt must give the same logits.
        """
        most = self.target.n_batch
        if rest < 2 * CHUNK or most < 2 * CHUNK:
            n, even = min(rest, most), self.target.row_multiple
            return n - n % even if n > even else n
        whole = (rest // CHUNK - 1) * CHUNK
        fits = CHUNK
        if self._row_seconds is not None:
            fits = max(1, round(seconds / (self._row_seconds * CHUNK))) * CHUNK
        return min(whole, fits, most // CHUNK * CHUNK)

    def _decode(self, batch: list[BatchRow]) -> NDArray[np.float32] | None:
        """Decode, giving up idle caches for room; None where a generation had to be put back or ended
        instead.
        """
        while True:
            try:
                return self.target.decode(batch)
            except NoRoomError:
                idle = [s for s in self.slots if s.owner is None and s.ids and s.saved is None]
                if idle:
                    empty(self.target, min(idle, key=lambda s: s.last_used))
                    continue
                self._put_back()
                return None

    def _put_back(self) -> None:
        """Without room the youngest generation waits for a slot again; the only one has filled the
        context.
        """
        youngest = self.active[-1]
        if len(self.active) == 1:
            youngest.finish_reason = "context"
            return
        self._release(youngest)
        youngest.n_past, youngest.prefilled, youngest.place, youngest.prefix_owner = 0, False, 0, None
        self.active.remove(youngest)
        self.waiting.insert(0, youngest)

    def _has_room(self, generation: Generation) -> bool:
        """Whether the pool takes the generation and some growth beside what is active; alone it always may
        try.
        """
        used = sum(len(g.history) for g in self.active)
        needed = len(generation.history) + self.target.n_ctx // 16
        return not self.active or used + needed <= self.target.n_ctx

    def _admit(self) -> None:
        for orphan in self.active:
            if orphan.prefix_owner is not None and not any(g is orphan.prefix_owner for g in self.active):
                orphan.prefix_owner = None
                orphan.prefix_owner = self._find_prefix_owner(orphan)
        while self.waiting and (idle := [s for s in self.slots if s.owner is None]):
            if not self._has_room(self.waiting[0]):
                return
            generation = self.waiting.pop(0)
            generation.prefix_owner = self._find_prefix_owner(generation)
            cached = (
                [] if generation.prefix_owner else [(g.seq_id, g.history[: g.n_past]) for g in self.active]
            )
            ids = [] if generation.prefix_owner else generation.history
            slot, n_past = take_slot(self.target, idle, ids, cached)
            slot.owner, slot.ids, slot.saved = generation, [], None
            generation.seq_id, generation.n_past = slot.seq_id, n_past
            generation.stats.n_reused = min(n_past, generation.n_prompt)
            generation.admitted = generation.admitted or self.clock()
            self.active.append(generation)

    def _release(self, generation: Generation, keep: bool = False) -> None:
        slot = self.slots[generation.seq_id]
        slot.owner, slot.last_used = None, self.clock()
        slot.ids = generation.history[: generation.n_past] if keep else []
        if not keep:
            self.target.truncate(slot.seq_id, 0)
        self.policy.forget(slot.seq_id)

    def _retire(self) -> None:
        """Free the slots of what has ended; their caches stay for the next request that begins alike."""
        for generation in [g for g in self.active if g.finish_reason is not None]:
            self._release(generation, keep=True)
            self.active.remove(generation)
        self.waiting = [g for g in self.waiting if g.finish_reason is None]

    def _abandon(self) -> None:
        """After a failed decode nothing is known of the caches."""
        for generation in self.active:
            generation.finish_reason = "cancel"
            self._release(generation)
        self.active.clear()
        for slot in self.slots:
            empty(self.target, slot)
