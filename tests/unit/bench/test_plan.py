"""The order in which a bench measures."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from specllama.bench import runner as workloads
from specllama.bench.runner import configs, order

NAMES = ["plain", "1", "4", "auto"]


def test_configurations_are_plain_each_length_once_and_auto() -> None:
    assert [c.name for c in configs([4, 1, 4])] == NAMES
    assert [c.draft_max for c in configs([4, 1])] == [0, 1, 4, None]
    assert [c.name for c in configs([4, 1], speculation=False)] == ["plain"]
    assert [c.name for c in configs([4], copies=True)] == ["plain", "4", "copy", "auto"]


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.sampled_from([(0.0,), (0.0, 0.8)]),
    st.integers(1, 3),
    st.integers(0, 9),
)
def test_each_run_measures_every_case_with_every_configuration_once(
    sizes: list[int], temperatures: tuple[float, ...], runs: int, seed: int
) -> None:
    names = {f"w{i}": tuple(f"{i} {j}" for j in range(n)) for i, n in enumerate(sizes)}
    cases, ways = workloads.cases(names, temperatures), configs([1, 4])
    steps = list(order(cases, ways, runs, seed))
    assert Counter((s.run, s.case, s.config) for s in steps) == Counter(
        (run, case, config) for run in range(1, runs + 1) for case in cases for config in ways
    )
    assert steps == list(order(cases, ways, runs, seed))
    assert [s.run for s in steps] == sorted(s.run for s in steps)
    if sum(sizes) > 1:  # a prompt follows itself only where two blocks meet
        n_blocks = runs * len(temperatures) * -(-sum(sizes) // 4)
        repeated = sum(a.case.prompt == b.case.prompt for a, b in pairwise(steps))
        assert repeated < n_blocks


def test_the_configurations_of_a_case_are_measured_close_together() -> None:
    cases, ways = workloads.cases(workloads.WORKLOADS, (0.0, 0.8)), configs([1, 2, 3])
    steps = list(order(cases, ways, 1))
    for case in cases:
        places = [i for i, step in enumerate(steps) if step.case == case]
        assert places[-1] - places[0] < 5 * len(ways)
    first = steps[: len(ways) * 16]  # two blocks of four at each temperature
    assert {s.case.workload for s in first} == set(workloads.WORKLOADS)
