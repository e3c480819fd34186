"""The sampler compared with the same rule written without shortcuts: the whole row is copied and sorted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.core.interfaces import DecodeError, MaskError
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.rows import best_first, gumbel, top_ids
from specllama.core.sampling.sampler import NOTHING_LEGAL, KeyedSampler
from tests.support.examples import examples
from tests.support.scripted import TableMask

SIZES = (1, 40, 700, 4159, 4160, 5190, 9001)  # below and above the size from which top_ids uses blocks


def made_row(n: int, seed: int, steps: int, n_possible: int | None) -> np.ndarray:
    """Logits. steps: rounded to 1 / steps for ties (0: not). n_possible: about this many are finite."""
    rng = np.random.default_rng(seed)
    row = (rng.standard_normal(n) * 2.5).astype(np.float32)
    if steps:
        row = np.round(row * steps) / np.float32(steps)
    if n_possible is not None:
        row[rng.random(n) >= n_possible / n] = -np.inf
        row[int(rng.integers(n))] = 1.0
    return row


def by_sorting(
    row: np.ndarray,
    params: SamplingParams,
    seed: int,
    history: Sequence[int],
    forbidden: Collection[int],
    legal: np.ndarray | None,
) -> int:
    """The token, or NOTHING_LEGAL."""
    row, n = row.copy(), len(row)
    bias = {t: b for t, b in params.logit_bias.items() if t < n} | {t: -math.inf for t in forbidden if t < n}
    for token, b in bias.items():
        row[token] += np.float32(b)
    if params.penalised:
        window = history[-params.repeat_last_n :] if params.repeat_last_n > 0 else history
        for token, count in Counter(t for t in window if t < n).items():
            x = row[token]
            x = x / params.repeat_penalty if x > 0 else x * params.repeat_penalty
            row[token] = x - np.float32(count) * params.frequency_penalty - params.presence_penalty
    if legal is None:
        return sample(row, params, seed, len(history), None)
    token = sample(row, params, seed, len(history), None)
    if legal[token]:
        return token
    masked = np.where(legal, row, np.float32(-np.inf))
    if masked.max() == -np.inf:
        return NOTHING_LEGAL
    if not params.greedy and (token := sample(row, params, seed, len(history), legal)) != NOTHING_LEGAL:
        return token
    return sample(masked, params, seed, len(history), None)


def sample(
    row: np.ndarray, params: SamplingParams, seed: int, position: int, legal: np.ndarray | None
) -> int:
    """Top-k, top-p, min-p, then Gumbel-max over the legal tokens."""
    order = np.lexsort((np.arange(len(row)), -row))
    order = order[row[order] > -np.inf]
    if params.greedy:
        return int(order[0])
    kept = order[: params.top_k] if params.top_k else order
    values = row[kept].astype(np.float64)
    top = values[0]
    if params.top_p < 1:
        weights = np.cumsum(np.exp(values - top))
        kept = kept[: int(np.searchsorted(weights, params.top_p * weights[-1])) + 1]
    floor = float(np.float32(top + math.log(params.min_p))) if params.min_p > 0 else -math.inf
    kept = kept[row[kept] >= floor]
    scores = (row[kept].astype(np.float64) - top) / params.temperature + gumbel(seed, position, kept)
    if legal is not None:
        scores[~legal[kept]] = -math.inf
        if scores.max() == -math.inf:
            return NOTHING_LEGAL
    return int(kept[scores.argmax()])


params_strategy = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0, 0.3, 0.8, 1.5]),
    top_k=st.sampled_from([1, 2, 20, 40, 100]),
    top_p=st.sampled_from([0.5, 0.95, 1.0]),
    min_p=st.sampled_from([0, 0.05, 0.5]),
    repeat_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    repeat_last_n=st.sampled_from([-1, 0, 3, 64]),
    presence_penalty=st.sampled_from([0, 0.7]),
    frequency_penalty=st.sampled_from([0, -0.4]),
    logit_bias=st.sampled_from([{}, {1: 3.0, 2: -math.inf, 7: -3.0}, {0: 2.0, 4_500: 9.0, 9_999: 50.0}]),
)
rows = st.builds(
    made_row,
    st.sampled_from(SIZES),
    st.integers(0, 2**32),
    st.sampled_from([0, 1, 8]),
    st.sampled_from([None, None, 0, 5, 60]),
)
n_legal = st.sampled_from([None, 0, 3, 300, 5000])


@settings(max_examples=examples(250), deadline=None)
@given(rows, params_strategy, st.integers(0, 2**64 - 1), st.integers(0, 12), st.integers(0, 12), n_legal)
def test_the_choice_is_that_of_the_rule_without_shortcuts(row, params, seed, n_history, n_ahead, n_legal):
    rng = np.random.default_rng(seed)
    n = len(row)
    history = [int(t) for t in rng.integers(0, min(n, 9), n_history)]
    ahead = [int(t) for t in rng.integers(0, min(n, 9), n_ahead)]
    forbidden = [] if row.max() == row[min(3, n - 1)] else [3]  # at least one token is left
    legal, mask = None, None
    if n_legal is not None:
        legal = rng.random(n) < n_legal / n
        mask = TableMask(n, lambda _: set(np.flatnonzero(legal).tolist()) | set(ahead))
        legal = mask.allowed(ahead)
    banned = {t for t, bias in params.logit_bias.items() if bias == -math.inf} | set(forbidden)
    if not np.isfinite(row[[t for t in range(n) if t not in banned]]).any():
        return
    expected = by_sorting(row, params, seed, [*history, *ahead], forbidden, legal)
    before, sampler = row.copy(), KeyedSampler(params, seed, n, forbidden)
    for margin in (False, True):
        assert sampler.choose(row, history, margin, mask, ahead).token == expected
        assert row.tobytes() == before.tobytes()
    if mask is None:
        assert sampler.choose(row, [*history, *ahead]).token == expected


@settings(max_examples=examples(250), deadline=None)
@given(
    rows,
    params_strategy,
    st.sets(st.integers(0, 130), max_size=20),
    st.booleans(),
    st.booleans(),
)
def test_a_forbidden_token_is_like_an_impossible_one(row, params, ranks, margin, broken):
    """Choice and margin, whatever the ranks of the forbidden tokens. broken: one of them has a NaN."""
    params = replace(params, logit_bias={}, repeat_penalty=1.0, presence_penalty=0, frequency_penalty=0)
    forbidden = [int(i) for i in (-row).argsort(kind="stable")[[p % len(row) for p in sorted(ranks)]]]
    without = row.copy()
    without[forbidden] = -np.inf
    if not np.isfinite(without.max()):
        return
    if broken and forbidden:
        row[forbidden[0]] = np.nan
    sampler, other = (KeyedSampler(params, 7, len(row), f) for f in (forbidden, ()))
    try:
        choice = sampler.choose(row, [1, 2], margin)
    except DecodeError:
        assert broken
        return
    assert choice == other.choose(without, [1, 2], margin)


@settings(max_examples=examples(150), deadline=None)
@given(rows, st.sampled_from([1, 2, 40, 64, 101]))
def test_top_ids_are_the_first_of_a_full_sort(row, k):
    k = min(k, len(row))
    expected = np.lexsort((np.arange(len(row)), -row))[:k]
    assert top_ids(row, k).tolist() == expected.tolist()
    assert best_first(row, np.sort(expected)).tolist() == expected.tolist()


@settings(max_examples=examples(100), deadline=None)
@given(
    st.sampled_from(SIZES), st.sets(st.integers(0, 9000), min_size=1, max_size=50), st.sampled_from([1, 40])
)
def test_nan_is_detected_at_any_position(n, ranks, k):
    row = made_row(n, 1, 0, None)
    row[[p % n for p in ranks]] = np.nan
    assert set(top_ids(row, min(k, n)).tolist()) == {p % n for p in ranks}
    for temperature in (0, 0.8):
        with pytest.raises(DecodeError, match="not finite"):
            KeyedSampler(SamplingParams(temperature=temperature, top_k=k), 1, n).choose(row, [])


def test_among_equal_logits_the_lowest_ids_come_first():
    row = np.zeros(128_256, np.float32)
    assert top_ids(row, 40).tolist() == list(range(40))
    assert KeyedSampler(SamplingParams(top_k=1), 1, len(row)).choose(row, []).token == 0


def test_the_row_is_restored_after_errors():
    class Failing(TableMask):
        def allows(self, token: int, ahead: Sequence[int] = ()) -> bool:  # noqa: ARG002
            raise MaskError("too many items")

    params = SamplingParams(repeat_penalty=1.5, logit_bias={3: 2.0, 4: -math.inf})
    sampler = KeyedSampler(params, 1, 100, [5])
    row = made_row(120, 1, 0, None)
    row[7], row[8] = np.nan, -0.0
    before = row.tobytes()
    with pytest.raises(DecodeError):
        sampler.choose(row, [1, 3, 3, 7, 8])
    assert row.tobytes() == before
    row[7] = 1.0
    before = row.tobytes()
    with pytest.raises(MaskError):
        sampler.choose(row, [1, 3, 3, 7, 8], mask=Failing(100, lambda _: {1}))
    assert row.tobytes() == before
