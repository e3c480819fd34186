"""The stored profile of a pair, on table models with a simulated clock."""

from __future__ import annotations

import json
import math
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.config.store import Store
from specllama.core.engine import Engine
from specllama.core.interfaces import BatchRow
from specllama.core.policy.config import DEFAULT
from specllama.core.prefix.store import Slot
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Generation, Request
from specllama.testing import TableContext
from specllama.worker.calibrate import ENOUGH_ROWS, TIMED, WIDTHS
from specllama.worker.profile import ModelProfile, possible_times
from tests.support.examples import examples
from tests.support.scripted import ScriptedDrafter

KEY = {"model": ["m", 7], "threads": [2, 2]}
PAIR = {"draft": {"model": ["d", 1]}, "drafters": ["copy"]}


class TimedContext(TableContext):
    """A decode of n rows takes t1 · (1 + (n - 1) · slope) seconds."""

    def __init__(self, t1: float = 0.001, slope: float = 0.1, **kwargs: Any) -> None:
        super().__init__(32, **{"n_ctx": 1024, "n_batch": 64, **kwargs})
        self.t1, self.slope, self.now = t1, slope, 0.0

    def decode(self, batch: Any, *filled: int) -> Any:
        self.now += self.seconds(len(batch))
        return super().decode(batch, *filled)

    def seconds(self, n: int) -> float:
        return self.t1 * (1 + (n - 1) * self.slope)

    def clock(self) -> float:
        return self.now


def new_profile(
    store: Store, context: TimedContext, keep: bool = True, pair: dict[str, Any] = PAIR
) -> ModelProfile:
    profile = ModelProfile(store, KEY, pair, keep, context.clock)
    profile.planner_of([ScriptedDrafter(lambda history, draft: 5, "copy")])  # noqa: ARG005
    return profile


def answer(profile: ModelProfile, context: TimedContext, n: int = 200, seed: int = 0) -> Generation:
    """One answer of n tokens, by the planner."""
    policy = profile.planner_of([])
    engine = Engine(context, policy, end_ids=(), clock=context.clock)
    params = SamplingParams(temperature=0, max_tokens=n)
    generation = engine.submit(Request([3 + seed, 4, 5], params, 1))
    while engine.busy:
        profile.use_curve_at(sum(len(g.history) for g in engine.active))
        engine.step()
    profile.save()
    return generation


def filled(context: TableContext, n: int) -> Slot:
    ids = [i * 7 % 32 for i in range(n)]
    context.truncate(0, 0)
    for begin in range(0, n, context.n_batch):
        part = ids[begin : begin + context.n_batch]
        context.decode([BatchRow(t, begin + i, 0, False) for i, t in enumerate(part)])
    return Slot(0, ids)


# From one process to the next


def test_the_next_process_starts_with_the_stored_profile(tmp_path):
    context = TimedContext()
    first = new_profile(Store(tmp_path), context)
    answer(first, context)
    first.flush()
    again = new_profile(Store(tmp_path), TimedContext())
    assert first.planner is not None
    assert again.planner is not None
    for n in (1, 2, 4):
        assert again.planner.costs.predict(n) == pytest.approx(first.planner.costs.predict(n))
    assert again.planner.learnt.to_dict()["tables"] == first.planner.learnt.to_dict()["tables"]
    assert again.planner.learnt.tables["copy"].n_seen > 100
    other = new_profile(Store(tmp_path), TimedContext(), pair={**PAIR, "draft": None})
    assert other.planner is not None
    assert other.planner.costs.known  # the target is the same
    assert other.planner.learnt.tables["copy"].n_seen == 0


def test_without_keep_nothing_is_stored(tmp_path):
    context = TimedContext()
    profile = new_profile(Store(tmp_path), context, keep=False)
    answer(profile, context)
    profile.measure(context, filled(context, 100), 1.0)
    profile.flush()
    assert profile.t1 is not None
    assert list(tmp_path.iterdir()) == []


