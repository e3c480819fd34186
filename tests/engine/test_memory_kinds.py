"""All memory kinds of llama.cpp: truncation keeps its contract, and the output is that of plain decoding."""

from __future__ import annotations

import time

import numpy as np
import pytest

from specllama.core.engine import Engine
from specllama.core.interfaces import BatchRow, NoRoomError
from specllama.core.policy.fixed import Fixed
from specllama.core.policy.planner import Planner
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Generation, Request
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.model import ModelDrafter
from specllama.llama.batches import LimitError

KINDS = ("llama", "gemma3", "mamba", "jamba", "lfm2")
PROMPT = [20 + i * 7 % 230 for i in range(40)]
# Batches round differently from single rows, gemma3's GELU most; closer ties are decided on single rows.
EPSILON = {"gemma3": 0.05}


def generate(context, policy, request, kind="llama") -> Generation:
    context.truncate(0, 0)
    epsilon = EPSILON.get(kind, 0.002)
    engine = Engine(
        context,
        policy,
        end_ids={2},
        clock=time.perf_counter,
        epsilon=epsilon,
        exact=True,
        prefill_seconds=0.001,
    )
    generation = engine.submit(request)
    while engine.busy:
        engine.step()
        for g in engine.active:
            assert context.n_past(g.seq_id) == g.n_past <= len(g.history) - g.prefilled
            assert context.cuts_need_checkpoint or not g.prefilled or g.n_past >= len(g.history) - 1
    return generation


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("draft_kind", ["llama", "mamba"])
@pytest.mark.parametrize("temperature", [0, 0.9])
def test_speculative_output_is_that_of_plain_decoding(tiny, context, kind, draft_kind, temperature):
    params = SamplingParams(temperature=temperature, max_tokens=150, ignore_eos=True)
    request = Request(PROMPT, params, 5)
    target = context(tiny(kind))
    expected = generate(target, Fixed([], 0), request, kind)
    # A model of the target's own kind agrees often, one of another kind hardly ever.
    noise = 0.1 if draft_kind == kind else 0.0
    for n_max in (1, 4, 9):
        drafting = context(tiny(draft_kind, noise))
        policy = Fixed([CopyDrafter(), ModelDrafter(drafting, target.n_vocab)], n_max)
        with_rollback = context(tiny(kind), n_rs_seq=8)
        got = generate(with_rollback, policy, request, kind)
        assert got.output == expected.output
        assert got.stats.n_drafted > 0
        if draft_kind == kind and n_max == 1:
            assert got.stats.acceptance_rate > 0.3


@pytest.mark.parametrize("kind", KINDS)
def test_the_planners_output_is_that_of_plain_decoding(tiny, context, kind):
    request = Request(PROMPT, SamplingParams(temperature=0, max_tokens=200, ignore_eos=True), 1)
    target = context(tiny(kind), n_rs_seq=16)
    expected = generate(target, Fixed([], 0), request, kind)
    drafters = [CopyDrafter(), ModelDrafter(context(tiny(kind, 0.1)), target.n_vocab)]
    policy = Planner(drafters, time.perf_counter)
    assert generate(target, policy, request, kind).output == expected.output


@pytest.mark.parametrize("kind", KINDS)
def test_after_truncation_the_logits_are_those_of_the_prefix(tiny, context, kind):
    """The tokens that `truncate` reports are in the cache: the next rows equal those of a fresh context."""
    ctx = context(tiny(kind), n_rs_seq=8)
    rows = [BatchRow(t, i, 0, i >= 30) for i, t in enumerate(PROMPT)]
    ctx.decode(rows[:30])
    ctx.checkpoint(0)
    ctx.decode(rows[30:36])
    kept = ctx.truncate(0, 33)
    assert kept == ctx.n_past(0) <= 33
    if kind in ("llama", "gemma3", "lfm2"):
        assert kept == 33
    else:
        assert kept == 30
    again = ctx.decode([BatchRow(PROMPT[i], i, 0, i == 33) for i in range(kept, 34)])[0].copy()
    fresh = context(tiny(kind))
    expected = fresh.decode([BatchRow(PROMPT[i], i, 0, i == 33) for i in range(34)])[0]
    assert np.abs(again - expected).max() < 0.1
    assert again.argmax() == expected.argmax()


