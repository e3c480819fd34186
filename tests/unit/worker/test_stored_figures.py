"""A stored figure that is wrong does not prevent its own correction: the first process that loads it decides
about as one with an empty store, and the next one at least as well.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from specllama import wire
from specllama.config.store import Store
from specllama.core.interfaces import Drafter
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.planner import Planner
from specllama.core.policy.posterior import AcceptanceTable, StepCosts
from specllama.core.replay.simulator import Replay, Trace, curve, steps_at
from specllama.drafters.copy import CopyDrafter
from specllama.stored_figures import FRESH_SECONDS
from specllama.worker.calibrate import FAST_SECONDS, WIDTHS, measure_load, measure_steps
from specllama.worker.profile import ModelProfile, figures_of
from tests.support.machines import MACHINES
from tests.unit.worker.test_profile import TimedContext, filled

TRACES = Path(__file__).parents[1] / "core" / "traces" / "pydoc.json"
TEXTS = wire.from_text(dict[str, list[Trace]], TRACES.read_text())
SOME = [TEXTS["edit"][0], *TEXTS["explain"], TEXTS["source"][0]]
STEP = 0.07  # of the draft model, in t(1)
FACTORS = (7.0, 1 / 7.0)


class Simulated(NamedTuple):
    """A machine: its cost curve, and seconds of a plain decode. On a slow one a load measures t(1) alone."""

    name: str
    t1: float

    def process(self, stored: Any = None, texts: Sequence[Trace] = SOME) -> tuple[float, Any]:
        """Load with what is stored, and write the texts: (seconds in t(1), what is stored then)."""
        points = {n: self.t1 * t for n, t in MACHINES[self.name].items()}
        seconds, step = curve(points), steps_at(STEP * self.t1)
        costs, planners = CostCurve.from_dict(stored and stored["curve"]), list[Planner]()

        def planner(drafters: list[Drafter], clock: Callable[[], float]) -> Planner:
            planners.append(Planner(drafters, clock, costs, stored and stored["learnt"]))
            measure_load(costs, seconds, DEFAULT.max_rows, changes_known=True)
            measure_steps(planners[0].learnt.models["model"].steps, step, DEFAULT.max_rows)
            return planners[0]

        took = Replay(planner, seconds, step, CopyDrafter).replay(texts).seconds
        learnt = planners[0].learnt.to_dict()
        return took / self.t1, json.loads(json.dumps({"curve": costs.to_dict(), "learnt": learnt}))


def times(part: Any, factor: float, widths: Sequence[int] | None = None) -> None:
    for point in part["widths"]:
        if widths is None or point[0] in widths:
            point[1] *= factor


def tables(stored: Any) -> list[Any]:
    return [*stored["learnt"]["tables"].values(), stored["learnt"]["priced"]["model"]["after"]]


def acceptance(stored: Any, factor: float) -> None:
    for table in tables(stored):
        table["right"] = [
            min(n, factor * right) for right, n in zip(table["right"], table["seen"], strict=True)
        ]


def everything(stored: Any, factor: float) -> None:
    model = stored["learnt"]["priced"]["model"]
    times(stored["curve"], factor)
    times(stored["curve"], factor, range(2, 65))
    times(model["steps"], factor)
    acceptance(stored, factor)
    model["explore"] *= factor
    stored["learnt"]["credit"] *= factor


def useless(stored: Any, factor: float) -> None:
    """As if nothing that was ever drafted had been right."""
    del factor
    model = stored["learnt"]["priced"]["model"]
    for table in tables(stored):
        n = len(table["seen"])
        table["seen"], table["right"] = [100.0] * n, [0.0] * n
    model["first"] = [[0.0] * len(DEFAULT.chances) + [1.0]] * 2
    model["explore"], stored["learnt"]["credit"] = 0.0, -9.0


WRONG: dict[str, Callable[[Any, float], None]] = {
    **{
        f"t({n})": lambda stored, factor, n=n: times(stored["curve"], factor, [n])  # type: ignore[misc]
        for n in (1, 2, 16)
    },
    "t(2) and more": lambda stored, factor: times(stored["curve"], factor, range(2, 65)),
    "curve": lambda stored, factor: times(stored["curve"], factor),
    "step": lambda stored, factor: times(stored["learnt"]["priced"]["model"]["steps"], factor),
    "step of one": lambda stored, factor: times(stored["learnt"]["priced"]["model"]["steps"], factor, [1]),
    "acceptance": acceptance,
    "all": everything,
    "useless": useless,
}


@pytest.mark.parametrize("machine", [Simulated("A Q4_0", 0.016), Simulated("GPU", 3 * FAST_SECONDS)])
def test_wrong_stored_figures_cost_next_to_nothing(machine: Simulated) -> None:
    """An empty store is no faster than a right one, and hardly faster than a wrong one."""
    fresh, stored = machine.process()
    right, _ = machine.process(stored)
    assert right <= 1.02 * fresh
    plain = sum(len(trace.text) for trace in SOME)
    assert fresh < 0.7 * plain
    costs = {}
    for name, spoil in WRONG.items():
        for factor in FACTORS if name != "useless" else (1.0,):
            spoilt = copy.deepcopy(stored)
            spoil(spoilt, factor)
            first, after = machine.process(spoilt)
            second, _ = machine.process(after)
            costs[name, round(factor, 2)] = round(first / fresh, 3), round(second / fresh, 3)
    timed = {what: took for what, took in costs.items() if what[0] not in ("acceptance", "all", "useless")}
    assert {what: took for what, took in timed.items() if took[0] > 1.02} == {}
    assert {what: took for what, took in costs.items() if took[0] > 1.09 or took[1] > 1.04} == {}


def test_the_profile_of_a_busy_machine_is_corrected_at_loading() -> None:
    """As one was left: seven rows longer than sixteen, six shorter than five, a step seven times as long."""
    widths = [[1, 0.027, 5], [2, 0.044, 4], [4, 0.075, 4], [5, 0.09, 4], [6, 0.084, 4], [7, 0.256, 1]]
    costs = CostCurve.from_dict({"widths": [*widths, [8, 0.12, 4], [16, 0.212, 4], [32, 0.409, 3]]})
    true = curve({n: 0.016 * t for n, t in MACHINES["B Q4_0"].items()})
    measure_load(costs, true, 64, changes_known=True)
    for n in (1, 2, 4, 8):
        assert costs.predict(n) == pytest.approx(true(n), rel=0.5)
    assert costs.predict(7) <= 1.5 * true(7)
    steps = StepCosts()
    steps.curve = CostCurve.from_dict(
        {"widths": [[1, 0.0219, 4], [2, 0.0024, 4], [23, 0.0303, 1], [64, 0.0471, 1]], "anew": []}
    )
    measure_steps(steps, steps_at(0.003), 64)
    for n in (1, 2):
        assert steps.predict(n, 0.016) == pytest.approx(steps_at(0.003)(n), rel=0.5)


def test_a_slow_stored_step_that_no_load_can_measure_counts_as_a_usual_one_until_it_was_tried() -> None:
    steps = StepCosts()
    steps.curve = CostCurve.from_dict({"widths": [[1, 7.0, 4], [2, 8.0, 4]]})
    assert steps.predict(1, 1.0) == 2 * DEFAULT.step_prior
    steps.observe(1, 0.2)
    assert steps.predict(1, 1.0) == pytest.approx(0.2)
    steps.curve = CostCurve.from_dict({"widths": [[1, 0.1, 4]]})
    assert steps.predict(1, 1.0) == pytest.approx(0.1)


@pytest.mark.parametrize(("stored", "now"), [(0.0, 0.9), (1.0, 0.2)])
def test_stored_acceptance_is_given_up_after_few_tokens_that_it_cannot_explain(
    stored: float, now: float
) -> None:
    table = AcceptanceTable(DEFAULT.chances)
    n = len(DEFAULT.chances)
    assert table.restore({"right": [100.0 * stored] * n, "seen": [100.0] * n})
    before = table.chances[7]
    for i in range(12):
        table.observe(7, (i * 10 % 100) / 100 < now)
    assert abs(table.chances[7] - now) < 0.6 * abs(before - now)


# What takes long to measure is dated


class Day:
    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


def profile_of(store: Store, context: TimedContext, day: Day) -> ModelProfile:
    profile = ModelProfile(store, {"model": ["m"]}, {"drafters": []}, True, context.clock, time_of_day=day)
    profile.planner_of([])
    return profile


def compare(profile: ModelProfile, context: TimedContext) -> None:
    while profile.measure(context, filled(context, 300), 1.0):
        pass


def test_an_old_comparison_is_made_again_and_replaced(tmp_path: Path) -> None:
    """A wrong one would say for ever that texts are exact, or keep decodes narrow."""
    store, context, day = Store(tmp_path), TimedContext(), Day()
    compare(profile_of(store, context, day), context)
    path = next(tmp_path.glob("*.json"))
    right = json.loads(path.read_text())
    for wrong in ({"epsilon": 3.5, "alike": 17, "unlike": 32}, {"epsilon": 0.0, "alike": 63, "reach": 1e8}):
        path.write_text(json.dumps(right | wrong))
        assert profile_of(store, context, day).unmeasured(context, 300) == []
        for later in (FRESH_SECONDS + 1, -10.0):  # a clock that was ahead makes nothing last
            path.write_text(json.dumps(right | wrong | {"measured": {"comparison": day.now - later}}))
            again = profile_of(store, context, day)
            assert again.epsilon == wrong["epsilon"]  # until it is made again
            assert again.unmeasured(context, 300) == [1]
            compare(again, context)
            now = json.loads(path.read_text())
            assert (now["epsilon"], now["alike"], now.get("unlike"), now["reach"]) == (0, 63, None, 300)
            assert now["measured"]["comparison"] == day.now
            assert profile_of(store, context, day).unmeasured(context, 300) == []


def test_wider_batches_than_an_earlier_process_had_time_for_are_compared_next(tmp_path: Path) -> None:
    """Until then decodes have seventeen rows at most."""
    store, context, day = Store(tmp_path), TimedContext(), Day()
    compare(profile_of(store, context, day), context)
    path = next(tmp_path.glob("*.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"alike": 8, "n_rows": 62}))
    again = profile_of(store, context, day)
    assert again.row_limit(1) == (17, 0)
    context.widths.clear()
    compare(again, context)
    assert again.row_limit(1) == (63, 0)
    assert {n for n in context.widths if n <= 63} >= {17, 32, 63}
    assert not set(WIDTHS[:3]) & set(context.widths)


@pytest.mark.parametrize("factor", FACTORS)
def test_a_load_corrects_the_times_of_plain_decodes(tmp_path: Path, factor: float) -> None:
    """By them every answer would have been written on a busy machine."""
    store, context, day = Store(tmp_path), TimedContext(t1=0.02), Day()
    profile = profile_of(store, context, day)
    profile.observe_plain(10, factor * 0.02)
    profile.observe_plain(5000, factor * 0.025)
    profile.flush()
    again = profile_of(store, context, day)
    again.observe_load(0.02)
    assert again.plain_t1(10)[0] == pytest.approx(0.02)
    assert (again.plain_t1(5000)[0] or 1.0) >= 0.02
    again.observe_load(0.022)
    assert again.plain_t1(10)[0] == pytest.approx(0.02)  # it is about right


def test_what_a_change_costs_is_measured_again_unless_it_was_nothing_not_long_ago(tmp_path: Path) -> None:
    store, context, day = Store(tmp_path), TimedContext(), Day()
    sure = []
    for seconds, days in ((0.0, 1), (0.0, 8), (0.002, 1)):
        profile = profile_of(store, context, day)
        profile.observe_change(seconds)
        profile.flush()
        day.now += days * 24 * 3600
        sure.append(profile_of(store, context, day).change_is_sure)
    assert sure == [True, False, False]


def test_processors_have_no_changes_of_widths_that_cost_something(tmp_path: Path) -> None:
    """Building the graph of a small model again takes more than a tenth of its decode."""
    store, context, day = Store(tmp_path), TimedContext(), Day()
    profile = profile_of(store, context, day)
    profile.observe_change(0.01)
    profile.flush()
    assert profile_of(store, context, day).change_seconds == 0.01
    here = ModelProfile(store, {"model": ["m"]}, {"drafters": []}, True, context.clock, on_device=False)
    assert (here.change_seconds, here.change_is_sure) == (0, True)


def test_figures_are_bounded_by_what_they_can_be() -> None:
    figures = {"exact_width": 65, "exact_chunk": 1e5, "change": 60, "reach": 1e12}
    assert figures_of({**figures, "t1": 0.1}) == {"t1": 0.1}
