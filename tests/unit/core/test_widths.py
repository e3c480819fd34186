"""Decodes that are filled up: the output stays that of plain decoding, whatever the policy wants. On a device
where a change of the width costs something, every text has one width.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.core.engine import Engine
from specllama.core.gain import gain, plain_rate
from specllama.core.interfaces import BatchRow
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.fixed import Fixed
from specllama.core.policy.planner import Planner
from specllama.core.policy.widths import measure
from specllama.core.replay.devices import ChangingDevice
from specllama.core.replay.simulator import SimulatedClock
from specllama.core.sampling.params import SamplingParams
from specllama.core.exact import ExactRows
from specllama.core.sequence import Generation, Request
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

    def text_width(self, greedy: bool) -> int:  # noqa: ARG002
        return self.rng.choice((1, 2, 1 + self.rng.randrange(9), 16, 64, 1000))

    def next_width(self, seq_id: int, width: int) -> int:  # noqa: ARG002
        return width if self.rng.random() < 0.7 else self.text_width(True)

    def total_width(self, n_texts: int) -> int:  # noqa: ARG002
        return self.text_width(True)


@settings(max_examples=examples(120), deadline=None)
@given(
    st.lists(st.tuples(prompt_strategy, params_strategy, st.integers(0, 99)), min_size=1, max_size=4),
    st.integers(0, 9),
    st.sampled_from(MEMORIES),
    st.integers(1, 3),
    st.sampled_from([0, 64]),
    st.randoms(use_true_random=False),
)
def test_the_output_does_not_depend_on_the_widths_of_decodes(work, n_max, memory, n_slots, n_spare, rng):
    requests = [Request(p, q, s) for p, q, s in work]
    model = ModelDrafter(
        TableContext(N_VOCAB, 96, n_slots, memory, rows=noisy_draft(7), max_rollback=16), N_VOCAB
    )
    policy = AnyWidth([CopyDrafter(), model], n_max)
    policy.rng = rng
    target = TableContext(N_VOCAB, 96, n_slots, memory, max_rollback=20, n_spare=n_spare)
    got = run(Engine(target, policy, end_ids={END}, clock=clock(), text_chunk=16), *requests)
    alone = [plain(r, 400).output for r in requests]
    for g, output in zip(got, alone, strict=True):
        assert g.output == output[: len(g.output)]
        if n_slots == 1 and n_spare:
            assert g.output == plain(g.request, 96).output


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

T1 = {name: ChangingDevice.from_dict(data).steady(1) for name, data in curves().items()}
CHANGING = list(curves())
PROMPT = [5, 6, 7]


class Setup:
    """An engine that gives each text one width on such a device. draft: size of the differences between the
    draft model's logits and the target's; None: no drafters. quality: the draft's differences from then on,
    by its number of decodes. learnt, costs: of an earlier process.
    """

    def __init__(
        self,
        name: str = "padded 4B Q4_0",
        draft: float | None = 0.35,
        *,
        noise: float = 0.3,
        exact_rows: ExactRows | None = None,
        learnt: object = None,
        n_slots: int = 1,
        **target: Any,
    ) -> None:
        clock, data = SimulatedClock(), curves()[name]
        device = ChangingDevice.from_dict(data)
        self.clock, self.t1 = clock, T1[name]
        self.target = DeviceContext(device, clock, noise=noise, n_seq_max=n_slots, **{"n_spare": 256} | target)
        steps = ChangingDevice(lambda n: 0.05 * self.t1 * (1 + 0.1 * n))
        n_ctx = self.target.n_ctx
        self.draft = DeviceContext(steps, clock, noise=draft or 0.0, n_ctx=n_ctx, n_seq_max=n_slots)
        self.curve = CostCurve()
        change = measure(self.curve, self.decode, 64)
        drafters = [CopyDrafter(), ModelDrafter(self.draft, self.target.n_vocab)] if draft is not None else []
        self.policy = Planner(drafters, clock.clock, self.curve, learnt)
        self.policy.change_seconds = self.change = change or 0.0
        self.engine = Engine(
            self.target,
            self.policy,
            end_ids=(),
            clock=clock.clock,
            text_chunk=64 if exact_rows is None else None,
            exact=exact_rows is not None,
            exact_rows=exact_rows,
        )
        self.widths = self.target.widths
        self.widths.clear()

    def decode(self, n: int) -> float:
        began = self.clock.now
        self.target.decode([BatchRow(4, i, 0, True) for i in range(n)])
        self.target.truncate(0, 0)
        return self.clock.now - began

    def write(self, *requests: Request) -> list[Generation]:
        generations = [self.engine.submit(one) for one in requests]
        while self.engine.busy:
            self.engine.step()
        return generations

    def text(self, prompt: Sequence[int] = PROMPT, seed: int = 1, n: int = 150, t: float = 0.8) -> Generation:
        return self.write(request(prompt, seed, n, t))[0]

    def learn(self, t: float = 0.8, n_texts: int = 3) -> Setup:
        """Write some texts, so that the pair is known."""
        for seed in range(n_texts):
            self.text([9 + seed, 5, 4], 100 + seed, 200, t)
        self.widths.clear()
        return self


def request(prompt: Sequence[int], seed: int, n: int, t: float = 0.8) -> Request:
    params = SamplingParams(temperature=t, max_tokens=n, ignore_eos=True)
    return Request(list(prompt), params, seed)


def prompt_of(n: int) -> list[int]:
    return [4 + i * 7 % 27 for i in range(n)]


def by_width(width: int, one: Request, **how: Any) -> list[int]:
    """The text of --exact with this width, without drafters."""
    return Setup(draft=None, exact_rows=ExactRows(width, 64), **how).write(one)[0].output