def test_truncation_behind_a_sliding_window_prefills_again(tiny, context):
    """With swa_full off, llama.cpp accepts such a truncation, but its logits are wrong."""
    narrow = context(tiny("gemma3", swa_full=False, n_ubatch=16, n_batch=64), 1024)
    for i in range(0, 400, 8):
        narrow.decode([BatchRow(PROMPT[j % 40], j, 0, False) for j in range(i, i + 8)])
    assert narrow.truncate(0, 395) == 395
    assert narrow.truncate(0, 60) == 0
    request = Request(PROMPT, SamplingParams(temperature=0, max_tokens=120, ignore_eos=True), 1)
    expected = generate(context(tiny("gemma3")), Fixed([], 0), request, "gemma3")
    policy = Fixed([ModelDrafter(context(tiny("gemma3", 0.1)), narrow.n_vocab)], 6)
    assert generate(narrow, policy, request, "gemma3").output == expected.output


@pytest.mark.parametrize("kind", KINDS)
def test_several_sequences_give_the_same_outputs_as_each_alone(tiny, context, kind):
    """With drafts of different lengths in one batch, truncated differently."""
    prompts = [PROMPT, PROMPT[:11], PROMPT[5:30]]
    params = SamplingParams(temperature=0.9, max_tokens=60, ignore_eos=True)
    requests = [Request(p, params, seed) for seed, p in enumerate(prompts)]
    expected = [generate(context(tiny(kind)), Fixed([], 0), r, kind).output for r in requests]
    target, drafting = context(tiny(kind), 1024, 3, n_rs_seq=8), context(tiny(kind, 0.1), 1024, 3)
    policy = Fixed([CopyDrafter(), ModelDrafter(drafting, target.n_vocab)], 4)
    engine = Engine(
        target, policy, end_ids={2}, clock=time.perf_counter, epsilon=EPSILON.get(kind, 0.002), exact=True
    )
    got = [engine.submit(r) for r in requests]
    while engine.busy:
        engine.step()
    assert [g.output for g in got] == expected
    assert all(g.stats.n_accept > 0 for g in got)


@pytest.mark.parametrize("kind", KINDS)
def test_a_shared_prompt_is_evaluated_once(tiny, context, kind):
    """Target and draft model share its cells, whatever their memory; outputs are as for each alone."""
    params = SamplingParams(temperature=0.9, max_tokens=40, ignore_eos=True)
    requests = [Request(PROMPT, params, seed) for seed in range(3)]
    expected = [generate(context(tiny(kind)), Fixed([], 0), r, kind).output for r in requests]
    assert len({tuple(output) for output in expected}) == 3
    target, drafting = context(tiny(kind), 1024, 3, n_rs_seq=8), context(tiny(kind, 0.1), 1024, 3)
    policy = Fixed([ModelDrafter(drafting, target.n_vocab)], 4)
    engine = Engine(
        target, policy, end_ids={2}, clock=time.perf_counter, epsilon=EPSILON.get(kind, 0.002), exact=True
    )
    got = [engine.submit(r) for r in requests]
    while not all(g.output for g in got):
        assert not any(g.output for g in got)  # all start from the same row
        engine.step()
    assert [target.n_past(g.seq_id) for g in got] == [len(PROMPT)] * 3
    assert [g.stats.n_reused for g in got] == [0, len(PROMPT), len(PROMPT)]
    while engine.busy:
        engine.step()
    assert [g.output for g in got] == expected
    assert all(g.stats.n_accept > 0 for g in got)


def test_a_prefix_before_a_sliding_window_is_not_shared(tiny, context):
    narrow = context(tiny("gemma3", swa_full=False, n_ubatch=16, n_batch=64), 1024, 2)
    for i in range(0, 400, 8):
        narrow.decode([BatchRow(PROMPT[j % 40], j, 0, False) for j in range(i, i + 8)])
    assert narrow.copy(0, 1, 60) == narrow.n_past(1) == 0
    assert narrow.copy(0, 1, 399) == narrow.n_past(1) == 399


