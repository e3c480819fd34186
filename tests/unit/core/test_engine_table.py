"""Property tests of the engine over table models: with any drafts, the output is that of plain decoding."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.core.engine import Engine
from specllama.core.policy.base import Policy
from specllama.core.policy.fixed import Fixed
from specllama.core.policy.planner import Planner
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Generation, Request
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.history import HistoryDrafter
from specllama.drafters.model import ModelDrafter
from specllama.drafters.ngrams import RequestHistory
from specllama.errors import ContextLengthError
from specllama.testing import Memory, TableContext, table_row
from tests.support.examples import examples
from tests.support.scripted import ScriptedDrafter

N_VOCAB, END = 32, 3
MEMORIES: tuple[Memory, ...] = ("full", "window", "rollback", "checkpoint")


def clock():
    ticks = itertools.count()
    return lambda: float(next(ticks))


def engine_over(target: TableContext, policy: Policy) -> Engine:
    return Engine(target, policy, end_ids={END}, clock=clock())


def check_invariant(engine: Engine) -> None:
    for g in engine.active:
        cells = engine.target.cells[g.seq_id][: engine.target.n_past(g.seq_id)]
        assert cells == g.history[: g.n_past]
        assert g.n_past <= len(g.history) - g.prefilled
        if g.prefilled and not engine.target.cuts_need_checkpoint and engine.target.memory == "full":
            assert g.n_past == len(g.history) - 1
    for drafter in engine.scheduler.policy.drafters:
        if isinstance(drafter, ModelDrafter):
            for seq, state in drafter.states.items():
                assert drafter.context.cells[seq][: drafter.context.n_past(seq)] == drafter.cells[seq]
                skipped = drafter.skipped[seq]
                assert drafter.cells[seq][: state.n_valid] == state.history[skipped:][: state.n_valid]


def run(engine: Engine, *requests: Request) -> list[Generation]:
    generations = [engine.submit(r) for r in requests]
    for _ in range(10_000):
        if not engine.busy:
            break
        engine.step()
        check_invariant(engine)
    assert not engine.busy
    return generations


def plain(request: Request, n_ctx: int = 256) -> Generation:
    return run(engine_over(TableContext(N_VOCAB, n_ctx), Fixed([], 0)), request)[0]


def noisy_draft(seed: int):
    """A draft model that agrees with the target often, but not always."""
    return lambda ids: table_row(ids, N_VOCAB) + table_row(ids, N_VOCAB, seed) * 0.5


params_strategy = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0, 0.3, 0.8, 1.5]),
    top_k=st.sampled_from([0, 1, 5, 40]),
    top_p=st.sampled_from([0.5, 0.95, 1.0]),
    min_p=st.sampled_from([0, 0.05, 0.3]),
    repeat_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0, 0.7]),
    max_tokens=st.sampled_from([1, 2, 7, 40, -1, -2]),
    logit_bias=st.sampled_from([{}, {5: 3.0}, {1: -100.0}]),
)
prompt_strategy = st.lists(st.integers(4, N_VOCAB - 1), min_size=1, max_size=20)


@settings(max_examples=examples(150), deadline=None)
@given(
    prompt_strategy,
    params_strategy,
    st.integers(0, 2**64 - 1),
    st.integers(1, 16),
    st.sampled_from(MEMORIES),
    st.sampled_from(["full", "checkpoint"]),
    st.sampled_from(["model", "copy", "both", "adaptive", "wrong"]),
)
def test_output_with_any_drafter_is_that_of_plain_decoding(
    prompt, params, seed, n_max, memory, draft_memory, kind
):
    request = Request(prompt, params, seed)
    expected = plain(request, 96)
    model = ModelDrafter(
        TableContext(N_VOCAB, 96, memory=draft_memory, rows=noisy_draft(seed % 1000)), N_VOCAB
    )
    drafters = {
        "model": [model],
        "copy": [CopyDrafter()],
        "both": [CopyDrafter(), model],
        "adaptive": [CopyDrafter(), model],
        "wrong": [ScriptedDrafter(lambda h, d: (len(h) * 7 + len(d)) % N_VOCAB)],
    }[kind]
    policy = Planner(drafters, clock()) if kind == "adaptive" else Fixed(drafters, n_max)
    got = run(engine_over(TableContext(N_VOCAB, 96, memory=memory), policy), request)[0]
    assert got.output == expected.output
    assert got.finish_reason == expected.finish_reason
    assert got.stats.n_predict == len(got.output)
    assert got.stats.n_accept <= got.stats.n_drafted == sum(got.stats.drafted_by.values())


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.tuples(prompt_strategy, params_strategy, st.integers(0, 99)), min_size=2, max_size=7),
    st.integers(1, 4),
    st.integers(0, 8),
    st.sampled_from([48, 400]),
)
def test_several_sequences_give_the_same_outputs_as_each_alone(work, n_slots, n_max, n_ctx):
    """With fewer slots than sequences, and where the shared cache is too small for all at once."""
    requests = [Request(p, q, s) for p, q, s in work]
    expected = [plain(r, n_ctx).output for r in requests]
    draft = TableContext(N_VOCAB, n_ctx, n_slots, rows=noisy_draft(1))
    engine = engine_over(
        TableContext(N_VOCAB, n_ctx, n_slots), Fixed([CopyDrafter(), ModelDrafter(draft, N_VOCAB)], n_max)
    )
    got = run(engine, *requests)
    for g, output in zip(got, expected, strict=True):
        # Where the context is full, a generation may end early, but never differ.
        assert g.output == output or (g.finish_reason == "context" and output[: len(g.output)] == g.output)


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_the_target_as_its_own_draft_model_is_always_accepted(temperature):
    request = Request([5, 6, 7], SamplingParams(temperature=temperature, max_tokens=60, ignore_eos=True), 11)
    drafter = ModelDrafter(TableContext(N_VOCAB), N_VOCAB)
    got = run(engine_over(TableContext(N_VOCAB), Fixed([drafter], 5)), request)[0]
    assert got.stats.n_drafted == got.stats.n_accept > 40
    assert got.stats.accept_by_position == [1.0] * 5


def test_the_draft_cache_is_kept_between_rounds():
    """With all draft tokens accepted, a round evaluates two rows first: the last drafted and the target's."""
    context = TableContext(N_VOCAB)
    request = Request([5, 6, 7], SamplingParams(temperature=0, max_tokens=41, ignore_eos=True), 1)
    run(engine_over(TableContext(N_VOCAB), Fixed([ModelDrafter(context, N_VOCAB)], 3)), request)
    assert set(context.widths[3:]) <= {1, 2}
    assert context.widths.count(2) <= context.widths.count(1)