def test_the_first_answer_is_stored_at_once_and_later_ones_at_intervals(tmp_path):
    context, store = TimedContext(t1=0.01), Store(tmp_path)
    profile, written = new_profile(store, context), []

    def n_stored() -> float:
        if profile._writer is not None:
            profile._writer.join()
        data = store.read(KEY)
        return sum(data["pairs"][0]["learnt"]["tables"]["copy"]["seen"]) if data else 0.0

    for seed in range(12):
        answer(profile, context, 60, seed)  # at most 0.6 s
        written.append(n_stored())
    assert written[0] > 0
    assert 1 < len(set(written)) <= 3
    profile.flush()
    assert n_stored() > written[-1]


def test_entries_of_other_processes_are_kept(tmp_path):
    context, store = TimedContext(), Store(tmp_path)
    mine, theirs = new_profile(store, context), new_profile(store, context, pair={**PAIR, "draft": None})
    answer(mine, context)
    answer(theirs, context, seed=1)
    for _ in range(10):
        theirs.curves.at(5000).observe(1, 0.5)
    theirs.measure(context, filled(context, 100), 1.0)
    mine.flush()
    theirs.flush()
    mine.save()
    mine.flush()
    data = store.read(KEY)
    assert data["t1"] > 0
    assert [p["pair"]["draft"] for p in data["pairs"]] == [None, PAIR["draft"]]  # the last used comes last
    assert list(data["curves"]) == ["0", "4096"]


def test_only_the_last_pairs_are_kept(tmp_path):
    context, store = TimedContext(), Store(tmp_path)
    for n in range(12):
        profile = new_profile(store, context, pair={"draft": None, "drafters": [str(n)]})
        profile.save()
        profile.flush()
    assert [p["pair"]["drafters"] for p in store.read(KEY)["pairs"]] == [[str(n)] for n in range(4, 12)]


def test_concurrent_writers_leave_a_complete_file(tmp_path):
    store, broken = Store(tmp_path), []

    def write(number: int) -> None:
        context = TimedContext()
        profile = new_profile(store, context, pair={"draft": None, "drafters": [str(number)]})
        answer(profile, context, 40)
        for _ in range(25):
            profile.save()
            profile._written = -math.inf
            profile.flush()
            if not store.read(KEY).get("pairs"):
                broken.append(number)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert broken == []
    assert [p.suffix for p in tmp_path.iterdir()] == [".json"]


def test_a_growing_text_uses_a_curve_for_each_range(tmp_path):
    """Above 4096 ids the planner uses another curve, and both are stored."""
    context = TimedContext(n_ctx=8192, t1=0.0001)
    profile = new_profile(Store(tmp_path), context)
    engine = Engine(context, profile.planner_of([]), end_ids=(), clock=context.clock)
    prompt = [3 + i * 5 % 29 for i in range(4000)]
    engine.submit(Request(prompt, SamplingParams(temperature=0, max_tokens=300), 1))
    used = []
    while engine.busy:
        profile.use_curve_at(sum(len(g.history) for g in engine.active))
        engine.step()
        assert profile.planner is not None
        used.append(profile.planner.costs)
    assert len(set(map(id, used))) == 2
    profile.save()
    profile.flush()
    assert list(Store(tmp_path).read(KEY)["curves"]) == ["0", "4096"]


# Measuring what is missing


def test_missing_widths_are_measured_and_stored(tmp_path):
    context, store = TimedContext(), Store(tmp_path)
    profile = new_profile(store, context)
    slot = filled(context, 200)
    assert profile.unmeasured(context, 200) == list(TIMED)
    slices, more = 0, True
    while more:
        before = context.now
        more = profile.measure(context, slot, 0.1)
        assert context.now - before < 0.12
        assert slot.ids == context.cells[0]
        slices += 1
    assert 1 < slices < 30
    curve = profile.curves.at(0)
    for n in TIMED:
        assert curve.count(n) >= DEFAULT.min_samples
        assert curve.predict(n) == pytest.approx(context.seconds(n))
    assert (profile.t1, profile.epsilon) == (pytest.approx(0.001), 0)
    again = new_profile(store, TimedContext())
    assert again.unmeasured(context, 200) in ([], [1])  # wider batches may be left to compare
    assert again.curves.at(0).predict(24) == pytest.approx(context.seconds(24))
    assert again.measure(context, filled(context, 100), 0.25) is False


