"""The acceptance from which drafts pay: arithmetic over what decodes and draft tokens take.

A round that drafts k tokens, each accepted with chance a where those before it are, gives
1 + a + ... + a^k tokens on average (Leviathan, Kalman, Matias, arXiv 2211.17192, equation 1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from specllama.core.policy.cost_curve import FIRST, WIDEST, CostCurve

_HALVINGS = 50


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Drafts of k tokens pay from this acceptance on; 1: not even where all of them are accepted. decode,
    step: what k + 1 rows, and a token of the draft model, take, in decodes of one row.
    """

    k: int
    acceptance: float
    decode: float
    step: float


def expected_tokens(acceptance: float, k: float) -> float:
    """Tokens of a round that drafts k; k may be a mean and no whole number."""
    if acceptance >= 1:
        return k + 1
    return float((1 - acceptance ** (k + 1)) / (1 - acceptance))


def acceptance_needed(k: float, cost: float) -> float:
    """From which acceptance a round that drafts k tokens, and takes what `cost` decodes of one row take, is
    faster than those; from 0, for any, to 1, for none.
    """
    if cost >= k + 1:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS if cost > 1 else 0):
        middle = (low + high) / 2
        low, high = (low, middle) if expected_tokens(middle, k) >= cost else (middle, high)
    return low


def break_evens(curve: CostCurve, step: float, lengths: Iterable[int] = range(1, WIDEST)) -> list[BreakEven]:
    """For each draft length whose decode was measured. step: seconds of a token of the draft model, 0 where
    drafts cost nothing.
    """
    t1 = curve.predict(1)
    if not t1:
        return []
    costs = [(k, curve.predict(k + 1) / t1) for k in lengths if curve.count(k + 1) >= FIRST]
    return [BreakEven(k, acceptance_needed(k, t + k * step / t1), t, step / t1) for k, t in costs]


def easiest(found: Iterable[BreakEven]) -> BreakEven | None:
    """The one that needs the least acceptance, the shortest of several; None of none."""
    return min(found, key=lambda b: (b.acceptance, b.k), default=None)
