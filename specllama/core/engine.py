"""The round: draft → one decode of all sequences → verify and commit → truncate the cache → observe.

Speculative decoding (Leviathan, Kalman, Matias, arXiv 2211.17192) with verification by equality. Which
generations are in a round is decided in scheduler.py, what to draft in policy/, what to accept in verify.py;
prompts are evaluated in decoder.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from math import inf

from specllama.core.decoder import (
    TargetDecoder,
    context_length_error,
    ends_ignored,
    make_even,
    with_forced_limit,
)
from specllama.core.exact import ExactRows
from specllama.core.image_rows import FIRST_PLACEHOLDER, without_images
from specllama.core.interfaces import BatchRow, Context, DecodeError, MaskError, NoRoomError
from specllama.core.policy.base import CHAINS, Draft, Policy, Round, VerifyResult, matching
from specllama.core.prefix.store import PrefixStore
from specllama.core.prefix.stored import CachedSequence
from specllama.core.sampling.sampler import KeyedSampler
from specllama.core.scheduler import Scheduler
from specllama.core.sequence import FinishReason, Generation, Request
from specllama.core.verify import verify
from specllama.errors import EngineError

MAX_PENDING = 16  # ids lost by a truncation that a round evaluates again; more, and images, are prefilled
NO_DRAFT = Draft()


class Engine:
    """Decodes many requests together in the slots of one target context.

    end_ids: tokens that end a generation. suppressed: tokens that are never chosen. epsilon: how much a logit
    of a batched row may differ from the same row decoded by itself (0: bit-equal; None: not measured,
    near-ties are ignored). max_rows: limit of a decode with drafts, where wider ones are rounded differently;
    None: no limit. exact: the text must not depend on drafts: all near-ties are decided on rows decoded by
    themselves or, with exact_rows, all decodes of a text have one width. exact_rows: None where rows are
    bit-equal; the texts of such requests are decoded one after another. text_chunk: rows of a decode of a
    prompt where all texts have one width, chosen by the policy for each; None: widths may change from decode
    to decode. prefill_seconds: see `Scheduler`. draft_tree: most branches of each draft. room, cache_budget,
    max_partials: see `PrefixStore`. scheduler: the generations, the slots and the policy, which may be
    replaced between generations. slots: the sequences of the target's cache. active: the generations that
    have one, the youngest last. draft_failed: the draft model raised DecodeError and was removed; `notices`
    has a message.
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
        draft_tree: int = 0,
        text_chunk: int | None = None,
    ) -> None:
        self.target = target
        self.end_ids, self.suppressed = frozenset(end_ids), tuple(suppressed)
        self.epsilon, self.exact, self.exact_rows = epsilon, exact, exact_rows
        self.text_chunk = text_chunk
        store = PrefixStore(target, clock, room, cache_budget, max_partials)
        self.scheduler = Scheduler(store, policy, prefill_seconds)
        self.slots, self.active = store.slots, self.scheduler.active
        self.notices: list[str] = []
        self.draft_failed = False
        self.decoder = TargetDecoder(self.scheduler, max_rows, draft_tree)
        self._limits = CHAINS  # of the last round

    @property
    def busy(self) -> bool:
        """Whether a generation is waiting or active."""
        return self.scheduler.busy

    def submit(self, request: Request, stored: CachedSequence | None = None) -> Generation:
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
        params, barred = request.params, (*self.end_ids, *request.params.stop_token_ids)
        images = request.prompt if request.images else ()
        n_text = len(without_images(images)) if images else n_prompt
        until = n_text + params.min_tokens if params.min_tokens else 0
        sampler = KeyedSampler(
            params,
            request.seed,
            self.target.n_vocab,
            forbidden,
            infill,
            barred,
            until,
            request.breakers,
            prompt=images,
        )
        end_ids = self.end_ids if request.forced is None else ()
        exact, epsilon = self.exact or request.exact, self.epsilon or 0.0
        rows = self.exact_rows if exact else None
        alone = rows is not None
        if not exact and self.text_chunk is not None:
            width, n_max = self.scheduler.policy.text_width(request.params.greedy), request.draft_max
            most = min(self.target.n_outputs_max, self.target.n_batch, self.target.max_rollback + 1)
            most = min(most, 1 + n_max) if n_max is not None else most
            rows = ExactRows(min(width, most) if request.speculate else 1, self.text_chunk)
        if rows is not None:
            n_ctx -= max(0, rows.width - 1 - self.target.n_spare)
        if alone:  # nothing is left to decide again
            exact, epsilon = False, 0.0
        generation = Generation(
            request,
            sampler,
            end_ids,
            n_ctx,
            epsilon,
            exact,
            submitted=self.scheduler.clock(),
            exact_rows=rows,
            alone=alone,
        )
        generation.history, generation.stored = list(request.prompt), stored
        generation.stats.n_prompt, generation.stats.n_prediction = n_prompt, len(request.prediction)
        generation.stats.exact_width = rows.width if rows is not None else None
        self.scheduler.add(generation)
        return generation

    def cancel(self, generation: Generation, reason: FinishReason = "cancel") -> None:
        """End a generation now, keeping its output so far; without effect where it has ended already."""
        self.scheduler.cancel(generation, reason)

    def step(self) -> list[Generation]:
        """Admit requests, prefill one chunk, decode one round; returns the generations that may have changed.

        Raises DecodeError where llama.cpp failed: every generation is cancelled and all caches are emptied.
        """
        scheduler = self.scheduler
        touched = scheduler.admit()
        ready = scheduler.ready()
        try:
            if (chunk := scheduler.next_chunk(ready)) is not None:
                self.decoder.prefill(chunk)
            if decoding := scheduler.in_round(ready):
                self._round(decoding)
        except DecodeError:
            scheduler.abandon()
            raise
        scheduler.retire()
        return touched

    def _round(self, active: list[Generation]) -> None:
        clock, policy, decoder = self.scheduler.clock, self.scheduler.policy, self.decoder
        started = clock()
        single = next((g for g in active if g.single_row), None)  # a near-tie is decided again by itself
        active = [single] if single else active
        self._limits = CHAINS
        drafts = {} if single else self._draft(active)
        if self.target.max_rollback < self.target.n_ctx:  # what is rolled back comes last
            active = sorted(active, key=lambda g: len(drafts.get(g.seq_id, NO_DRAFT).tokens))
        drafted = clock()
        batch, spans = self._batch(active, drafts)
        branches, branch_spans = self._branch_rows(active, drafts, spans[-1][1])
        n_rows = len(batch) + sum(map(len, branches))
        n_apart = self._limits.n_branches if policy.with_alternatives else 0
        rows = decoder.decode(batch, max(n_rows, self._limits.width), branches, n_apart)
        if rows is None:
            return
        decoded, outcomes = clock(), []
        n_same, width = decoder.count_same_width(), self.target.n_decoded
        for g, (begin, end) in zip(active, spans, strict=True):
            draft, before = drafts.get(g.seq_id, NO_DRAFT), len(g.history)
            shared = width > 1 and not single and (g.exact_rows is None or len(active) > 1)
            g.begin_round(draft.tokens, draft.sources, draft.branches, shared)
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
        self._update_width(active)
        self.scheduler.last_round = len(active), done.seconds
        sources = policy.forced_sources, policy.model_sources, policy.predicting_sources
        for g, outcome in zip(active, outcomes, strict=True):
            g.stats.add_round(done, outcome, sampled - decoded, *sources)

    def _update_width(self, active: list[Generation]) -> None:
        """Let the policy change the width of a text that may have another one."""
        for g in active if len(active) == 1 else ():
            if (rows := g.exact_rows) is not None and not g.alone and g.n_draft_max is None:
                width = self.scheduler.policy.next_width(g.seq_id, rows.width)
                most = 1 + self.target.n_spare + self.target.n_ctx - g.n_ctx
                if width != rows.width and width <= min(most, self.target.max_rollback + 1):
                    g.exact_rows = replace(rows, width=width)
                    g.stats.width_changes = g.stats.width_changes or [(0, rows.width)]
                    g.stats.width_changes.append((g.n_output, width))
                    g.stats.exact_width = None

    def _draft(self, active: list[Generation]) -> dict[int, Draft]:
        """A draft for each sequence by seq_id, limited by what fits into a decode and by its grammar."""
        limit, time_left = self.decoder.draft_limit(active), self.scheduler.time_left(active)
        self._limits = self.decoder.limits(active, limit)
        try:
            max_draft_len = {g.seq_id: max(0, min(g.room, limit)) for g in active}
            drafts = self.scheduler.policy.draft(max_draft_len, time_left, self._limits)
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
                    self.decoder.checkpoint(g)
            except NoRoomError:  # the round itself makes room
                return {}
        return drafts

    def _remove_model(self, error: DecodeError) -> None:
        """Remove the drafters that decode, one of which failed."""
        policy = self.scheduler.policy
        for name in policy.model_sources:
            policy.remove_drafter(name)
        self.draft_failed, self.scheduler.store.drafter = True, None
        self.notices.append(f"the draft failed ({error}); continuing without it")

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
        branches: list[list[BatchRow]] = []
        spans = {}
        for g in active:
            for branch in drafts.get(g.seq_id, NO_DRAFT).branches:
                first = len(g.history) + branch.at
                branches.append([BatchRow(t, first + j, g.seq_id, True) for j, t in enumerate(branch.tokens)])
                spans[g.seq_id, branch.at, branch.tokens[0]] = n, n + len(branch.tokens)
                n += len(branch.tokens)
        return branches, spans

    def _sync_cache(self, generation: Generation, outcome: VerifyResult) -> None:
        """Restore the invariant between rounds: the cache holds the history without its last token, and
        without the tokens that were accepted in a branch.
        """
        before = len(generation.history) - outcome.n_emitted
        keep = min(len(generation.history) - 1, before + outcome.n_accept - outcome.n_branch)
        cached = before + len(outcome.draft.tokens)
        generation.n_past = self.target.truncate(generation.seq_id, keep) if cached > keep else cached
        pending = generation.history[generation.n_past : -1]
        generation.prefilled = len(pending) < MAX_PENDING and max(pending, default=0) < FIRST_PLACEHOLDER
