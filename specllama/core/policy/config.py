"""The constants of the policies, in one frozen dataclass, and the check of numbers read from a store.

Knows no drafters, no models and no clock. An ablation passes another config: `replace(DEFAULT, lookahead=1)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import log
from typing import TypeGuard

from specllama import wire

_LARGEST = 1e300  # integers of JSON beyond this do not fit a float


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """Every constant that a policy depends on. Unless stated otherwise, amounts of time are in t(1), the time
    of a plain decode of one row.
    """

    # Cost curve: what a decode of n rows takes
    max_rows: int = 64  # rows of the widest decode with drafts; beyond, cost grows in proportion
    decode_prior: tuple[tuple[int, float], ...] = (
        (1, 1.0), (2, 1.5), (4, 2.0), (8, 3.0), (16, 4.5), (32, 8.0), (64, 15.0),
    )  # fmt: skip  # (rows, time) before any width is measured
    min_samples: int = 3  # measurements that make a width reliable; the shortest of the first ones counts
    most_off: float = log(1.5)  # log ratio; one measurement counts as if it were off by this at most
    scale_rate: float = 0.12  # share of a deviation that the scale adopts
    width_rate: float = 0.04  # least share of a deviation that the width itself adopts
    unmeasured: float = 1.5  # factor of the upper bound of a width that was never measured
    disturbed: float = 3.0  # a time above this many times its prediction counts as predicted
    context_buckets: tuple[int, ...] = (0, 4096, 16384, 65536, 262144)  # ids; each has a cost curve
    step_prior: float = 0.15  # assumed time of a step of the draft model before any is measured
    catch_up: float = 0.35  # assumed time of each further id of a step, in steps

    # Posterior: the chance that a drafted token is right
    confidence_edges: tuple[float, ...] = (
        0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999,
    )  # fmt: skip  # between bins; fine near 1: fifteen tokens at 0.95 are not fifteen at 0.995
    chances: tuple[float, ...] = (
        0.05, 0.15, 0.27, 0.42, 0.57, 0.72, 0.85, 0.92, 0.96, 0.98, 0.985, 0.99, 0.995,
    )  # fmt: skip  # prior by bin of confidence
    next_chances: tuple[float, ...] = tuple(
        0.4 + 0.04 * b for b in range(13)
    )  # of the token after an accepted one
    prior_weight: float = 4.0  # observations that a prior is worth
    forget: float = 0.99  # weight of an observation one observation later
    free_prior_weight: float = 8.0  # the same two for drafters that cost no decode
    free_forget: float = 0.995
    request_rate: float = 0.2  # weight of a draft in what a request expects of a drafter
    pair_rate: float = 0.02  # the same of all requests

    # Draft models and heads
    enough_tokens: float = 24.0  # tokens of drafts after which their gain is known
    explore_allowance: float = 1.0  # most that drafts which are not expected to pay may lose at once
    stored_explore: float = 0.2  # least of it that a later process starts with
    explore_share: float = 0.0025  # share of the time of rounds that refills it
    max_model_draft: int = 48  # most tokens in a round
    lookahead: int = 8  # further tokens that are considered before drafting stops
    risk_share: float = 0.6  # share of their risk that counts, since it can still stop at each of them
    min_tail: int = 16  # ids; a draft model is not used with less of the sequence in its cache
    head_min_tail: int = 4  # the same of heads
    head_catch_up: float = 0.25  # most that the first draft of a head may cost beyond one step
    max_stall: float = 0.5  # seconds of catching up at once while other sequences are decoded

    # Texts with one width, before any draft of the pair was verified
    shadow_drafts: int = 8  # drafts that are compared with the text before it gets a width
    shadow_tokens: int = 4  # most tokens of each

    # Model-free drafts
    free_chunk: int = 16  # tokens drafted at once
    chunk_margin: int = 8  # a draft that ends this close to the end of its chunk is extended

    # Speculation budget: what drafting may lose
    allowance: float = 3.5  # once per loaded pair; 0.5 of the promised four is reserved for timing errors
    overhead: float = 0.01  # share of plain decoding, in addition
    round_share: float = 0.65  # share of the credit that one round may lose
    max_gain: float = 32.0  # most credit above the allowance, so that old gains cannot be lost again
    stored_credit: tuple[float, float] = (1.0, 5.0)  # range of the credit that a later process starts with
    plain_every: float = 100.0  # time after which one plain round keeps t(1) known

    def prior(self, n: int) -> float:
        """The assumed time of a decode of n rows before any is measured."""
        widest, cost = self.decode_prior[-1]
        if n >= widest:
            return cost * n / widest
        (low, a), (high, b) = next((one, two) for one, two in pairwise(self.decode_prior) if n <= two[0])
        return a + (b - a) * (n - low) / (high - low)


DEFAULT = PolicyConfig()


def is_number(x: object, low: float = -_LARGEST, high: float = _LARGEST) -> TypeGuard[float]:
    """Whether a stored value is a number from `low` to `high`; booleans and NaN are not."""
    return isinstance(x, int | float) and not isinstance(x, bool) and low <= x <= high


def stored_counts(data: Mapping[str, object], forget: float) -> tuple[list[float], list[float]] | None:
    """`right` and `seen` of a stored table, equally many and at least one, else None. forget: the weight of
    an observation after the next one, which bounds both.
    """
    right, seen = (wire.stored(list[float], data.get(name), []) for name in ("right", "seen"))
    pairs, most = list(zip(right, seen, strict=False)), 1.01 / (1 - forget)
    if not pairs or len(right) != len(seen) or not all(0 <= r <= s <= most for r, s in pairs):
        return None
    return right, seen
