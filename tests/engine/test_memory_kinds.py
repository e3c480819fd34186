"""All memory kinds of llama.cpp: cuts do what they say, and the speculative text is the plain text."""

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

KINDS = ("llama", "gemma3", "mamba", "jamba", "lfm2")
PROMPT = [20 + i * 7 % 230 for i in range(40)]
# Batches round differently from single rows, gemma3's GELU most; closer ties than this are decided alone.
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
def test_speculative_text_is_plain_text(tiny, context, kind, draft_kind, temperature):
    params = SamplingParams(temperature=temperature, max_tokens=150, ignore_eos=True)
    request = Request(PROMPT, params, 5)
    target = context(tiny(kind))
    expected = generate(target, Fixed([], 0), request, kind)
    # A model of the target's own kind agrees often; one of another kind hardly ever.
    noise = 0.1 if draft_kind == kind else 0.0
    for n_max in (1, 4, 9):
        drafting = context(tiny(draft_kind, noise))
        policy = Fixed([CopyDrafter(), ModelDrafter(drafting, target.n_vocab)], n_max)
        with_room = context(tiny(kind), n_rs_seq=8)
        got = generate(with_room, policy, request, kind)
        assert got.output == expected.output
        assert got.stats.n_drafted > 0
        if draft_kind == kind and n_max == 1:
            assert got.stats.acceptance_rate > 0.3


@pytest.mark.parametrize("kind", KINDS)
def test_adaptive_policy_on_every_kind(tiny, context, kind):
    request = Request(PROMPT, SamplingParams(temperature=0, max_tokens=200, ignore_eos=True), 1)
    target = context(tiny(kind), n_rs_seq=16)
    expected = generate(target, Fixed([], 0), request, kind)
    drafters = [CopyDrafter(), ModelDrafter(context(tiny(kind, 0.1)), target.n_vocab)]
    policy = Planner(drafters, time.perf_counter)
    assert generate(target, policy, request, kind).output == expected.output


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_cut_the_logits_are_those_of_the_prefix(tiny, context, kind):
    """Whatever `cut` says is left is really there: the next rows equal those of a fresh context."""
    one = context(tiny(kind), n_rs_seq=8)
    rows = [BatchRow(t, i, 0, i >= 30) for i, t in enumerate(PROMPT)]
    one.decode(rows[:30])
    one.checkpoint(0)
    one.decode(rows[30:36])
    kept = one.truncate(0, 33)
    assert kept == one.n_past(0) <= 33
    if kind in ("llama", "gemma3", "lfm2"):
        assert kept == 33
    else:
        assert kept == 30
    again = one.decode([BatchRow(PROMPT[i], i, 0, i == 33) for i in range(kept, 34)])[0].copy()
    fresh = context(tiny(kind))
    expected = fresh.decode([BatchRow(PROMPT[i], i, 0, i == 33) for i in range(34)])[0]
    assert np.abs(again - expected).max() < 0.1
    assert again.argmax() == expected.argmax()


def test_window_that_has_moved_on_is_not_trusted(tiny, context):
    """Without whole rows a cut behind the window is accepted by llama.cpp and wrong; ours prefills again."""
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
def test_several_sequences_of_every_kind(tiny, context, kind):
    """Drafts of different lengths in one batch, cut differently, are each what they are alone."""
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
def test_choices_of_one_prompt_evaluate_it_once(tiny, context, kind):
    """The target and the draft share its cells, whatever their memory; each choice is what it is alone."""
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
        assert not any(g.output for g in got)  # all begin with the same row
        engine.step()
    assert [target.n_past(g.seq_id) for g in got] == [len(PROMPT)] * 3
    assert [g.stats.n_reused for g in got] == [0, len(PROMPT), len(PROMPT)]
    while engine.busy:
        engine.step()
    assert [g.output for g in got] == expected
    assert all(g.stats.n_accept > 0 for g in got)


def test_a_window_that_has_moved_on_is_not_shared(tiny, context):
    narrow = context(tiny("gemma3", swa_full=False, n_ubatch=16, n_batch=64), 1024, 2)
    for i in range(0, 400, 8):
        narrow.decode([BatchRow(PROMPT[j % 40], j, 0, False) for j in range(i, i + 8)])
    assert narrow.copy(0, 1, 60) == narrow.n_past(1) == 0
    assert narrow.copy(0, 1, 399) == narrow.n_past(1) == 399
    assert narrow.n_past(0) == 400


def test_context_refuses_what_llama_cpp_would_abort_on(tiny, context):
    one = context(tiny("llama"), 256, 2)
    for batch in (
        [],
        [BatchRow(5, i, 0, False) for i in range(one.n_batch + 1)],
        [BatchRow(5, i, 0, True) for i in range(one.n_outputs_max + 1)],
        [BatchRow(one.n_vocab, 0, 0, True)],
        [BatchRow(-1, 0, 0, True)],
        [BatchRow(5, 0, 2, True)],
    ):
        with pytest.raises(ValueError):
            one.decode(batch)


def test_no_room_is_said_and_nothing_is_decoded(tiny, context):
    one = context(tiny("llama"), 256)
    one.decode([BatchRow(5, i, 0, False) for i in range(200)])
    with pytest.raises(NoRoomError):
        one.decode([BatchRow(5, 200 + i, 0, False) for i in range(100)])
    assert one.n_past(0) == 200


@pytest.mark.parametrize("kind", KINDS)
def test_copied_prefix_is_the_prefix(tiny, context, kind):
    one = context(tiny(kind), 512, 2)
    one.decode([BatchRow(t, i, 0, False) for i, t in enumerate(PROMPT)])
    shared = one.copy(0, 1, 20)
    assert shared == (20 if kind in ("llama", "gemma3") else 0)
    whole = one.copy(0, 1, len(PROMPT))
    assert whole == len(PROMPT) == one.n_past(1)
    a = one.decode([BatchRow(9, len(PROMPT), 0, True)])[0].copy()
    b = one.decode([BatchRow(9, len(PROMPT), 1, True)])[0]
    assert np.abs(a - b).max() < 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_sequence_is_the_same_in_another_place(tiny, context, kind):
    """Though its cells lie elsewhere; states and windows are not saved, and say so."""
    one = context(tiny(kind), n_seq_max=3)
    one.decode([BatchRow(t, i, 0, False) for i, t in enumerate(PROMPT)])
    if kind != "llama":
        assert one.size(0) == 0
        return
    assert one.size(0) > 0
    saved = one.save(0)
    following = [BatchRow(7, len(PROMPT), 0, True)]
    expected = one.decode(following)[0].copy()
    one.truncate(0, 0)
    one.decode([BatchRow(9, i, 1, False) for i in range(5)])
    assert one.load(2, saved) == one.n_past(2) == len(PROMPT)
    got = one.decode([following[0]._replace(seq_id=2)])[0]
    assert np.abs(got - expected).max() < 1e-3  # the other one's masked cells change the order of the sums
    assert one.load(0, saved) == len(PROMPT)  # as often as wanted
    one.truncate(2, 30)
    assert one.n_past(2) == 30


def test_a_saved_sequence_needs_room(tiny, context):
    one = context(tiny("llama"), 256, n_seq_max=2)
    for n in range(0, 160, 40):
        one.decode([BatchRow(t, n + i, 0, False) for i, t in enumerate(PROMPT)])
    saved = one.save(0)
    assert one.load(1, saved) == 0
    assert one.n_past(0) == 160
    one.truncate(0, 0)
    assert one.load(1, saved) == 160
