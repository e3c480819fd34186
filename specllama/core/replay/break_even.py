"""The acceptance rate from which drafts pay, computed from the costs of decodes and draft tokens.

A round that drafts k tokens, each accepted with chance a where those before it are, gives 1 + a + ... + a^k
tokens on average (Leviathan, Kalman, Matias, arXiv 2211.17192, equation 1). Knows no drafters and no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve

_HALVINGS = 50


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Drafts of k tokens pay from this acceptance on; 1: not even if all tokens are accepted. decode, step:
    costs of k + 1 rows and of a draft model token, in decodes of one row.
    """

    k: int
    acceptance: float
    decode: float
    step: float


def expected_tokens(acceptance: float, k: float) -> float:
    """Tokens expected from a round that drafts k tokens; k may be fractional, such as a mean."""
    if acceptance >= 1:
        return k + 1
    return float((1 - acceptance ** (k + 1)) / (1 - acceptance))


def acceptance_needed(k: float, cost: float) -> float:
    """The acceptance, 0 to 1, from which a round that drafts k tokens and costs `cost` decodes of one row is
    faster than plain decoding; 1: never.
    """
    if cost >= k + 1:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS if cost > 1 else 0):
        middle = (low + high) / 2
        low, high = (low, middle) if expected_tokens(middle, k) >= cost else (middle, high)
    return low


def break_evens(
    curve: CostCurve, step: float, lengths: Iterable[int] = range(1, DEFAULT.max_rows)
) -> list[BreakEven]:
    """The break-even point of each draft length whose decode was measured. step: seconds of a draft model
    token, 0 for model-free drafts.
    """
    t1 = curve.predict(1)
    if not t1:
        return []
    costs = [
        (k, curve.predict(k + 1) / t1) for k in lengths if curve.count(k + 1) >= curve.config.min_samples
    ]
    return [BreakEven(k, acceptance_needed(k, t + k * step / t1), t, step / t1) for k, t in costs]


def easiest(points: Iterable[BreakEven]) -> BreakEven | None:
    """The one that needs the least acceptance, the shortest of equal ones; None without any."""
    return min(points, key=lambda b: (b.acceptance, b.k), default=None)