def test_nothing_of_a_prefix_that_is_not_shared_stays_behind(tiny, context):
    """Layers without a window still have its cells: a text that follows would see some tokens twice."""
    narrow = context(tiny("gemma3", swa_full=False, n_ubatch=16, n_batch=64), 1024, 2)
    for i in range(0, 400, 8):
        narrow.decode([BatchRow(PROMPT[j % 40], j, 0, False) for j in range(i, i + 8)])
    rows = [BatchRow(t, i, 1, True) for i, t in enumerate(PROMPT)]
    expected = narrow.decode(rows).copy()
    narrow.truncate(1, 0)
    assert narrow.copy(0, 1, 10) == 0
    np.testing.assert_allclose(narrow.decode(rows), expected, atol=0.02)
    assert narrow.n_past(0) == 400


def test_rejects_batches_on_which_llama_cpp_would_abort(tiny, context):
    ctx = context(tiny("llama"), 256, 2)
    for batch in (
        [],
        [BatchRow(5, i, 0, False) for i in range(ctx.n_batch + 1)],
        [BatchRow(5, i, 0, True) for i in range(ctx.n_outputs_max + 1)],
        [BatchRow(ctx.n_vocab, 0, 0, True)],
        [BatchRow(-1, 0, 0, True)],
        [BatchRow(5, 0, 2, True)],
        [BatchRow(5, 0, -1, True), BatchRow(5, 0, 1, True)],
    ):
        with pytest.raises(LimitError):
            ctx.decode(batch)
    for seq in (-1, 2):
        for call in (ctx.n_past, ctx.checkpoint, ctx.size, ctx.save):
            with pytest.raises(LimitError, match="not one of the 2 sequences"):
                call(seq)
        for call in (ctx.truncate, ctx.load):
            with pytest.raises(LimitError, match="not one of the 2 sequences"):
                call(seq, 0)
        with pytest.raises(LimitError):
            ctx.copy(0, seq, 1)
        with pytest.raises(LimitError):
            ctx.copy(seq, 0, 1)
    assert ctx.decode([BatchRow(5, 0, 0, True)]).shape == (1, ctx.n_vocab)


