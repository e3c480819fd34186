"""What is asked in which order, and what is refused before anything is loaded."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.bench import workloads
from specllama.bench.plan import order
from specllama.bench.samples import configs
from specllama.errors import NotFoundError, UsageError


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.sampled_from([(0.0,), (0.0, 0.8)]),
    st.integers(1, 3),
    st.integers(0, 9),
)
def test_every_answer_is_asked_for_once_a_run(
    sizes: list[int], temperatures: tuple[float, ...], runs: int, seed: int
) -> None:
    names = {f"w{i}": tuple(f"{i} {j}" for j in range(n)) for i, n in enumerate(sizes)}
    units, ways = workloads.units(names, temperatures), configs([1, 4])
    steps = list(order(units, ways, runs, seed))
    assert Counter((s.run, s.unit, s.config) for s in steps) == Counter(
        (run, unit, config) for run in range(1, runs + 1) for unit in units for config in ways
    )
    assert steps == list(order(units, ways, runs, seed))
    assert [s.run for s in steps] == sorted(s.run for s in steps)
    if sum(sizes) > 1:  # no prompt follows on itself but where two blocks meet
        n_blocks = runs * len(temperatures) * -(-sum(sizes) // 4)
        repeated = sum(a.unit.prompt == b.unit.prompt for a, b in pairwise(steps))
        assert repeated < n_blocks


def test_configurations_of_a_unit_are_measured_close_together() -> None:
    units, ways = workloads.units(workloads.WORKLOADS, (0.0, 0.8)), configs([1, 2, 3])
    steps = list(order(units, ways, 1))
    for unit in units:
        places = [i for i, step in enumerate(steps) if step.unit == unit]
        assert places[-1] - places[0] < 5 * len(ways)
    first = steps[: len(ways) * 16]  # two blocks of four at each temperature
    assert {s.unit.workload for s in first} == set(workloads.WORKLOADS)


def test_the_packages_own_workloads_pass_their_check() -> None:
    assert list(workloads.WORKLOADS) == ["explain", "source", "json", "edit", "free"]
    found = {name: list(prompts) for name, prompts in workloads.WORKLOADS.items()}
    assert workloads.check(found, "here") == workloads.WORKLOADS
    every = [p for prompts in workloads.WORKLOADS.values() for p in prompts]
    assert len(set(every)) == len(every) == 20


def test_a_prompts_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"chat": ["Grüße", "b"], "c": ["d"]}).encode())
    found = workloads.load(str(path))
    assert found == {"chat": ("Grüße", "b"), "c": ("d",)}
    assert workloads.chosen(found, " c , chat") == {"c": ("d",), "chat": ("Grüße", "b")}
    assert workloads.chosen(found, None) == found


@pytest.mark.parametrize(
    ("data", "needle"),
    [
        (b"{", "no JSON"),
        (b"[" * 100_000, "nested"),
        (b"\xff", "UTF-8"),
        (b"[]", "no JSON object"),
        (b"{}", "no workloads"),
        (b'{"a": "b"}', "list"),
        (b'{"a": []}', "at least one prompt"),
        (b'{"a": ["x", 1]}', "prompt 2 of a is no text"),
        (b'{"a": [" \\n"]}', "is empty"),
        (b'{"a": ["\\ud800"]}', "half a character"),
        (b'{"a": ["x"], "a": ["y"]}', "twice"),
        (b'{"all": ["x"]}', "cannot name"),
        (b'{" ": ["x"]}', "cannot name"),
        (b'{"\\u001b[31m": ["x"]}', "cannot name"),
        (json.dumps({"n" * 41: ["x"]}).encode(), "cannot name"),
        (json.dumps({"a": ["x"] * 10_001}).encode(), "10001 prompts"),
        (json.dumps({"a": ["x" * ((1 << 20) + 1)]}).encode(), "characters"),
    ],
)
def test_prompts_that_cannot_be_used(tmp_path: Path, data: bytes, needle: str) -> None:
    path = tmp_path / "prompts.json"
    path.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        workloads.load(str(path))
    assert needle in caught.value.message
    assert "\x1b" not in str(caught.value)
    assert len(caught.value.message) < 300


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        workloads.load(str(tmp_path / "absent.json"))
    with pytest.raises(UsageError):
        workloads.load(str(tmp_path))
    with pytest.raises(UsageError, match="larger than"):
        workloads.load("/dev/zero")
    for names in ("nope", ",", ""):
        with pytest.raises(UsageError):
            workloads.chosen(workloads.WORKLOADS, names)
