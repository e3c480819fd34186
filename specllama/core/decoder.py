"""The decodes of the target: what fits into one, how many rows it has, and what is evicted where the cache
is full.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from specllama.core.image_rows import ImageEmbeddings
from specllama.core.interfaces import BatchRow, NoRoomError, Row
from specllama.core.policy.base import Draft, RoundLimits
from specllama.core.sampling.params import UNTIL_CONTEXT_FULL, SamplingParams
from specllama.core.scheduler import PromptChunk, Scheduler
from specllama.core.sequence import Generation, Request
from specllama.core.verify import NO_CHOICE
from specllama.errors import ContextLengthError, UsageError, option


class TargetDecoder:
    """Decodes for the generations of a scheduler, prompts too. max_rows, draft_tree: see `engine.Engine`."""

    def __init__(self, scheduler: Scheduler, max_rows: int | None, draft_tree: int) -> None:
        self.scheduler, self.target = scheduler, scheduler.target
        self.max_rows, self.draft_tree = max_rows, draft_tree
        self._last_width, self._n_same = 0, 0  # of the last round's decode, and rounds of it in a row

    def decode(
        self,
        batch: list[BatchRow],
        n_rows: int = 0,
        branches: Sequence[Sequence[BatchRow]] = (),
        n_apart: int = 0,
    ) -> NDArray[np.float32] | None:
        """Logits of the outputs, shape (n_outputs, n_vocab). Other parameters: see `Context.decode`. None
        where the cache has no room and the scheduler has taken a generation out instead.
        """
        while True:
            try:
                if not n_apart:
                    return self.target.decode(batch, n_rows, n_rows)
                return self.target.decode(batch, n_rows, n_rows, branches, n_apart)
            except NoRoomError:
                if not self.scheduler.make_room():
                    return None

    def decode_image(
        self, generation: Generation, image: ImageEmbeddings, output: bool
    ) -> NDArray[np.float32] | None:
        """See `Context.decode_image`. None where the generation goes on later, from fewer ids."""
        first, seq_id = generation.n_past, generation.seq_id
        while True:
            try:
                return self.target.decode_image(seq_id, first, image, output)
            except NoRoomError:
                has_room = self.scheduler.make_room()
                if generation.seq_id == seq_id and generation in self.scheduler.active:
                    generation.n_past = min(first, self.target.n_past(seq_id))
                if not has_room or generation.n_past < first:
                    return None

    def checkpoint(self, generation: Generation) -> None:
        """Save the state before a draft, where the memory cannot roll back, after evaluating all but the last
        token. Raises NoRoomError.
        """
        pending = generation.history[generation.n_past : -1]
        while pending:
            chunk, pending = pending[: self.target.n_batch], pending[self.target.n_batch :]
            n = generation.n_past
            self.target.decode([BatchRow(t, n + i, generation.seq_id, False) for i, t in enumerate(chunk)])
            generation.n_past += len(chunk)
            self.interrupted()
        self.target.checkpoint(generation.seq_id)

    def interrupted(self) -> None:
        """Other decodes than those of rounds were made."""
        self._last_width = 0

    def count_same_width(self) -> int:
        """Count the decode of a round; returns how many of its width there were in a row, with this one."""
        width = self.target.n_decoded
        self._n_same = self._n_same + 1 if width == self._last_width else 1
        self._last_width = width
        return self._n_same

    def draft_limit(self, active: Sequence[Generation]) -> int:
        """Most draft tokens per generation that fit into one decode and that the memory can roll back."""
        max_rows = min(self.target.n_outputs_max, self.max_rows or self.target.n_outputs_max)
        pending = max(len(g.history) - g.n_past for g in active)
        per_batch = self.target.n_batch // len(active) - pending
        return min((max_rows - len(active)) // len(active), per_batch, self.target.max_rollback)

    def limits(self, active: Sequence[Generation], limit: int) -> RoundLimits:
        """The limits of the round. limit: most draft tokens per generation. Where all decodes of a text have
        one width, rows depend on where their cells lie, so it has no branches.
        """
        n_recomputed = sum(len(g.history) - 1 - g.n_past for g in active)
        if any(g.exact_rows for g in active):
            width = self._held_width(active, n_recomputed)
            shadows = not any(g.alone or g.n_draft_max == 0 for g in active)
            return RoundLimits(n_recomputed=n_recomputed, width=width, shadows=shadows)
        n_branches = min(self.draft_tree, self.target.n_branches // len(active))
        if not n_branches:
            return RoundLimits(n_recomputed=n_recomputed)
        at_once = self.target.n_ubatch - len(active) - n_recomputed
        n_tokens = min(limit, max(0, min(self._room(), at_once)) // len(active))
        return RoundLimits(n_branches, n_tokens, n_recomputed)

    def _held_width(self, active: Sequence[Generation], n_recomputed: int) -> int:
        """The rows of the decode: those of the text, or as many as the policy wants for several, where they
        fit.
        """
        if len(active) == 1 and (rows := active[0].exact_rows) is not None:
            return rows.width
        n_rows, target = len(active) + n_recomputed, self.target
        most = min(target.n_outputs_max, target.n_batch, self._room(), n_rows + target.max_rollback)
        return max(n_rows, min(self.scheduler.policy.total_width(len(active)), most))

    def _room(self) -> int:
        """Cells that the active generations leave free."""
        return self.target.n_ctx - sum(len(g.history) for g in self.scheduler.active)

    def prefill(self, chunk: PromptChunk) -> None:
        """Evaluate a chunk of a prompt; after the last chunk, choose the first token."""
        started, generation, n = self.scheduler.clock(), chunk.generation, chunk.n_rows
        history, first = generation.history, generation.n_past
        last = first + n == len(history)
        batch = [
            BatchRow(history[pos], pos, generation.seq_id, last and pos == len(history) - 1)
            for pos in range(first, first + n)
        ]
        if chunk.image is not None:
            rows = self.decode_image(generation, chunk.image, last)
        else:
            rows = self.decode(batch)
        if rows is None:
            return
        self.interrupted()
        generation.n_past += n
        generation.n_chunks += 1
        stats = generation.stats
        stats.n_evaluated = min(generation.n_past, generation.n_prompt) - stats.n_reused
        if last:
            self._begin(generation, rows[0])
        took = self.scheduler.clock() - started
        self.scheduler.observe_chunk(chunk, first, took)
        stats.encode_seconds += took
        if last:
            self._share_prefix(generation, rows[0])

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
            generation.first_token = self.scheduler.clock()
            generation.stats.ttft_seconds = generation.first_token - generation.submitted
        request, history, policy = generation.request, generation.history, self.scheduler.policy
        known = request.history_scope, request.cache_scope, request.prediction, generation.n_output
        policy.start(generation.seq_id, history, generation.sampler, request.mask, *known)

    def _share_prefix(self, prefix_owner: Generation, row: Row) -> None:
        """Share the cells of the prompt, and `row`, with the generations that wait for the same prompt. Where
        the memory cannot share cells, they evaluate the prompt themselves.
        """
        slots = self.scheduler.slots
        for generation in self.scheduler.active:
            if generation.prefix_owner is not prefix_owner:
                continue
            generation.prefix_owner = None
            generation.n_past = self.target.copy(prefix_owner.seq_id, generation.seq_id, prefix_owner.n_past)
            partials = slots[prefix_owner.seq_id].partials if generation.n_past else []
            slots[generation.seq_id].partials = list(partials)
            generation.stats.n_reused = generation.n_past
            if generation.n_past == len(generation.history) and generation.finish_reason is None:
                self._begin(generation, row)


# Drafts of several texts on recurrent states, which llama.cpp rolls back only where a decode ends with them.
#
# It computes texts with equally many rows together, those with fewer before, and may move a state afterwards,
# without the earlier ones that a rollback needs.


def make_even(drafts: Mapping[int, Draft], without: Collection[int] = ()) -> None:
    """Truncate all drafts to the length that keeps most tokens. Shorter drafts are dropped, and so are those
    of the sequences `without`, which decode other rows as well.
    """
    lengths = {seq: 0 if seq in without else len(draft.tokens) for seq, draft in drafts.items()}
    length = max(lengths.values(), key=lambda n: (n * sum(m >= n for m in lengths.values()), n), default=0)
    for seq, draft in drafts.items():
        n = length if lengths[seq] >= length else 0
        draft.n_discarded += len(draft.tokens) - n
        draft.cut(n)


def ends_ignored(params: SamplingParams) -> bool:
    """Whether end tokens are never chosen."""
    return params.ignore_eos or params.max_tokens == UNTIL_CONTEXT_FULL


def with_forced_limit(request: Request, n_vocab: int, n_ctx: int) -> Request:
    """The request with max_tokens limited to the number of forced ids.

    Raises UsageError for invalid ids and for a grammar together with forced ids, ContextLengthError where
    prompt and ids do not fit into the context.
    """
    forced, params = request.forced, request.params
    if forced is None:
        return request
    if request.mask is not None:
        raise UsageError("a given text cannot be combined with a grammar")
    if not forced:
        raise UsageError("the given text is empty")
    if not all(isinstance(i, int) and 0 <= i < n_vocab for i in forced):
        raise UsageError(f"token ids of a given text must be from 0 to {n_vocab - 1}")
    n_prompt, n = len(request.prompt), len(forced)
    n = min(n, params.max_tokens) if params.max_tokens > 0 else n
    if n_prompt + n > n_ctx:
        raise ContextLengthError(
            f"the prompt has {n_prompt} tokens, the given text {n}, and the context {n_ctx}",
            f"use {option('n_ctx', n_prompt + n)} or more, or write fewer tokens of it",
        )
    return replace(request, params=replace(params, max_tokens=n))


def context_length_error(
    n_prompt: int, n_ctx: int, at_least: bool = False, n_ctx_train: int = 0
) -> ContextLengthError:
    """The error for a prompt of `n_prompt` tokens, or at least as many, which the context cannot hold.
    n_ctx_train: tokens of the context in training, 0 where that is not known.
    """
    n_needed = n_prompt + (0 if at_least else 256)
    hint = f"use {option('n_ctx', n_needed)} or more"
    if at_least:
        uncounted = "its tokens were not counted, and may be several times as many"
        hint = f"{option('n_ctx', n_needed)} is the least that could hold it: {uncounted}"
    if 0 < n_ctx_train < n_needed:
        hint += f"; the model was trained on {n_ctx_train} tokens: beyond that answers get worse"
    return ContextLengthError(
        f"the prompt has {'at least ' if at_least else ''}{n_prompt} tokens, which exceeds the available "
        f"context size of {n_ctx}",
        hint,
        {"n_prompt_tokens": n_prompt, "n_ctx": n_ctx},
    )
