"""The round: draft → one decode of all sequences → verify and commit → truncate the cache → observe.

Speculative decoding (Leviathan, Kalman, Matias, arXiv 2211.17192) with verification by equality. Slots,
caches and prefill are in scheduler.py, what to draft in policy/, what to accept in verify.py.
"""

from __future__ import annotations

from specllama.core.even_drafts import make_even
from specllama.core.interfaces import BatchRow, DecodeError, MaskError, NoRoomError
from specllama.core.policy.base import Draft, Round, VerifyResult
from specllama.core.policy.tree import matching
from specllama.core.scheduler import Scheduler
from specllama.core.sequence import Generation
from specllama.core.verify import verify

NO_DRAFT = Draft()


class Engine(Scheduler):
    """Decodes many requests together in the slots of one target context. Parameters: see `Scheduler`."""

    def step(self) -> list[Generation]:
        """Admit requests, prefill one chunk, decode one round; returns the generations that may have changed.

        Raises DecodeError where llama.cpp failed: every generation is cancelled and all caches are emptied.
        """
        touched = self._admit()
        try:
            if decoding := self._prefill_next():
                self._round(decoding)
        except DecodeError:
            self._abandon()
            raise
        self._retire()
        return touched

    def _round(self, active: list[Generation]) -> None:
        clock, started, policy = self.clock, self.clock(), self.policy
        single = next((g for g in active if g.single_row), None)  # a near-tie is decided again by itself
        active = [single] if single else active
        drafts = {} if single else self._draft(active)
        if self.target.max_rollback < self.target.n_ctx:  # what is rolled back comes last
            active = sorted(active, key=lambda g: len(drafts.get(g.seq_id, NO_DRAFT).tokens))
        drafted = clock()
        batch, spans = self._batch(active, drafts)
        branches, branch_spans = self._branch_rows(active, drafts, spans[-1][1])
        n_rows = len(batch) + sum(map(len, branches))
        n_apart = 0 if single or not policy.with_alternatives else self._tree_limits(active, 0).n_branches
        rows = self._decode(batch, n_rows if single else self._width(batch, n_rows), branches, n_apart)
        if rows is None:
            return
        decoded, outcomes = clock(), []
        n_same, width = self._same_width(), self.target.n_decoded
        for g, (begin, end) in zip(active, spans, strict=True):
            draft, before = drafts.get(g.seq_id, NO_DRAFT), len(g.history)
            g.begin_round(draft.tokens, draft.sources, draft.branches, shared=width > 1 and not single)
            n_accept = verify(rows[begin:end], draft.tokens, g.choose, g.commit)
            n_branch = 0
            if len(g.history) - before > n_accept and g.finish_reason is None:
                for branch in matching(draft.branches, n_accept, g.history[-1]):
                    first, last = branch_spans[g.seq_id, branch.at, branch.tokens[0]]
                    n_branch = 1 + verify(rows[first:last], branch.tokens[1:], g.choose, g.commit)
            n_emitted = len(g.history) - before
            g.single_row = g.single_row and n_emitted == 0
            outcomes.append(VerifyResult(g.seq_id, draft, n_accept + n_branch, n_emitted, n_branch))
        sampled = clock()
        for g, outcome in zip(active, outcomes, strict=True):
            self._sync_cache(g, outcome)
            policy.committed(g.seq_id, g.history[len(g.history) - outcome.n_emitted :])
        seconds = decoded - drafted, drafted - started, clock() - started
        done = Round(n_rows, *seconds, outcomes, width - n_rows, n_same)
        policy.observe(done)
        self._last_round = len(active), done.seconds
        forced, priced = policy.forced_sources, policy.priced_sources
        for g, outcome in zip(active, outcomes, strict=True):
            g.stats.add_round(done, outcome, sampled - decoded, forced, priced)

    def _draft(self, active: list[Generation]) -> dict[int, Draft]:
        """A draft for each sequence by seq_id, limited by what fits into a decode and by its grammar."""
        limit = self._draft_limit(active)
        try:
            rooms = {g.seq_id: max(0, min(g.room, limit)) for g in active}
            drafts = self.policy.draft(rooms, self._time_left(active), self._tree_limits(active, limit))
        except MaskError:
            return {}
        except DecodeError as error:
            self._remove_model(error)
            return {}
        drafting = [g for g in active if g.seq_id in drafts]
        for g in drafting:
            g.keep_legal(drafts[g.seq_id])
        if self.target.max_rollback < self.target.n_ctx:
            make_even(drafts, [g.seq_id for g in active if g.n_past < len(g.history) - 1])
        if self.target.cuts_need_checkpoint:
            try:
                for g in (g for g in drafting if drafts[g.seq_id].tokens):
                    self._checkpoint(g)
            except NoRoomError:  # the round itself makes room
                return {}
        return drafts

    def _batch(
        self, active: list[Generation], drafts: dict[int, Draft]
    ) -> tuple[list[BatchRow], list[tuple[int, int]]]:
        """The rows of the round, and the range (begin, end) of each generation's logits among the outputs."""
        batch: list[BatchRow] = []
        spans, n = [], 0
        for g in active:
            tokens, last = drafts.get(g.seq_id, NO_DRAFT).tokens, len(g.history) - 1
            batch += [BatchRow(g.history[pos], pos, g.seq_id, False) for pos in range(g.n_past, last)]
            batch.append(BatchRow(g.history[last], last, g.seq_id, True))
            batch += [BatchRow(token, last + j, g.seq_id, True) for j, token in enumerate(tokens, 1)]
            spans.append((n, n + 1 + len(tokens)))
            n += 1 + len(tokens)
        return batch, spans

    def _branch_rows(
        self, active: list[Generation], drafts: dict[int, Draft], n: int
    ) -> tuple[list[list[BatchRow]], dict[tuple[int, int, int], tuple[int, int]]]:
        """The rows of the branches, and the range (begin, end) of their logits among the outputs, by
        sequence, index and first token. n: outputs before them.
        """
        found: list[list[BatchRow]] = []
        spans = {}
        for g in active:
            for branch in drafts.get(g.seq_id, NO_DRAFT).branches:
                first = len(g.history) + branch.at
                found.append([BatchRow(t, first + j, g.seq_id, True) for j, t in enumerate(branch.tokens)])
                spans[g.seq_id, branch.at, branch.tokens[0]] = n, n + len(branch.tokens)
                n += len(branch.tokens)
        return found, spans

    def _sync_cache(self, generation: Generation, outcome: VerifyResult) -> None:
        """Restore the invariant between rounds: the cache holds the history without its last token, and
        without the tokens that were accepted in a branch.
        """
        before = len(generation.history) - outcome.n_emitted
        keep = min(len(generation.history) - 1, before + outcome.n_accept - outcome.n_branch)
        cached = before + len(outcome.draft.tokens)
        generation.n_past = self.target.truncate(generation.seq_id, keep) if cached > keep else cached
        self._check_prefilled(generation)