def test_the_draft_model_is_not_used_before_the_first_token():
    context = TableContext(N_VOCAB)
    engine = engine_over(TableContext(N_VOCAB), Fixed([ModelDrafter(context, N_VOCAB)], 3))
    g = engine.submit(Request([5, 6, 7], SamplingParams(temperature=0, max_tokens=9), 1))
    while not g.output:
        engine.step()
    assert context.widths == []


def test_an_end_token_within_a_draft_ends_the_generation():
    rows = lambda ids: np.eye(N_VOCAB, dtype=np.float32)[END if len(ids) == 6 else 9] * 9  # noqa: E731
    drafter = ScriptedDrafter(lambda h, d: END if len(h) + len(d) == 6 else 9)
    engine = engine_over(TableContext(N_VOCAB, rows=rows), Fixed([drafter], 8))
    got = run(engine, Request([5, 6], SamplingParams(temperature=0), 1))[0]
    assert got.output == [9, 9, 9, 9, END]
    assert (got.finish_reason, got.stats.n_accept) == ("stop", 4)


def test_the_rejected_tokens_of_a_round_are_those_from_the_first_wrong_one():
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    expected = run(engine_over(TableContext(N_VOCAB, 64), Fixed([], 0)), Request([1, 2], params, 0))[0].output
    wrong = 5

    def guess(history, draft):
        i = len(history) - 2 + len(draft)
        right = expected[i] if i < len(expected) else 0
        return right if i % 4 else (right + wrong) % N_VOCAB

    engine = engine_over(TableContext(N_VOCAB, 64), Fixed([ScriptedDrafter(guess)], 4))
    g = engine.submit(Request([1, 2], params, 0))
    seen = 0
    while engine.busy:
        drafted, accepted = g.stats.n_drafted, g.stats.n_accept
        engine.step()
        lost = g.stats.n_drafted - drafted - (g.stats.n_accept - accepted)
        assert len(g.rejected) in (lost, 0)
        if g.rejected:
            seen += 1
            assert g.rejected[0] == ((g.output[-1] + wrong) % N_VOCAB, "model")
    assert g.output == expected
    assert seen > 3