@pytest.mark.parametrize(
    ("n_ctx", "n_batch", "n_ubatch"), [(1, 2048, 512), (2, 1, 1), (3, 3, 2), (300, 7, 512)]
)
def test_small_contexts_and_batches_hold_a_whole_draft(tiny, context, n_ctx, n_batch, n_ubatch):
    ctx = context(tiny("llama", n_batch=n_batch, n_ubatch=n_ubatch), n_ctx, 2)
    assert ctx.n_batch >= ctx.n_outputs_max == 64
    rows = ctx.decode([BatchRow(5, i // 2, i % 2, True) for i in range(64)])
    assert rows.shape == (64, ctx.n_vocab)


@pytest.mark.parametrize(("n_ubatch", "n_states"), [(1, 8), (8, 8), (512, 600)])
def test_what_a_rollback_needs_is_computed_at_once(tiny, context, n_ubatch, n_states):
    """llama.cpp aborts where a computation has no more rows than a sequence keeps states."""
    ctx = context(tiny("lfm2", n_ubatch=n_ubatch), 256, 2, n_rs_seq=n_states)
    ctx.decode([BatchRow(t, i, 0, True) for i, t in enumerate(PROMPT)])
    assert 8 <= ctx.max_rollback < 256
    assert ctx.truncate(0, len(PROMPT) - 8) == len(PROMPT) - 8


def test_states_are_not_rolled_back_after_decodes_of_others(tiny, context):
    """llama.cpp moves the state of a sequence to make room for those of a decode, but not those before it."""
    ctx = context(tiny("lfm2"), 512, 4, n_rs_seq=8)
    rows = lambda seq, a, b: [BatchRow(PROMPT[i], i, seq, True) for i in range(a, b)]  # noqa: E731
    ctx.decode(rows(0, 0, 6))
    ctx.decode(rows(2, 0, 11))
    ctx.decode(rows(3, 0, 10))
    ctx.decode([*rows(0, 6, 7), *rows(3, 10, 11)])
    assert ctx.truncate(2, 5) == 0
    ctx.decode(rows(1, 0, 20))
    assert ctx.truncate(1, 15) == 15  # those of the last decode are there
    ctx.decode([*rows(0, 7, 8), *rows(1, 15, 19), *rows(3, 11, 15)])
    assert (ctx.truncate(1, 17), ctx.truncate(3, 13)) == (17, 13)  # where it ended with them
    ctx.decode([*rows(1, 17, 21), *rows(0, 8, 9), *rows(3, 13, 14)])
    assert ctx.truncate(1, 18) == 0


def test_a_shared_state_is_not_rolled_back_for_one_of_its_sequences(tiny, context):
    ctx = context(tiny("lfm2"), 512, 2, n_rs_seq=8)
    ctx.decode([BatchRow(t, i, 0, True) for i, t in enumerate(PROMPT)])
    assert ctx.copy(0, 1, len(PROMPT)) == len(PROMPT)
    assert ctx.truncate(0, len(PROMPT) - 3) == 0
    assert ctx.n_past(1) == len(PROMPT)
    assert ctx.decode([BatchRow(9, len(PROMPT), 1, True)]).shape == (1, ctx.n_vocab)


def test_without_room_nothing_is_decoded(tiny, context):
    ctx = context(tiny("llama"), 256)
    ctx.decode([BatchRow(5, i, 0, False) for i in range(200)])
    with pytest.raises(NoRoomError):
        ctx.decode([BatchRow(5, 200 + i, 0, False) for i in range(100)])
    assert ctx.n_past(0) == 200


@pytest.mark.parametrize("kind", KINDS)
def test_a_copied_prefix_gives_the_same_logits(tiny, context, kind):
    ctx = context(tiny(kind), 512, 2)
    ctx.decode([BatchRow(t, i, 0, False) for i, t in enumerate(PROMPT)])
    shared = ctx.copy(0, 1, 20)
    assert shared == (20 if kind in ("llama", "gemma3") else 0)
    n_all = ctx.copy(0, 1, len(PROMPT))
    assert n_all == len(PROMPT) == ctx.n_past(1)
    a = ctx.decode([BatchRow(9, len(PROMPT), 0, True)])[0].copy()
    b = ctx.decode([BatchRow(9, len(PROMPT), 1, True)])[0]
    assert np.abs(a - b).max() < 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_sequence_can_be_loaded_into_another(tiny, context, kind):
    ctx = context(tiny(kind), n_seq_max=3)
    ctx.decode([BatchRow(t, i, 0, False) for i, t in enumerate(PROMPT)])
    assert ctx.size(0) > 0
    saved = ctx.save(0)
    following = [BatchRow(7, len(PROMPT), 0, True)]
    expected = ctx.decode(following)[0].copy()
    ctx.truncate(0, 0)
    ctx.decode([BatchRow(9, i, 1, False) for i in range(5)])
    assert ctx.load(2, saved) == ctx.n_past(2) == len(PROMPT)
    got = ctx.decode([following[0]._replace(seq_id=2)])[0]
    assert (
        np.abs(got - expected).max() < 1e-3
    )  # the other sequence's masked cells change the order of summation
    assert ctx.load(0, saved) == len(PROMPT)  # it can be loaded again
    assert ctx.can_truncate(2, 30) == ctx.cuts_anywhere
    assert ctx.truncate(2, 30) == ctx.n_past(2) == (30 if ctx.cuts_anywhere else 0)


def test_loading_a_saved_sequence_needs_room(tiny, context):
    ctx = context(tiny("llama"), 256, n_seq_max=2)
    for n in range(0, 160, 40):
        ctx.decode([BatchRow(t, n + i, 0, False) for i, t in enumerate(PROMPT)])
    saved = ctx.save(0)
    assert ctx.load(1, saved) == 0
    assert ctx.n_past(0) == 160
    ctx.truncate(0, 0)
    assert ctx.load(1, saved) == 160
