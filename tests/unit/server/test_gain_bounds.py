"""The bounds of comparisons that may end after each pair of runs: derived here, kept in gain.js."""

from __future__ import annotations

import re
from functools import cache
from math import atan, cos, exp, lgamma, pi, sqrt

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.paths import ROOT

LEAST, LEVEL = 3, 0.05
SOURCE = (ROOT / "specllama/server/static/gain.js").read_text("utf-8")


def kept() -> dict[int, list[float]]:
    """The bounds of gain.js by the most pairs."""
    (line,) = re.findall(r"const BOUNDS = \{(.+)\};", SOURCE)
    (most,) = re.findall(r"\[MOST_OF_RACE, MOST_OF_TASK\] = \[(\d+), (\d+)\]", SOURCE)
    names = dict(zip(("MOST_OF_RACE", "MOST_OF_TASK"), map(int, most), strict=True))
    found = re.findall(r"\[(\w+)\]: \[([\d., ]+)\]", line)
    return {names[name]: [float(x) for x in values.split(",")] for name, values in found}


@cache
def statistics(most: int, n: int = 200_000) -> NDArray[np.float64]:
    """|t| of n made-up comparisons without a difference after each pair from LEAST to `most`."""
    x = np.random.default_rng(1).standard_normal((n, most))
    count = np.arange(1, most + 1)
    mean = np.cumsum(x, 1) / count
    squares = np.maximum(np.cumsum(x * x, 1) - count * mean * mean, 1e-12)
    found: NDArray[np.float64] = np.abs(mean) / np.sqrt(squares / np.maximum(1, count - 1) / count)
    return found[:, LEAST - 1 :]


def quantile(level: float, freedom: int) -> float:
    """The t that Student's distribution exceeds, on either side, with this probability."""
    scale = exp(lgamma((freedom + 1) / 2) - lgamma(freedom / 2)) / sqrt(pi)

    def tail(t: float) -> float:
        begin = atan(t / sqrt(freedom))
        step = (pi / 2 - begin) / 400
        middles = (begin + (i + 0.5) * step for i in range(400))
        return 2 * scale * step * sum(cos(u) ** (freedom - 1) for u in middles)

    low, high = 0.0, 1000.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) > level else (low, middle)
    return low


@pytest.mark.parametrize("most", [5, 9])
def test_the_bounds_are_quantiles_of_one_level_that_all_looks_together_keep(most: int) -> None:
    low, high = LEVEL / most, LEVEL
    while high - low > 5e-5:
        level = (low + high) / 2
        bounds = np.array([quantile(level, n - 1) for n in range(LEAST, most + 1)])
        wrong = (statistics(most) > bounds).any(1).mean()
        low, high = (low, level) if wrong > LEVEL else (level, high)
    assert kept()[most] == pytest.approx(bounds, rel=0.02)
    assert (statistics(most) > np.array(kept()[most])).any(1).mean() <= LEVEL + 0.001