def test_max_tokens_is_exact_and_limits_drafts():
    drafter = ModelDrafter(TableContext(N_VOCAB), N_VOCAB)
    engine = engine_over(TableContext(N_VOCAB), Fixed([drafter], 16))
    got = run(engine, Request([5, 6], SamplingParams(temperature=0, max_tokens=6, ignore_eos=True), 1))[0]
    assert (len(got.output), got.finish_reason) == (6, "length")
    assert got.stats.n_drafted == 4


def test_a_full_context_ends_the_generation():
    engine = engine_over(TableContext(N_VOCAB, 20), Fixed([ScriptedDrafter(lambda _h, _d: 9)], 4))
    got = run(engine, Request([5, 6, 7], SamplingParams(temperature=0, max_tokens=-2), 1))[0]
    assert (got.finish_reason, len(got.history)) == ("context", 20)
    assert END not in got.output


def test_a_prompt_that_fills_the_context_is_rejected():
    with pytest.raises(ContextLengthError, match="20 tokens, which exceeds the available context size of 20"):
        engine_over(TableContext(N_VOCAB, 20), Fixed([], 0)).submit(Request([5] * 20, SamplingParams(), 1))


def test_cancel_frees_the_slot_and_keeps_the_text():
    engine = engine_over(TableContext(N_VOCAB), Fixed([ScriptedDrafter(lambda _h, _d: 9)], 4))
    g = engine.submit(Request([5, 6, 7], SamplingParams(max_tokens=-2), 1))
    for _ in range(5):
        engine.step()
    engine.cancel(g)
    assert (g.finish_reason, engine.busy) == ("cancel", False)
    assert len(g.output) >= 4
    assert engine.target.cells[0] == g.history[: g.n_past] == engine.slots[0].ids


def test_a_cancelled_prefill_counts_the_tokens_that_were_evaluated():
    target = TableContext(N_VOCAB, 400)
    target.n_batch = 16
    engine = engine_over(target, Fixed([], 0))
    prompt = [5 + i % 20 for i in range(100)]
    g = engine.submit(Request(prompt, SamplingParams(max_tokens=4), 1))
    engine.step()
    engine.cancel(g)
    assert (g.finish_reason, g.stats.n_predict) == ("cancel", 0)
    assert 0 < g.stats.n_evaluated == g.n_past < g.stats.n_prompt == 100
    again = run(engine, Request(prompt, SamplingParams(max_tokens=4, ignore_eos=True), 1))[0]
    assert again.stats.n_reused == g.stats.n_evaluated
    assert again.stats.n_evaluated == 100 - again.stats.n_reused


def test_prefix_is_reused_from_an_idle_slot():
    target = TableContext(N_VOCAB, 400, 2)
    engine = engine_over(target, Fixed([], 0))
    prompt = list(range(4, 30)) * 3
    first = run(engine, Request(prompt, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True), 1))[0]
    target.widths.clear()
    longer = [*first.history, 7, 8, 9]
    second = run(engine, Request(longer, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True), 1))[0]
    assert second.seq_id == first.seq_id
    assert second.stats.n_reused == len(first.history) - 1
    assert target.widths[0] == 4
    # A short common prefix is copied to the least recently used slot instead; the long cache survives.
    third = run(engine, Request([*prompt[:20], 9], SamplingParams(temperature=0, max_tokens=2), 1))[0]
    assert third.seq_id != second.seq_id
    assert third.stats.n_reused == 20


