"""Decodes that are filled up: the output stays that of plain decoding, whatever the policy wants. On a device
where a change of the width costs something, every text has one width.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from inspect import getsourcelines
from itertools import groupby, pairwise
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.config.store import Store
from specllama.core.engine import Engine
from specllama.core.exact import ExactRows
from specllama.core.gain import gain, plain_rate
from specllama.core.interfaces import BatchRow
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.fixed import Fixed
from specllama.core.policy.planner import Planner
from specllama.core.replay.simulator import ChangingDevice, SimulatedClock
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Generation, Request
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.model import ModelDrafter
from specllama.testing import Memory, TableContext, table_row
from specllama.worker.calibrate import measure_load
from specllama.worker.profile import ModelProfile
from tests.support.devices import DeviceContext, curves
from tests.support.examples import examples
from tests.unit.core.test_engine_table import (
    END,
    MEMORIES,
    N_VOCAB,
    clock,
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
    draft model's logits and the target's; None: no drafters. learnt: of an earlier process.
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
        more = {"n_spare": 256} | target
        self.target = DeviceContext(device, clock, noise=noise, n_seq_max=n_slots, **more)
        steps = ChangingDevice(lambda n: 0.05 * self.t1 * (1 + 0.1 * n))
        n_ctx = self.target.n_ctx
        self.draft = DeviceContext(steps, clock, noise=draft or 0.0, n_ctx=n_ctx, n_seq_max=n_slots)
        self.curve = CostCurve()
        change = measure_load(self.curve, self.decode, 64)
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


@pytest.mark.parametrize("how", [{"speculate": False}, {"draft_max": 0}, {"exact": True}])
def test_where_nothing_may_be_drafted_no_draft_is_made_for_comparison_either(how):
    setup = Setup()
    if "exact" in how:
        setup.engine.exact_rows = ExactRows(1, 64)
    g = setup.write(replace(request(PROMPT, 3, 60), **how))[0]
    assert setup.draft.widths == []
    assert g.stats.exact_width == 1


@pytest.mark.parametrize("n_prompt", [7, 250, 600])
@pytest.mark.parametrize("t", [0, 0.8])
@pytest.mark.parametrize("memory", ["full", "rollback"])
def test_a_text_of_one_width_is_that_of_exact_with_this_width_without_drafts(memory, t, n_prompt):
    setup, n_compared = Setup(memory=memory).learn(t), 0
    for seed in range(4):
        one = request(prompt_of(n_prompt), seed, 200, t)
        g = setup.write(one)[0]
        assert g.stats.n_drafted > 0
        if not g.stats.width_changes:
            n_compared += 1
            assert g.stats.exact_width > 1
            assert g.output == by_width(g.stats.exact_width, one, memory=memory)
            assert set(g.stats.round_seconds) == {g.stats.exact_width}
    assert n_compared >= 3


@pytest.mark.parametrize("n_prompt", [7, 100, 600])
@pytest.mark.parametrize("t", [0, 0.8])
def test_the_same_request_has_the_same_text_again(n_prompt, t):
    """Its prompt is then in the cache."""
    setup = Setup().learn(t)
    texts = [setup.text(prompt_of(n_prompt), 5, 120, t) for _ in range(3)]
    assert n_prompt < 64 or all(g.stats.n_reused > 0 for g in texts[1:])
    assert [g.stats.exact_width for g in texts] == [texts[0].stats.exact_width] * 3
    assert texts[0].output == texts[1].output == texts[2].output


@pytest.mark.parametrize("n_prompt", [7, 100, 600])
@pytest.mark.parametrize("t", [0, 0.8])
def test_texts_of_the_same_width_are_the_same_whatever_is_in_the_cache(n_prompt, t):
    setup, by_widths = Setup().learn(t), dict[int, list[list[int]]]()
    learnt = setup.policy.learnt.to_dict()
    for one in (setup, setup, Setup(learnt=learnt), setup, Setup(learnt=learnt)):
        g = one.text(prompt_of(n_prompt), 5, 120, t)
        assert not g.stats.width_changes
        by_widths.setdefault(g.stats.exact_width, []).append(g.output)
    assert max(map(len, by_widths.values())) > 1
    for texts in by_widths.values():
        assert all(text == texts[0] for text in texts)


@pytest.mark.parametrize("offloads", [False, True])
@pytest.mark.parametrize("n_common", [30, 100])
def test_a_prompt_whose_beginning_is_copied_has_the_text_that_it_has_alone(n_common, offloads):
    """In a further slot, or from a copy in memory: whole chunks of its last prompt alone are reused."""
    begin, learnt = prompt_of(n_common), Setup().learn(0).policy.learnt.to_dict()
    setup = Setup(learnt=learnt, n_slots=2)
    if offloads:
        setup.engine.scheduler.store.room = lambda _: True
    first = [*begin, *(5 + i * 11 % 26 for i in range(200))]
    second = [*begin, *(6 + i * 5 % 25 for i in range(50))]
    setup.text(first, 1, 40, 0)
    if offloads:
        setup.engine.scheduler.store.offload(inf)
    texts = [setup.text(second, 2, 80, 0) for _ in range(2)]
    alone = Setup(learnt=learnt).text(second, 2, 80, 0)
    assert [g.stats.exact_width for g in texts] == [alone.stats.exact_width] * 2
    assert [g.output for g in texts] == [alone.output] * 2
    assert [g.stats.n_reused // 64 for g in texts] == [n_common // 64, (n_common + 49) // 64]


@pytest.mark.parametrize("t", [0, 0.8])
def test_a_further_turn_of_a_conversation_has_the_same_text_again(t):
    setup = Setup().learn(t)
    first = setup.text(prompt_of(200), 1, 90, t)
    turns = [setup.text([*first.history, 5], 2, 60, t) for _ in range(3)]
    assert all(g.stats.n_reused > 200 for g in turns)
    assert len({(g.stats.exact_width, tuple(g.stats.width_changes)) for g in turns}) == 1
    assert turns[0].output == turns[1].output == turns[2].output


@pytest.mark.parametrize("name", CHANGING)
def test_without_drafters_a_text_has_one_row_and_is_that_of_plain_decoding(name):
    for t in (0, 0.8):
        setup, one = Setup(name, draft=None), request(prompt_of(90), 1, 120, t)
        g = setup.write(one)[0]
        assert (g.stats.exact_width, g.stats.width_changes) == (1, [])
        clock = SimulatedClock()
        target = DeviceContext(ChangingDevice.from_dict(curves()[name]), clock)
        engine = Engine(target, Fixed([], 0), end_ids=(), clock=clock.clock)
        (alone,) = run(engine, one)
        assert g.output == alone.output
        assert set(g.stats.round_seconds) == {1}


def test_a_request_without_drafts_has_one_row_where_others_have_more():
    setup = Setup().learn()
    one = replace(request(PROMPT, 3, 90), speculate=False)
    g = setup.write(one)[0]
    assert (g.stats.exact_width, g.stats.width_changes, g.stats.n_drafted) == (1, [], 0)
    assert g.output == by_width(1, one)


def changes_of(g: Generation) -> list[tuple[int, int]]:
    """The changes of the width, without its beginning."""
    return [change for change in g.stats.width_changes if change[0] > 0]


def check_reported(setup: Setup, g: Generation) -> None:
    """What is reported about the widths is what was decoded."""
    decoded = [width for width, _ in groupby(setup.widths[1:])]  # after the prompt
    if g.stats.width_changes:
        assert g.stats.exact_width is None
        reported = [width for _, width in g.stats.width_changes]
        assert g.stats.width_changes[0][0] == 0
        assert all(0 < at < g.n_output for at, _ in changes_of(g))
    else:
        reported = [g.stats.exact_width]
    assert decoded == reported


@pytest.mark.parametrize("name", CHANGING)
@pytest.mark.parametrize("draft", [0.1, 0.35, 40.0])
def test_a_pair_never_seen_begins_with_one_row_and_changes_once_at_most(name, draft):
    setup = Setup(name, draft)
    setup.widths.clear()
    g = setup.text([5, 6, 7], 3, 160)
    check_reported(setup, g)
    assert setup.widths[1] == 1
    assert len(changes_of(g)) <= 1
    if draft < 1:
        assert len(changes_of(g)) == 1
        assert g.stats.n_accept > 20
    else:
        assert changes_of(g) == []
        assert g.stats.n_drafted == 0


@pytest.mark.parametrize("name", CHANGING)
def test_the_first_text_of_a_pair_that_is_known_begins_with_its_width(name):
    stored = json.loads(json.dumps(Setup(name, 0.1).learn().policy.learnt.to_dict()))
    setup = Setup(name, 0.1, learnt=stored)
    for seed in range(3):
        setup.widths.clear()
        g = setup.text([5, 6, 7], seed, 120)
        check_reported(setup, g)
        assert setup.widths[1] > 1
        assert changes_of(g) == []


def test_temperatures_are_known_apart():
    setup = Setup(draft=0.1).learn(t=0.8)
    assert setup.policy.text_width(False) > 1
    assert setup.policy.text_width(True) == 1


class Spoilt(Setup):
    """The draft is right at first, and guesses from its n-th row of a text on."""

    def __init__(self, name: str, at: int, **how: Any) -> None:
        super().__init__(name, 0.1, **how)
        self.at, self.prompt, good = at, 10**9, self.draft._evaluate

        def evaluate(batch: Sequence[BatchRow]) -> list[Any]:
            rows = good(batch)
            wrong = max(row.pos for row in batch) - self.prompt > self.at
            return [-row for row in rows] if wrong else rows

        self.draft._evaluate = evaluate  # type: ignore[method-assign]

    def spoilt(self, n: int, seed: int = 1, t: float = 0.8) -> Generation:
        self.prompt = len(PROMPT)
        return self.text(PROMPT, seed, n, t)


@pytest.mark.parametrize("name", CHANGING)
@pytest.mark.parametrize("at", [0, 40])
def test_a_text_whose_draft_goes_wrong_falls_back_to_one_row_and_loses_four_decodes_and_its_changes(name, at):
    setup, alone = Spoilt(name, at).learn(), Setup(name, None)
    g, other = setup.spoilt(240), alone.text(PROMPT, 1, 240)
    check_reported(setup, g)
    (fell, width), *later = changes_of(g)
    assert (width, later) == (1, [])
    assert at < fell < g.n_output
    lost = (g.stats.decode_seconds - other.stats.decode_seconds) / setup.t1
    assert lost <= 0.01 * g.n_output + 4 + 2 * setup.change / setup.t1


@pytest.mark.parametrize("name", CHANGING)
@pytest.mark.parametrize("draft", [0.35, 40.0])
def test_a_text_is_never_much_slower_than_plain_decoding(name, draft):
    """With a good draft model, and with one that knows nothing, the first text of a pair included. The slack:
    3 %, four decodes and a change of the width.
    """
    setup, alone = Setup(name, draft), Setup(name, None)
    ours = plain_seconds = 0.0
    for i in range(6):
        one, other = (s.text([5 + i, 6, 7], 3 + i, 160).stats.decode_seconds / s.t1 for s in (setup, alone))
        assert one <= other / 0.97 + 4 + setup.change / setup.t1
        ours, plain_seconds = ours + one, plain_seconds + other
    if draft < 1:
        assert plain_seconds / ours > 1.2


@pytest.mark.parametrize("name", CHANGING)
def test_the_speedup_that_is_shown_is_the_one_that_is_measured(name):
    setup, alone = Setup(name), Setup(name, None)
    for i in range(6):
        one, other = (s.text([5 + i, 6, 7], 11 + i, 200).stats for s in (setup, alone))
        if i == 0:
            continue
        assert one.n_drafted
        shown = gain(one, plain_rate(one, setup.curve.predict(1))).speedup
        assert shown is not None
        assert shown == pytest.approx(other.decode_seconds / one.decode_seconds, rel=0.05)


@pytest.mark.parametrize("n_spare", [256, 0])
def test_the_last_tokens_of_a_full_context_are_those_of_a_larger_one(n_spare):
    for n_prompt in (7, 100, 240):
        setup = Setup(n_ctx=256, n_spare=n_spare).learn(n_texts=2)
        one = request(prompt_of(n_prompt), 2, -1)
        g = setup.write(one)[0]
        width = g.stats.exact_width
        assert g.finish_reason == "context"
        assert not g.stats.width_changes
        assert len(g.history) == 256 - max(0, width - 1 - n_spare)
        large = request(prompt_of(n_prompt), 2, g.n_output)
        assert g.output == by_width(width, large, n_ctx=1024)


def test_a_full_context_without_spare_cells_ends_a_text_of_one_row_that_may_not_become_wider():
    setup = Setup(n_ctx=256, n_spare=0)
    g = setup.write(request(prompt_of(7), 2, -1))[0]
    assert g.finish_reason == "context"
    assert len(g.history) == 256
    assert changes_of(g) == []


@pytest.mark.parametrize("memory", ["window", "checkpoint"])
@pytest.mark.parametrize("t", [0, 0.8])
def test_where_the_memory_cannot_be_padded_all_tokens_are_written(memory, t):
    """The worker gives such a memory no one width; the engine decodes there all the same."""
    setup = Setup(memory=memory, noise=0.0)
    for seed in range(4):
        one = request(PROMPT, seed, 150, t)
        g = setup.write(one)[0]
        assert g.output == by_width(1, one, noise=0.0)


@pytest.mark.parametrize("max_rollback", [0, 1, 5])
def test_a_text_has_no_more_rows_than_can_be_rolled_back(max_rollback):
    setup = Setup(memory="rollback", max_rollback=max_rollback)
    for seed in range(3):
        one = request(PROMPT, seed, 120)
        g = setup.write(one)[0]
        assert max(g.stats.round_seconds) <= 1 + max_rollback
        if not g.stats.width_changes:
            assert g.output == by_width(
                g.stats.exact_width, one, memory="rollback", max_rollback=max_rollback
            )


# Several texts at once


@pytest.mark.parametrize("name", CHANGING)
@pytest.mark.parametrize("t", [0, 0.8])
def test_texts_decoded_together_are_those_decoded_alone(name, t):
    """On a device without rounding, texts that join and leave have the same tokens."""
    setup = Setup(name, 0.1, noise=0.0, n_slots=3).learn(t)
    rng, waiting, written = random.Random(1), list[Request](), list[Generation]()
    for i in range(9):
        waiting.append(request([5 + i, *prompt_of(rng.choice((3, 70)))], i, rng.randrange(5, 120), t))
    while waiting or setup.engine.busy:
        if waiting and rng.random() < 0.08:
            written.append(setup.engine.submit(waiting.pop()))
        if setup.engine.busy:
            setup.engine.step()
    alone = Setup(name, None, noise=0.0)
    for g in written:
        assert g.output == alone.write(replace(g.request))[0].output
        assert g.n_output == g.request.params.max_tokens


@pytest.mark.parametrize("name", CHANGING)
def test_the_rows_of_texts_decoded_together_change_with_their_number_or_rarely(name):
    setup = Setup(name, 0.1, noise=0.0, n_slots=4, n_ctx=4096).learn()
    for i in range(4):
        setup.engine.submit(request([5 + i, 6], i, 250 * (i + 1)))
    rounds: list[tuple[int, int]] = []
    while setup.engine.busy:
        n_before = len(setup.widths)
        n_active = len(setup.engine.active)
        setup.engine.step()
        if len(setup.widths) == n_before + 1 and n_active:
            rounds.append((n_active, setup.widths[-1]))
    several = [(n, width) for n, width in rounds[8:] if n > 1]
    assert len(several) > 50
    changes = sum(a[1] != b[1] and a[0] == b[0] for a, b in pairwise(several))
    assert changes <= len(several) / 32 + 1


def test_what_is_known_of_a_replaced_draft_is_not_used_for_another_one(tmp_path):
    setup, store = Setup(draft=0.1), Store(tmp_path)

    def profile(draft: str) -> ModelProfile:
        return ModelProfile(store, {"model": "target"}, {"draft": draft}, True, lambda: 0.0)

    def width(draft: str) -> int:
        planner = profile(draft).planner_of(setup.policy.drafters)
        planner.use_costs(setup.curve)
        return planner.text_width(False)

    first = profile("first")
    first.planner_of(setup.policy.drafters).learnt.restore(setup.learn().policy.learnt.to_dict())
    first.save()
    first.flush()
    assert width("first") > 1
    assert width("other") == 1


# The rule of a round


def test_the_rule_of_a_round_has_at_most_forty_lines():
    lines, _ = getsourcelines(Planner.draft)
    assert len(lines) <= 40
