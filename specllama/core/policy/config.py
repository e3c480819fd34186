"""The constants of the policies, in one frozen dataclass, and the check of numbers read from a store.

Knows no drafters, no models and no clock. An ablation passes another config: `replace(DEFAULT, lookahead=1)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import TypeGuard

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
    max_samples: int = 1000  # highest count of a width
    stored_samples: int = 4  # most measurements that a stored width counts as
    decode_seconds: tuple[float, float] = (1e-9, 1e6)  # stored seconds of a decode outside are rejected
    scale_step: float = log(
        1.5
    )  # log ratio; one measurement moves the scale as if it were off by this at most
    outlier: float = log(1.8)  # log ratio; a measurement further off does not change its width
    scale_rate: float = 0.12  # share of a deviation that the common scale adopts, from rounds with drafts
    plain_rate: float = 0.12  # the same from plain rounds
    width_rate: float = 0.04  # least share of a deviation that the width itself adopts
    implausible: float = 1.2  # a width above this many times as many single rows is measured again
    disturbed: float = 3.0  # a time above this many times its prediction counts as predicted
    unmeasured: float = 1.5  # factor of the upper bound of a width that was never measured
    change_share: float = 0.1  # a change of the width counts if it costs more: first and second decode
    # and if it costs more seconds than this, beyond what caches may cost. Without this, 2 of 5 loads take a
    # processor with t(1) = 0.2 ms for a device with costly changes; replays do not show that.
    change_seconds: float = 3e-4
    min_changes: int = 2  # measurements of each before they count
    change_samples: int = 9  # latest measurements, whose median counts
    kept_prior: float = 8.0  # assumed decodes of one width in a row
    kept_rate: float = 0.1  # weight of a run in their average
    loading_spread: float = 32.0  # decodes over which the cost of the first two of a width is spread
    context_buckets: tuple[int, ...] = (0, 4096, 16384, 65536, 262144)  # ids; each has a cost curve
    step_prior: float = 0.15  # assumed time of a step of the draft model before any is measured
    catch_up: float = 0.35  # assumed time of each further id of a step, in steps

    # Acceptance: the chance that a drafted token is right
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

    # Second candidates
    max_second_chance: float = 0.3  # prior: largest chance of one
    chance_after_second: float = 0.85  # prior: of a token after an accepted one

    # Draft gate: when to use the draft model
    likely_copy: float = 0.75  # chance of its first token from which a model-free draft counts as likely
    request_rate: float = 0.1  # weight of a round in the average gain of a request
    head_request_rate: float = 0.05  # the same of heads
    pair_rate: float = 0.02  # weight of a round in the average gain over all requests
    optimism: float = 0.1  # a request starts with the pair's average plus this
    first_wait: int = 32  # rounds without the model where it does not pay
    longest_wait: int = 64  # the wait doubles up to this
    good_chance: float = 0.93  # prior: acceptance of a good draft
    good_head_chance: float = 0.7  # the same of a good head
    max_prior_gain: float = 1.7  # prior: most gain of a good draft
    good_share: float = 0.2  # prior: share of good drafts
    wasted_steps: float = 0.7  # prior: steps lost on each of the others
    enough_tokens: float = 24.0  # first tokens of drafts after which their chances tell what can be gained
    no_gain_wait: int = 256  # rounds without a drafter that cannot gain, before it is tried again
    likely_copy_gain: float = 0.5  # prior: gain of a likely copy that the model has to exceed
    forgone_share: float = 0.5  # share of a forgone gain that counts towards catching up
    gate_by_copy: bool = True  # separate gains by the copy that the model competes with
    stored_gain: tuple[float, float] = (-0.5, 4.0)  # stored gains are limited to this range
    stored_added_time: float = 16.0  # stored times that a drafter adds to a round are limited to this

    # Several priced drafters: trials of those that are not expected to be the best
    trial_allowance: float = 3.0  # most that trials of a drafter may lose at once
    trial_share: float = 0.005  # share of the time of rounds that refills it
    trial_wait: int = 32  # rounds with other drafters before a trial
    trial_rounds: int = 8  # rounds of a trial, after catching up once

    # Draft of the model
    max_model_draft: int = 48  # most tokens of the model in a round
    lookahead: int = 8  # further tokens that are considered before it stops
    risk_share: float = 0.6  # share of their risk that counts, since it can still stop at each of them
    min_tail: int = 16  # ids; the model is not used with less of the sequence in its cache
    max_stall: float = 0.5  # seconds of catching up at once while other sequences are decoded
    catch_up_ids: int = 128  # the same of `Fixed`, which knows no times, in ids

    # Heads: they read the target's hidden states, and draft well with little of the text in their caches
    head_min_tail: int = 4  # as min_tail
    head_catch_up: float = 0.25  # in t(1): most that the first draft of a text may cost beyond one step

    # Model-free drafts
    free_chunk: int = 16  # tokens drafted at once
    chunk_margin: int = 8  # a draft that ends this close to the end of its chunk is extended
    fixed_copy_floor: float = 0.5  # `Fixed`: a copy less likely than this leaves the round to the draft model

    # Speculation budget: what drafting may lose
    allowance: float = 3.5  # once per loaded pair; 0.5 of the promised four is reserved for timing errors
    overhead: float = 0.01  # share of plain decoding, in addition
    changing_overhead: float = 0.02  # the same where changes of the width cost something
    round_share: float = 0.65  # share of the credit that one round may lose
    max_gain: float = 32.0  # most credit above the allowance, so that old gains cannot be lost again
    stored_credit: tuple[float, float] = (1.0, 5.0)  # range of the credit that a later process starts with
    plain_every: float = 100.0  # time after which one plain round keeps t(1) known


DEFAULT = PolicyConfig()


def is_number(x: object, low: float = -_LARGEST, high: float = _LARGEST) -> TypeGuard[float]:
    """Whether a stored value is a number from `low` to `high`; booleans and NaN are not."""
    return isinstance(x, int | float) and not isinstance(x, bool) and low <= x <= high


def numbers(x: object, n: int, low: float = -_LARGEST, high: float = _LARGEST) -> list[float] | None:
    """The stored value as floats if it is a list of `n` numbers from `low` to `high`, else None."""
    if not isinstance(x, list) or len(x) != n or not all(is_number(v, low, high) for v in x):
        return None
    return [float(v) for v in x]