def test_a_failed_decode_cancels_all_and_the_engine_continues():
    target = TableContext(N_VOCAB)
    engine = engine_over(target, Fixed([], 0))
    g = engine.submit(Request([5, 6], SamplingParams(max_tokens=-2), 1))
    engine.step()
    rows, target.rows = target.rows, lambda _ids: np.full(N_VOCAB, np.nan, np.float32)
    with pytest.raises(Exception, match="not finite"):
        engine.step()
    assert g.finish_reason == "cancel"
    target.rows = rows
    assert run(engine, Request([5, 6], SamplingParams(max_tokens=3), 1))[0].output


def test_near_ties_are_decided_on_rows_decoded_by_themselves():
    """Rows of a batch differ from single ones by less than epsilon; the output stays the same."""

    class Rounding(TableContext):
        def decode(self, batch, *filled):
            out = super().decode(batch, *filled)
            if len(batch) > 1:
                out = out + np.float32(0.01) * np.where(np.arange(N_VOCAB) % 2, 1, -1).astype(np.float32)
            return out

    def rows(ids):  # the two best logits are 0.001 apart
        row = table_row(ids, N_VOCAB)
        best = int(row.argmax())
        row[best] += 2
        row[best ^ 1] = row[best] - (0.001 if len(ids) % 5 == 0 else 1.0)
        return row

    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    request = Request([5, 6, 7], params, 3)
    expected = run(engine_over(TableContext(N_VOCAB, rows=rows), Fixed([], 0)), request)[0].output
    drafter = lambda: ModelDrafter(TableContext(N_VOCAB, rows=rows), N_VOCAB)  # noqa: E731
    unguarded = run(engine_over(Rounding(N_VOCAB, rows=rows), Fixed([drafter()], 4)), request)[0]
    assert unguarded.output != expected
    engine = Engine(
        Rounding(N_VOCAB, rows=rows),
        Fixed([drafter()], 4),
        end_ids={END},
        clock=clock(),
        epsilon=0.02,
        exact=True,
    )
    exact = run(engine, request)[0]
    assert exact.output == expected
    assert exact.stats.redecided > 0


@pytest.mark.parametrize("max_rows", [1, 2, 5, 16, None])
def test_decodes_with_drafts_are_limited_to_max_rows(max_rows):
    target, n_slots = TableContext(N_VOCAB, n_seq_max=2), 2
    drafter = ModelDrafter(TableContext(N_VOCAB, n_seq_max=2), N_VOCAB)
    engine = Engine(target, Fixed([drafter], 12), end_ids={END}, clock=clock(), max_rows=max_rows)
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    got = run(engine, *(Request([5, 6, 7 + i], params, 3) for i in range(n_slots)))
    assert all(g.stats.n_predict == 40 for g in got)
    decodes = target.widths[n_slots:]  # after the two prompts
    assert max(decodes) <= (2 * 13 if max_rows is None else max(max_rows, n_slots))
    assert (max(decodes) > n_slots) is (max_rows is None or max_rows >= 2 * n_slots)