def test_without_a_planner_only_single_rows_are_measured(tmp_path):
    context = TimedContext()
    profile = ModelProfile(Store(tmp_path), KEY, PAIR, True, context.clock)
    assert profile.unmeasured(context, 100) == [1]
    slot = filled(context, 100)
    context.widths.clear()
    begun = context.now
    while profile.measure(context, slot, 1.0):
        assert context.now - begun < 2.5, "rows are compared for two seconds, once"
    assert set(context.widths) <= {1, *WIDTHS, *(w % ENOUGH_ROWS for w in WIDTHS)}
    assert len(slot.ids) == 100
    assert Store(tmp_path).read(KEY)["t1"] == pytest.approx(0.001)
    assert profile.unmeasured(context, 100) == []


@pytest.mark.parametrize("memory", ["checkpoint", "rollback"])
def test_memories_that_cannot_be_rolled_back_are_not_measured(tmp_path, memory):
    context = TimedContext(memory=memory)
    profile = new_profile(Store(tmp_path), context)
    assert profile.unmeasured(context, 100) == []
    slot = filled(context, 100)
    assert profile.measure(context, slot, 1.0) is False
    assert len(slot.ids) == 100


def test_a_memory_that_refuses_a_rollback_is_not_measured_again(tmp_path):
    context = TimedContext(memory="window")
    profile = new_profile(Store(tmp_path), context)
    slot = filled(context, 100)
    assert profile.measure(context, slot, 1.0) is False
    assert slot.ids == context.cells[0] == []
    assert profile.unmeasured(context, 100) == []


def test_a_slow_machine_measures_only_what_fits_a_slice(tmp_path):
    context = TimedContext(t1=0.1, slope=1.0)
    profile = new_profile(Store(tmp_path), context)
    profile._compared = 99  # rows were compared after longer texts
    slot = filled(context, 100)
    begun = context.now
    more = profile.measure(context, slot, 1.0)
    assert context.now - begun < 1.3
    while more:
        more = profile.measure(context, slot, 1.0)
    counts = [profile.curves.at(0).count(n) for n in TIMED]
    assert counts[:4] == [pytest.approx(counts[0])] + [DEFAULT.min_samples] * 3
    assert counts[-3:] == [0, 0, 0]


def test_two_rows_are_measured_again_if_by_their_stored_time_no_draft_could_pay(tmp_path):
    """Otherwise a measurement on a busy machine could switch speculation off for good."""
    context, store = TimedContext(), Store(tmp_path)
    busy = new_profile(store, context)
    for n in TIMED:
        for _ in range(DEFAULT.min_samples):
            busy.curves.at(0).observe(n, 0.001 * n)
    busy.measure(context, filled(context, 100), 1.0)
    profile = new_profile(store, context)
    assert profile.unmeasured(context, 100) == []
    answer(profile, context)
    profile.distrust_stored_t2()
    assert profile.unmeasured(context, 100) == [2]
    profile.measure(context, filled(context, 100), 1.0)
    assert profile.curves.at(0).predict(2) == pytest.approx(context.seconds(2))
    profile.distrust_stored_t2()
    assert profile.unmeasured(context, 100) == []


# Up to how many rows are bit-equal to single rows


