"""Recorded texts on devices whose changes of the width cost something: the planner, which learns that on the
way, next to fixed lengths and to plain decoding.
"""

from __future__ import annotations

import pytest

from scripts.replay.__main__ import load
from scripts.replay.devices import device_cells
from tests.support.devices import curves
from tests.support.paths import ROOT

TEXTS = [t for texts in load(str(ROOT / "tests/unit/core/traces/pydoc.json")).values() for t in texts]
A_CHANGE_COSTS_MORE_THAN_THREE_DECODES = ("MoE 128/8, 16 layers, Q4_K_M",)


@pytest.mark.parametrize("name", list(curves()))
def test_the_planner_is_as_fast_as_the_best_fixed_length_and_never_much_slower_than_plain(name):
    (cell,) = device_cells({name: curves()[name]}, TEXTS, steps=(0.05,), lengths=(2, 5, 11, 15))
    assert cell.gain > 0.97 * cell.fixed > 1.5
    assert cell.excess < (12 if name in A_CHANGE_COSTS_MORE_THAN_THREE_DECODES else 0)
