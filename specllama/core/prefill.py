"""Prefill: evaluates a chunk of a prompt and, after the last one, chooses the first token.

Which prompt, and how much of it, is decided in scheduler.py; the rounds that follow are in engine.py.
"""

from __future__ import annotations

from specllama.core.decoder import TargetDecoder
from specllama.core.interfaces import BatchRow, Row
from specllama.core.scheduler import PromptChunk, Scheduler
from specllama.core.sequence import Generation
from specllama.core.verify import NO_CHOICE


class Prefiller:
    """Evaluates the prompts of the generations of a scheduler."""

    def __init__(self, scheduler: Scheduler, decoder: TargetDecoder) -> None:
        self.scheduler, self.decoder = scheduler, decoder
        self.target = scheduler.target

    def evaluate(self, chunk: PromptChunk) -> None:
        """Evaluate a chunk of a prompt; after the last chunk, choose the first token."""
        started, generation, n = self.scheduler.clock(), chunk.generation, chunk.n_rows
        history, first = generation.history, generation.n_past
        last = first + n == len(history)
        batch = [
            BatchRow(history[pos], pos, generation.seq_id, last and pos == len(history) - 1)
            for pos in range(first, first + n)
        ]
        rows = self.decoder.decode(batch)
        if rows is None:
            return
        self.decoder.interrupted()
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
        scopes = request.history_scope, request.cache_scope
        policy.start(generation.seq_id, history, generation.sampler, request.mask, *scopes)

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