class RoundingContext(TimedContext):
    """Logits in a batch of `unlike` or more rows are off by 0.01 if the text is longer than `short`."""

    def __init__(self, unlike: int, short: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.unlike, self.short = unlike, short

    def decode(self, batch: Any, *filled: int) -> Any:
        rows = super().decode(batch, *filled)
        if len(batch) >= self.unlike and len(self.cells[0]) > self.short:
            rows = rows + np.float32(0.01) * np.where(np.arange(32) % 2, 1, -1).astype(np.float32)
        return rows


def compared(profile: ModelProfile, context: TimedContext, n: int) -> None:
    """Measure all that is missing after a text of n ids."""
    slot = filled(context, n)
    while profile.measure(context, slot, 1.0):
        pass


@pytest.mark.parametrize(
    ("unlike", "known"), [(64, (63, 0.0)), (20, (17, 0.0)), (8, (None, 0.02)), (2, (None, 0.02))]
)
def test_the_row_limit_is_the_widest_bit_equal_batch(tmp_path, unlike, known):
    """If that is too narrow there is no limit, and near-ties are decided by epsilon."""
    context = RoundingContext(unlike)
    profile = new_profile(Store(tmp_path), context)
    assert profile.row_limit(1) == (ENOUGH_ROWS, None)
    compared(profile, context, 600)
    for again in (profile, new_profile(Store(tmp_path), context)):
        assert again.row_limit(1) == (known[0], pytest.approx(known[1], rel=0.01))


def test_there_is_no_row_limit_with_many_slots(tmp_path):
    """Their decodes without drafts are wide already."""
    context = RoundingContext(20)
    profile = new_profile(Store(tmp_path), context)
    compared(profile, context, 600)
    assert profile.row_limit(8) == (17, 0.0)
    assert profile.row_limit(9) == (None, pytest.approx(0.02, rel=0.01))


def test_longer_texts_are_compared_again(tmp_path):
    """llama.cpp chooses kernels by the cells in use: epsilon may be 0 after a short text only."""
    context, store = RoundingContext(2, short=256), Store(tmp_path)
    profile = new_profile(store, context)
    compared(profile, context, 190)
    assert (profile.epsilon, profile.reach) == (0, 190)
    assert (profile.covers(256), profile.covers(257)) == (True, False)
    assert profile.unmeasured(context, 256) == []
    for later in (profile, new_profile(store, context)):
        assert 1 in later.unmeasured(context, 257)
    later = new_profile(store, context)
    compared(later, context, 600)
    assert later.epsilon == pytest.approx(0.02, rel=0.01)
    assert (later.reach, later.covers(1024), later.covers(1025)) == (600, True, False)
    assert later.row_limit(1)[0] is None
    assert later.t1 == profile.t1
    shorter = new_profile(store, context)
    assert shorter.unmeasured(context, 200) == []
    compared(shorter, context, 1020)
    assert shorter.epsilon == later.epsilon
    assert shorter.unmeasured(context, 1020) == []


def test_a_missing_figure_is_measured_and_the_others_are_kept(tmp_path):
    context, store = RoundingContext(20), Store(tmp_path)
    compared(new_profile(store, context), context, 300)
    data = store.read(KEY)
    store.write(KEY, {**data, "t1": "fast"})
    profile = new_profile(store, context)
    assert (profile.t1, profile.epsilon) == (None, pytest.approx(0.02, rel=0.01))
    compared(profile, context, 200)
    assert profile.t1 == pytest.approx(context.t1)
    assert (profile.reach, profile.row_limit(1)) == (300, (17, 0.0))


def test_a_comparison_stored_without_the_length_of_the_text_is_measured_again(tmp_path):
    store = Store(tmp_path)
    store.write(KEY, {"t1": 0.5, "epsilon": 0.0, "n_rows": 100})
    profile = new_profile(store, TimedContext())
    assert (profile.t1, profile.epsilon) == (0.5, None)
    assert 1 in profile.unmeasured(TimedContext(), 100)


def test_a_comparison_that_contradicts_itself_is_measured_again(tmp_path):
    """Widths cannot be both bit-equal and not."""
    store = Store(tmp_path)
    equal = {"t1": 0.5, "epsilon": 0.0, "n_rows": 100, "alike": 63, "unlike": 2, "reach": 300}
    store.write(KEY, equal)
    profile = new_profile(store, TimedContext())
    assert (profile.t1, profile.epsilon, profile.covers(10)) == (0.5, None, False)
    store.write(KEY, {**equal, "unlike": 64})
    assert new_profile(store, TimedContext()).row_limit(1) == (63, 0.0)


# A store with malformed data

scalars = (
    st.none()
    | st.booleans()
    | st.floats()
    | st.integers()
    | st.sampled_from([10**400, -1, "x", "", 0, 1e308])
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)
curves = st.dictionaries(
    st.sampled_from(["0", "4096", "x"]),
    anything
    | st.fixed_dictionaries({"widths": st.lists(st.lists(scalars, max_size=4), max_size=3) | anything}),
)
priced = anything | st.fixed_dictionaries(
    {},
    optional={
        "after": anything,
        "steps": anything | st.fixed_dictionaries({"widths": st.lists(st.lists(scalars, max_size=4))}),
        "gains": anything | st.lists(scalars, min_size=3, max_size=3),
        "times": anything | st.lists(scalars, min_size=3, max_size=3),
        "trial": anything,
    },
)
learnt = anything | st.fixed_dictionaries(
    {},
    optional={
        "tables": anything | st.fixed_dictionaries({}, optional={"copy": anything, "model": anything}),
        "priced": anything | st.fixed_dictionaries({}, optional={"model": priced, "head": priced}),
        "credit": anything,
    },
)
pairs = st.lists(st.fixed_dictionaries({"pair": anything | st.just(PAIR), "learnt": learnt}), max_size=3)
files = st.fixed_dictionaries(
    {},
    optional={
        "t1": anything,
        "epsilon": anything,
        "n_rows": anything,
        "alike": anything,
        "unlike": anything,
        "reach": anything | st.just(300),
        "curves": anything | curves,
        "pairs": anything | pairs,
        "more": anything,
    },
)


@settings(deadline=None, max_examples=examples(150))
@given(files)
def test_malformed_stored_data_is_replaced_by_valid_figures(data):
    """It is loaded, used, measured and stored again."""
    with tempfile.TemporaryDirectory() as directory:
        store, context = Store(Path(directory)), TimedContext()
        store.path(KEY).write_text(json.dumps({"schema": 1, "key": KEY, **data}))
        profile = new_profile(store, context)
        assert profile.t1 is None or 0 < profile.t1 < math.inf
        assert profile.epsilon is None or 0 <= profile.epsilon < math.inf
        most, _ = profile.row_limit(1)
        assert most is None or most >= ENOUGH_ROWS
        assert answer(profile, context, 12).finish_reason == "length"
        profile.measure(context, filled(context, 40), 0.05)
        profile.flush()
        stored = json.loads(store.path(KEY).read_text())
        assert new_profile(store, TimedContext()).t1 == stored.get("t1")
        assert stored["curves"]["0"]["widths"][0][0] == 1


def test_times_that_cannot_be_are_not_shown(tmp_path):
    """What a busy machine left in a stored curve, or in this process, is not in /props."""
    times = [(1, 0.010), (2, 0.011), (3, 0.030), (4, 0.040), (5, 8.9), (6, 0.36), (8, 0.030)]
    assert possible_times(times) == [(1, 0.010), (2, 0.011), (3, 0.030), (4, 0.040), (8, 0.030)]
    assert possible_times([(1, 0.045), (2, 0.002), (3, 0.003)]) == [(2, 0.002), (3, 0.003)]
    assert possible_times([]) == []
    store, context = Store(tmp_path), TimedContext()
    widths = [[1, 0.045, 3], [2, 0.002, 3], [5, 8.9, 3], [6, 0.36, 3]]
    data = {"schema": 1, "key": KEY, "curves": {"0": {"widths": widths}}}
    store.path(KEY).parent.mkdir(parents=True, exist_ok=True)
    store.path(KEY).write_text(json.dumps(data))
    profile = new_profile(store, context)
    answer(profile, context, 12)
    shown = dict(profile.decode_seconds)
    assert 1 in shown
    assert all(shown.get(n, 0.0) < 2 * context.seconds(n) for n in (5, 6))  # left out, or measured again
    profile.planner.costs.observe(33, 8.9)  # a stall of this process
    assert 33 not in dict(profile.decode_seconds)
