"""Decodes that are filled up: the output stays that of plain decoding, whatever the policy wants."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.core.engine import Engine
from specllama.core.gain import gain, plain_rate
from specllama.core.interfaces import BatchRow
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.fixed import Fixed
from specllama.core.policy.planner import Planner
from specllama.core.policy.warm_up import warm_up
from specllama.core.replay.devices import ChangingDevice
from specllama.core.replay.simulator import SimulatedClock
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Request
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.model import ModelDrafter
from specllama.testing import Memory, TableContext, table_row
from tests.support.devices import DeviceContext, curves
from tests.support.examples import examples
from tests.unit.core.test_engine_table import (
    MEMORIES,
    N_VOCAB,
    engine_over,
    noisy_draft,
    params_strategy,
    plain,
    prompt_strategy,
    run,
)


class AnyWidth(Fixed):
    """Wants random widths, also impossible ones."""

    rng = random.Random(0)

    def width(self, n_rows: int) -> int:
        return self.rng.choice((n_rows, n_rows + self.rng.randrange(9), 16, 64, 1000))


@settings(max_examples=examples(120), deadline=None)
@given(
    st.lists(st.tuples(prompt_strategy, params_strategy, st.integers(0, 99)), min_size=1, max_size=4),
    st.integers(0, 9),
    st.sampled_from(MEMORIES),
    st.integers(1, 3),
    st.sampled_from([0, 16]),
    st.randoms(use_true_random=False),
)
def test_the_output_does_not_depend_on_the_widths_of_decodes(work, n_max, memory, n_slots, n_spare, rng):
    requests = [Request(p, q, s) for p, q, s in work]
    expected = [plain(r, 96).output for r in requests] if n_slots == 1 else None
    model = ModelDrafter(
        TableContext(N_VOCAB, 96, n_slots, memory, rows=noisy_draft(7), max_rollback=16), N_VOCAB
    )
    policy = AnyWidth([CopyDrafter(), model], n_max)
    policy.rng = rng
    target = TableContext(N_VOCAB, 96, n_slots, memory, max_rollback=20, n_spare=n_spare)
    got = run(engine_over(target, policy), *requests)
    if expected is not None:
        assert [g.output for g in got] == expected
    else:
        alone = [plain(r, 400).output for r in requests]
        for g, output in zip(got, alone, strict=True):
            assert g.output == output[: len(g.output)]


@pytest.mark.parametrize("memory", MEMORIES)
def test_rows_that_fill_up_a_decode_leave_no_trace(memory: Memory):
    context = TableContext(N_VOCAB, 64, 2, memory, max_rollback=16)
    batch = [BatchRow(5, 0, 0, False), BatchRow(6, 1, 0, True)]
    logits = context.decode(batch, 8, 8)
    assert logits.shape == (1, N_VOCAB)
    assert context.n_past(0) == 2
    assert context.n_decoded == (8 if context.can_pad else 2)
    again = context.decode([BatchRow(7, 2, 0, True)])
    assert (again == table_row([5, 6, 7], N_VOCAB)).all()
    assert context.n_past(0) == 3


def test_a_decode_is_filled_up_only_where_there_is_room():
    context = TableContext(N_VOCAB, 8)
    context.decode([BatchRow(5, i, 0, False) for i in range(6)])
    context.decode([BatchRow(5, 6, 0, True)], 4, 4)
    assert context.n_decoded == 1
    assert context.n_past(0) == 7


def test_with_rollback_the_rows_are_cut_with_the_rejected_ones():
    """A recurrent state can be rolled back once after a decode."""
    context = TableContext(N_VOCAB, 64, memory="rollback", max_rollback=8)
    context.decode([BatchRow(4, 0, 0, True)])
    context.decode([BatchRow(5, 1, 0, True), BatchRow(6, 2, 0, True)], 6, 6)
    assert context.n_past(0) == 3
    assert context.truncate(0, 2) == 2
    assert context.n_past(0) == 2


# On a device whose changes of the width cost something


def planner_on(name: str, seed: int, max_tokens: int, ahead: float = 0.35, limit: int = 6):
    """(stats of texts with the planner, stats of the same without drafts, t(1)) in simulated time."""
    runs = []
    for drafts in (True, False):
        clock, data = SimulatedClock(), curves()[name]
        target = DeviceContext(ChangingDevice.from_dict(data), clock, noise=0.0)
        t1 = target.device.steady(1)
        draft = DeviceContext(
            ChangingDevice(lambda n, t=t1: 0.05 * t * (1 + 0.1 * n)), clock, noise=ahead, seed=0
        )
        curve = CostCurve()

        def decode(n: int, target: DeviceContext = target, clock: SimulatedClock = clock) -> float:
            began = clock.now
            target.decode([BatchRow(4, i, 0, True) for i in range(n)])
            target.truncate(0, 0)
            return clock.now - began

        warm_up(curve, decode, 64)
        model = ModelDrafter(draft, target.n_vocab)
        policy = Planner([CopyDrafter(), model], clock.clock, curve) if drafts else Fixed([], 0)
        engine = Engine(target, policy, end_ids=(), clock=clock.clock)
        texts = []
        for i in range(limit):
            params = SamplingParams(temperature=0.8, max_tokens=max_tokens, ignore_eos=True)
            generation = engine.submit(Request([5 + i, 6, 7], params, seed + i))
            while engine.busy:
                engine.step()
            texts.append(generation)
        runs.append((texts, curve))
    return runs[0][0], runs[1][0], t1, runs[0][1]


@pytest.mark.parametrize("name", list(curves()))
@pytest.mark.parametrize("ahead", [0.35, 40.0])
def test_a_text_is_never_much_slower_than_plain_decoding(name, ahead):
    """With a good draft model, and with one that knows nothing. The slack: 3 % and four decodes, and on a
    device where a change costs more than three decodes, that change.
    """
    drafted, alone, t1, curve = planner_on(name, 3, 160, ahead)
    slack = 4 + max(0.0, curve.there_and_back / 2)
    for one, other in zip(drafted, alone, strict=True):
        assert one.output == other.output
        ours, plain_seconds = one.stats.decode_seconds / t1, other.stats.decode_seconds / t1
        assert ours <= plain_seconds / 0.97 + slack
    if ahead < 1:
        total = sum(g.stats.decode_seconds for g in alone) / sum(g.stats.decode_seconds for g in drafted)
        assert total > 1.2


@pytest.mark.parametrize("name", list(curves()))
def test_the_speedup_that_is_shown_is_the_one_that_is_measured(name):
    drafted, alone, _, curve = planner_on(name, 11, 200)
    pairs = [(a, b) for a, b in zip(drafted[1:], alone[1:], strict=True) if a.stats.n_drafted]
    assert pairs or name.startswith("MoE")
    for one, other in pairs:
        shown = gain(one.stats, plain_rate(one.stats, curve.predict(1))).speedup
        assert shown is not None
        measured = other.stats.decode_seconds / one.stats.decode_seconds
        assert shown == pytest.approx(measured, rel=0.05)