class TestSharedPrompts:
    """A prompt of several requests is evaluated once, and each output is as without the others."""

    PROMPT = tuple(4 + i * 7 % 25 for i in range(70))  # more than one chunk

    def requests(self, n: int, max_tokens: int = 12, **more) -> list[Request]:
        params = SamplingParams(
            temperature=1.0, max_tokens=max_tokens, ignore_eos=True, repeat_penalty=1.3, logit_bias={7: 3.0}
        )
        return [Request(self.PROMPT, params, seed, turn=seed, **more) for seed in range(n)]

    @pytest.mark.parametrize("memory", MEMORIES)
    @pytest.mark.parametrize("drafts", [False, True])
    def test_the_prompt_is_evaluated_once(self, memory, drafts):
        requests = self.requests(4)
        expected = [plain(r).output for r in requests]
        assert len({tuple(output) for output in expected}) == 4
        target, small = TableContext(N_VOCAB, 900, 4, memory), TableContext(N_VOCAB, 900, 4, memory)
        policy = Fixed([ModelDrafter(small, N_VOCAB)] if drafts else [], 3)
        got = run(engine_over(target, policy), *requests)
        assert [g.output for g in got] == expected
        before = target.widths[: target.widths.index(4)] if not drafts else target.widths[:2]
        assert sum(before) == len(self.PROMPT)
        assert [g.stats.n_reused for g in got] == [0, 70, 70, 70]
        if drafts and memory == "full":
            assert sum(w for w in small.widths if w > 8) < len(self.PROMPT) + 8

    def test_a_common_prefix_with_an_active_request_is_shared(self):
        """A request shares the cells of its common prefix with a request that is still decoding."""
        params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
        first, second = Request(self.PROMPT, params, 1), Request([*self.PROMPT[:60], 4, 5], params, 1)
        expected = [plain(r).output for r in (first, second)]
        for memory, n_reused in (("full", 60), ("checkpoint", 0)):
            engine = engine_over(TableContext(N_VOCAB, 900, 3, memory), Fixed([], 0))
            active = engine.submit(first)
            while not active.output:
                engine.step()
            later = run(engine, second)[0]
            assert [active.output, later.output] == expected
            assert later.stats.n_reused == n_reused

    @settings(max_examples=examples(30), deadline=None)
    @given(
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=8),
        st.integers(1, 5),
        st.sampled_from(MEMORIES),
        st.sampled_from([120, 900]),
        st.dictionaries(st.integers(0, 12), st.integers(0, 7), max_size=3),
    )
    def test_cancelling_requests_does_not_affect_the_others(self, work, n_slots, memory, n_ctx, cancels):
        """Requests with three prompts; `cancels` has, by step, the request that is cancelled then."""
        params = SamplingParams(temperature=1.0, max_tokens=6, ignore_eos=True)
        requests = [Request([5 + which, *self.PROMPT], params, seed) for which, seed in work]
        expected = [plain(r).output for r in requests]
        small = TableContext(N_VOCAB, n_ctx, n_slots, rows=noisy_draft(1))
        target = TableContext(N_VOCAB, n_ctx, n_slots, memory)
        engine = engine_over(target, Fixed([ModelDrafter(small, N_VOCAB)], 2))
        submitted = [engine.submit(r) for r in requests]
        for step in range(10_000):
            if not engine.busy:
                break
            engine.step()
            check_invariant(engine)
            if step in cancels and cancels[step] < len(submitted):
                engine.cancel(submitted[cancels[step]])
        for g, output in zip(submitted, expected, strict=True):
            if g.finish_reason == "length":
                assert g.output == output
            else:
                assert g.finish_reason in ("cancel", "context")
                assert output[: len(g.output)] == g.output


@settings(max_examples=examples(30), deadline=None)
@given(
    st.lists(
        st.tuples(prompt_strategy, params_strategy, st.integers(0, 3), st.sampled_from("ab")), max_size=6
    ),
    st.booleans(),
    st.integers(1, 3),
)
def test_the_memory_drafter_does_not_change_the_output(work, adaptive, n_slots):
    """Requests one after the other, with the texts of earlier ones in the same scope."""
    memory = RequestHistory()
    drafters = [CopyDrafter(), HistoryDrafter(memory)]
    policy = Planner(drafters, clock()) if adaptive else Fixed(drafters, 5)
    engine = engine_over(TableContext(N_VOCAB, 400, n_slots), policy)
    for prompt, params, seed, scope in work:
        request = Request(prompt, params, seed, history_scope=scope)
        got = run(engine, request)[0]
        memory.keep(scope, got.history, got.n_prompt)
        assert got.output == plain(request, 400).output


def test_a_repeated_request_is_drafted_from_memory():
    request = Request(
        [5, 6, 7], SamplingParams(temperature=1.0, max_tokens=40, ignore_eos=True), 3, history_scope="a"
    )
    memory = RequestHistory()
    engine = engine_over(TableContext(N_VOCAB), Fixed([CopyDrafter(), HistoryDrafter(memory)], 8))
    for scope, low, high in (("a", 0, 0), ("b", 0, 0), ("a", 30, 40)):
        got = run(engine, dataclasses.replace(request, history_scope=scope))[0]
        memory.keep(scope, got.history, got.n_prompt)
        assert low <= got.stats.drafted_by["memory"] <= high, scope
