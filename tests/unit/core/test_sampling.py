"""The sampling rule: exact samples of the truncated softmax, pure, with valid margins."""

# ruff: noqa: ARG005
from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from specllama.core.interfaces import DecodeError, SampledToken
from specllama.core.sampling import rows as noise
from specllama.core.sampling.params import SamplingParams, nth_seed, splitmix64
from specllama.core.sampling.proposal import probability
from specllama.core.sampling.rows import best_first, gumbel, top_ids
from specllama.core.sampling.sampler import KeyedSampler
from tests.support.examples import examples

PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def random_row(n_vocab: int, seed: int, spread: float = 2.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(n_vocab) * spread).astype(np.float32)


def log_softmax(row: np.ndarray) -> np.ndarray:
    """Natural-log probabilities of the raw row, same shape."""
    logprobs = row.astype(np.float64)
    logprobs -= logprobs.max()
    logprobs -= np.log(np.exp(logprobs).sum())
    return logprobs


def adjusted(row, params: SamplingParams, history, forbidden=()) -> dict[int, float]:
    """The logits by token after bias and penalties, computed as llama.cpp's samplers do."""
    out = {}
    window = list(history)[-params.repeat_last_n :] if params.repeat_last_n > 0 else list(history)
    if params.repeat_last_n == 0:
        window = []
    for token, value in enumerate(map(float, row)):
        if token in forbidden:
            continue
        x = value + params.logit_bias.get(token, 0.0)
        count = window.count(token)
        if count:
            x = x * params.repeat_penalty if x <= 0 else x / params.repeat_penalty
            x -= count * params.frequency_penalty + params.presence_penalty
        if x > -math.inf:
            out[token] = x
    return out


def truncated_softmax(row, params: SamplingParams, history=(), forbidden=()) -> dict[int, float]:
    """Probabilities by token: penalties, top-k, top-p, min-p, then the temperature."""
    kept = sorted(adjusted(row, params, history, forbidden).items(), key=lambda item: (-item[1], item[0]))
    if params.top_k:
        kept = kept[: params.top_k]
    top = kept[0][1]
    if params.top_p < 1:
        mass = [math.exp(v - top) for _, v in kept]
        n, seen = 0, 0.0
        while n < len(kept) and (n == 0 or seen < params.top_p * sum(mass)):
            seen += mass[n]
            n += 1
        kept = kept[:n]
    if params.min_p > 0:
        kept = [(t, v) for t, v in kept if v >= top + math.log(params.min_p)]
    if params.temperature == 0:
        return {kept[0][0]: 1.0}
    weights = [math.exp((v - top) / params.temperature) for _, v in kept]
    return {t: w / sum(weights) for (t, _), w in zip(kept, weights, strict=True)}


def chi_square(observed: dict[int, int], expected: dict[int, float]) -> tuple[float, float]:
    """The statistic over bins with an expectation of at least 5, and its 99.99th percentile."""
    n = sum(observed.values())
    bins, rest_seen, rest_expected = [], 0, 0.0
    for token, share in expected.items():
        if share * n >= 5:
            bins.append((observed.get(token, 0), share * n))
        else:
            rest_seen, rest_expected = rest_seen + observed.get(token, 0), rest_expected + share * n
    if rest_expected >= 5:
        bins.append((rest_seen, rest_expected))
    free = max(1, len(bins) - 1)
    limit = free * (1 - 2 / (9 * free) + 3.72 * math.sqrt(2 / (9 * free))) ** 3  # Wilson-Hilferty
    return sum((n_seen - n_expected) ** 2 / n_expected for n_seen, n_expected in bins), limit


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 0.4},
        {"temperature": 1.7, "top_k": 20},
        {"top_k": 5},
        {"top_k": 1, "temperature": 2.0},
        {"top_p": 0.7},
        {"top_p": 0.95, "temperature": 2.5},
        {"min_p": 0.05, "temperature": 3.0},
        {"top_k": 40, "top_p": 0.95, "min_p": 0.05, "temperature": 0.8},
        {"top_k": 12, "top_p": 0.6, "temperature": 1.5},
        {"top_k": 30, "repeat_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.3},
        {"logit_bias": {3: 4.0, 7: -100.0, 20: 2.5}},
    ],
    ids=str,
)
def test_choices_are_samples_of_the_truncated_softmax(changes):
    params = SamplingParams(**{**PLAIN, **changes})
    row, n = random_row(50, 5), 4000
    recent = [1, 2, 3, 3, 11, 40] * 11  # 66 ids, of which the last 64 are penalised
    observed: dict[int, int] = {}
    for i in range(n):
        # A different position each time or, where the history matters, a different seed.
        seed, history = (i, recent) if params.penalised else (99, range(i))
        token = KeyedSampler(params, seed, 50).choose(row, history).token
        observed[token] = observed.get(token, 0) + 1
    expected = truncated_softmax(row, params, recent if params.penalised else ())
    assert set(observed) <= set(expected)
    statistic, limit = chi_square(observed, expected)
    assert statistic < limit


def test_chi_square_detects_a_wrong_distribution():
    """A temperature applied before truncation does not pass."""
    params = SamplingParams(**{**PLAIN, "top_p": 0.7, "temperature": 2.0})
    row = random_row(50, 5)
    sampler = KeyedSampler(params, 1, 50)
    observed: dict[int, int] = {}
    for i in range(4000):
        token = sampler.choose(row, range(i)).token
        observed[token] = observed.get(token, 0) + 1
    wrong = truncated_softmax(row / 2, SamplingParams(**{**PLAIN, "top_p": 0.7}))
    statistic, limit = chi_square(observed, wrong)
    assert statistic > 3 * limit


param_sets = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0, 0.1, 0.8, 1.5, 5.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 40]),
    top_p=st.sampled_from([0.0, 0.3, 0.8, 0.95, 1.0]),
    min_p=st.sampled_from([0, 0.05, 0.5, 1.0]),
    repeat_penalty=st.sampled_from([1.0, 1.5, 0.5]),
    repeat_last_n=st.sampled_from([-1, 0, 3, 64]),
    presence_penalty=st.sampled_from([0, 0.7]),
    frequency_penalty=st.sampled_from([0, -0.4]),
    logit_bias=st.sampled_from([{}, {1: 3.0, 2: -math.inf}, {0: -2.0, 500: 9.0}]),
)
histories = st.lists(st.integers(0, 60), max_size=12)


@settings(max_examples=examples(300), deadline=None)
@given(param_sets, st.integers(4, 60), st.integers(0, 2**32), st.integers(0, 2**64 - 1), histories)
def test_the_choice_is_the_gumbel_max_of_the_reference(params, n_vocab, row_seed, seed, history):
    """argmax of logit / T + noise over the tokens that the reference keeps."""
    row = random_row(n_vocab, row_seed)
    sampler = KeyedSampler(params, seed, n_vocab, forbidden=[3])
    got = sampler.choose(row, history)
    kept = truncated_softmax(row, params, history, forbidden=[3])
    assert got.token in kept
    values = adjusted(row, params, history, forbidden=[3])
    if params.temperature:
        noise = gumbel(seed, len(history), np.arange(n_vocab))
        scores = {t: values[t] / params.temperature + noise[t] for t in kept}
        assert scores[got.token] == pytest.approx(max(scores.values()), abs=1e-4)
    # Measuring the margin does not change the choice; the same key gives the same token.
    assert sampler.choose(row, history, margin=True).token == got.token
    assert KeyedSampler(params, seed, n_vocab, forbidden=[3]).choose(row.copy(), list(history)) == got


@pytest.mark.parametrize("params", [SamplingParams(temperature=0), SamplingParams()], ids=["greedy", "warm"])
def test_barred_ids_are_chosen_from_their_position_on(params):
    """At the same positions for drafts, and with the noise of the others unchanged."""
    row = random_row(50, 1)
    free, never = (KeyedSampler(params, 5, 50, forbidden=f) for f in ((), range(25)))
    barred = KeyedSampler(params, 5, 50, barred=range(25), barred_until=40)
    for n in range(60):
        expected = (never if n < 40 else free).choose(row, range(n)).token
        for sampler in (barred, barred.limited(50), barred.widened(50)):
            assert sampler.choose(row, range(n)).token == expected
            assert sampler.choose(row, range(n // 2), ahead=range(n - n // 2)).token == expected
        assert barred.final_logprobs(row, range(n), None, expected, 5) == (
            never if n < 40 else free
        ).final_logprobs(row, range(n), None, expected, 5)


@pytest.mark.parametrize("margin", [False, True])
def test_the_lowest_id_wins_ties(margin):
    row = np.array([1, 5, 2, 5, 5, 0], np.float32)
    assert KeyedSampler(SamplingParams(temperature=0), 1, 6).choose(row, [], margin).token == 1
    one = KeyedSampler(SamplingParams(top_k=1), 1, 6)
    assert {one.choose(row, range(i), margin).token for i in range(50)} == {1}
    three = KeyedSampler(SamplingParams(top_k=2, temperature=9.0), 1, 6)
    assert {three.choose(row, range(i), margin).token for i in range(50)} == {1, 3}
    two = KeyedSampler(SamplingParams(top_k=0, top_p=0.6), 1, 6)
    assert {two.choose(row, range(i), margin).token for i in range(50)} == {1, 3}


def test_different_keys_give_different_noise():
    row = np.zeros(1000, np.float32)
    params = SamplingParams(**PLAIN)
    choose = lambda seed, n: KeyedSampler(params, seed, 1000).choose(row, range(n)).token  # noqa: E731
    assert len({choose(7, n) for n in range(200)}) > 150
    assert len({choose(s, 7) for s in range(200)}) > 150
    assert choose(7, 7) == choose(7, 7)


def test_the_noise_of_a_token_does_not_depend_on_the_other_tokens():
    all_noise = gumbel(5, 9, np.arange(1000))
    assert (gumbel(5, 9, np.array([900, 3])) == all_noise[[900, 3]]).all()
    assert np.isfinite(gumbel(2**64 - 1, 2**31, np.array([0, 2**31 - 1]))).all()
    many = np.concatenate([gumbel(1, p, np.arange(2000)) for p in range(100)])
    assert many.mean() == pytest.approx(0.5772, abs=0.01)
    assert many.var() == pytest.approx(math.pi**2 / 6, abs=0.03)
    assert np.corrcoef(gumbel(1, 1, np.arange(20000)), gumbel(1, 2, np.arange(20000)))[0, 1] < 0.03


def test_noise_is_finite_for_the_extreme_bits(monkeypatch):
    """The largest and the smallest hash: u stays strictly between 0 and 1."""
    for bits in (0, 2**64 - 1):
        monkeypatch.setattr(noise, "splitmix64", lambda x, bits=bits: bits)
        assert np.isfinite(gumbel(0, 0, np.array([0, 1]))).all()
    u = (np.array([2**52 - 1], np.uint64).astype(np.float64) + 0.5) * 2.0**-52
    assert u[0] < 1


def test_splitmix64_gives_the_published_values():
    """First outputs of the reference implementation from state 0 and from 1234567."""
    assert splitmix64(0) == 0xE220A8397B1DCDAF
    assert splitmix64(0x9E3779B97F4A7C15) == 0x6E789E6AA1B965F4
    assert splitmix64(1234567) == 6457827717110365317


def test_nth_seed_gives_distinct_seeds():
    seeds = [nth_seed(42, n) for n in range(100)]
    assert seeds[0] == 42
    assert len(set(seeds)) == 100
    assert all(0 <= s < 2**64 for s in seeds)
    assert nth_seed(43, 1) != seeds[1]


@settings(max_examples=examples(150), deadline=None)
@given(
    st.integers(10, 130_000),
    st.integers(1, 60),
    st.integers(0, 2**32),
    st.sampled_from([0, 1, 8]),
    st.booleans(),
)
def test_top_ids_are_those_of_a_full_sort(n, k, seed, steps, low):
    row = random_row(n, seed)
    if steps:  # coarse values: many ties
        row = np.round(row * steps) / np.float32(steps)
    if low:
        row[n // 3 :] = -np.inf
    k = min(k, n)
    expected = np.lexsort((np.arange(n), -row.astype(np.float64)))[:k]
    assert set(top_ids(row, k).tolist()) == set(expected.tolist())
    assert (best_first(row, np.sort(expected)) == expected).all()


def test_zeros_of_both_signs_are_equal():
    row = np.array([-0.0, 0.0, -1.0, 1.0], np.float32)
    assert best_first(row, np.arange(4)).tolist() == [3, 0, 1, 2]


margin_rows = st.tuples(
    st.integers(3, 80), st.integers(0, 2**32), st.sampled_from([0.3, 1.0, 3.0]), st.sampled_from([0, 8])
)


@settings(max_examples=examples(500), deadline=None)
@given(margin_rows, param_sets, st.integers(0, 2**64 - 1), histories, st.integers(0, 2**32))
def test_a_change_of_less_than_half_the_margin_never_changes_the_choice(
    shape, params, seed, history, noise_seed
):
    n_vocab, row_seed, spread, steps = shape
    row = random_row(n_vocab, row_seed, spread)
    if steps:  # coarse values put tokens exactly onto the limits of truncation
        row = np.round(row * steps) / np.float32(steps)
    sampler = KeyedSampler(params, seed, n_vocab)
    token, margin, _ = sampler.choose(row, history, margin=True)
    assert margin >= 0
    limit = min(margin, 6.0) / 2 * 0.999 - 1e-5  # minus the rounding of float32
    assume(limit > 0)
    rng = np.random.default_rng(noise_seed)
    changes = [rng.uniform(-limit, limit, n_vocab)]
    changes += [np.where(rng.random(n_vocab) < share, limit, -limit) for share in (0.1, 0.3, 0.5, 0.7, 0.9)]
    for change in list(changes[2:4]):
        change[token] = -limit
    for change in changes:
        assert sampler.choose((row + change).astype(np.float32), history).token == token


def margin_of(values: list[float], seed: int = 3, **changes) -> SampledToken:
    params = SamplingParams(**{**PLAIN, **changes})
    return KeyedSampler(params, seed, len(values)).choose(np.array(values, np.float32), [], margin=True)


def seed_preferring(token: int, n_vocab: int) -> int:
    """A seed whose noise at position 0 is largest for the token, so that a high temperature chooses it."""
    return next(s for s in range(999) if gumbel(s, 0, np.arange(n_vocab)).argmax() == token)


def test_the_margin_of_the_argmax_is_the_distance_to_the_second():
    assert margin_of([5, 4.5, 0], temperature=0)[:2] == (0, pytest.approx(0.5))
    assert margin_of([0, 0, 0], temperature=0)[:2] == (0, 0)
    assert margin_of([7], temperature=0)[:2] == (0, math.inf)


def test_the_margin_includes_tokens_just_outside_each_truncation():
    """The noise prefers another token; the margin is its distance from being kept."""
    hot, prefers_1 = {"temperature": 50.0}, seed_preferring(1, 2)
    assert margin_of([5, 4.2], prefers_1, **hot).token == 1
    assert margin_of([5, 4.2], prefers_1, **hot, top_k=1)[:2] == (0, pytest.approx(0.8))
    assert margin_of([5, 4.2], prefers_1, **hot, min_p=0.5)[:2] == (
        0,
        pytest.approx(0.8 - math.log(2), abs=1e-5),
    )
    odds = math.log(0.6 / 0.4)  # log odds of top_p
    assert margin_of([5, 4.2], prefers_1, **hot, top_p=0.6)[:2] == (0, pytest.approx(0.8 - odds, abs=1e-5))


def test_the_margin_of_a_token_just_inside_each_truncation():
    """The margin is the distance of the chosen token from being cut off."""
    hot, prefers_1 = {"temperature": 50.0}, seed_preferring(1, 3)
    assert margin_of([5, 4.2, 4.1], prefers_1, **hot, top_k=2)[:2] == (1, pytest.approx(0.1, abs=1e-5))
    assert margin_of([5, 4.2, -99], prefers_1, **hot, min_p=0.4)[:2] == (
        1,
        pytest.approx(math.log(1 / 0.4) - 0.8, abs=1e-5),
    )
    odds = math.log(0.8 / 0.2)
    assert margin_of([5, 4.2, -99], prefers_1, **hot, top_p=0.8)[:2] == (
        1,
        pytest.approx(odds - 0.8, abs=1e-5),
    )


def test_margins_are_not_needlessly_small():
    """On rows like a language model's, small margins are about as rare in sampling as for the argmax."""
    rng = np.random.default_rng(3)
    samplers = [KeyedSampler(SamplingParams(temperature=0), 1, 2000), KeyedSampler(SamplingParams(), 1, 2000)]
    small = np.zeros(2)
    for i in range(600):
        row = rng.standard_normal(2000) * 1.5
        row[rng.permutation(2000)[:20]] += rng.uniform(5, 14, 20)
        for j, sampler in enumerate(samplers):
            small[j] += sampler.choose(row.astype(np.float32), range(i), margin=True).margin < 0.04
    assert small[1] < 2 * small[0] + 6


def test_a_repeat_penalty_reduces_the_margin():
    """A penalty of 0.5 doubles differences between positive logits, so half the change is enough."""
    params = SamplingParams(temperature=0, repeat_penalty=0.5)
    choice = KeyedSampler(params, 1, 2).choose(np.array([3.0, 2.0], np.float32), [0, 1], margin=True)
    assert choice[:2] == (0, pytest.approx(1.0))


def test_choices_with_the_same_noise_mostly_agree_for_similar_distributions():
    """Target and draft model with the same noise: far above independent sampling, near the optimum."""
    params, n_vocab, n = SamplingParams(**PLAIN), 200, 600
    rng = np.random.default_rng(0)
    same, independent, optimum = 0, 0.0, 0.0
    for i in range(n):
        target = rng.standard_normal(n_vocab).astype(np.float32) * 2
        draft = (target + rng.standard_normal(n_vocab) * 0.5).astype(np.float32)
        sampler = KeyedSampler(params, 5, n_vocab)
        same += sampler.choose(target, range(i)).token == sampler.choose(draft, range(i)).token
        p, q = np.exp(log_softmax(target)), np.exp(log_softmax(draft))
        independent += float(p @ q)
        optimum += float(np.minimum(p, q).sum())
    assert same / n > 5 * independent / n
    assert same / n > 0.8 * optimum / n


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0, 0.8])
def test_rows_that_are_not_finite_are_rejected(bad, temperature):
    row = random_row(300, 1)
    row[17] = bad
    with pytest.raises(DecodeError, match="position 2 are not finite"):
        KeyedSampler(SamplingParams(temperature=temperature), 1, 300).choose(row, [4, 5])


def test_a_row_without_any_possible_token_is_rejected():
    with pytest.raises(DecodeError):
        KeyedSampler(SamplingParams(), 1, 5).choose(np.full(5, -np.inf, np.float32), [])
    with pytest.raises(DecodeError):
        KeyedSampler(SamplingParams(), 1, 3, forbidden=[0, 1, 2]).choose(np.zeros(3, np.float32), [])


def test_impossible_tokens_are_never_chosen():
    row = np.full(50, -np.inf, np.float32)
    row[[4, 9]] = 1, 0
    for params in (SamplingParams(), SamplingParams(**PLAIN), SamplingParams(top_k=0, top_p=0.999)):
        assert {
            KeyedSampler(params, 1, 50).choose(row, range(i), margin=i % 2 > 0).token for i in range(99)
        } <= {
            4,
            9,
        }


values = st.sampled_from([-math.inf, -2.0, 0.0, -0.0, 1.0, 3.0, math.nan])


@settings(deadline=None, max_examples=examples(300))
@given(st.lists(values, min_size=1, max_size=9), st.sets(st.integers(0, 8)), st.integers(1, 9))
def test_greedy_choices_skip_forbidden_tokens_with_and_without_margin(row, forbidden, n_vocab):
    """The shortcut, and the adjusted row that a margin needs, give the same token."""
    params, row = SamplingParams(temperature=0), np.array(row, np.float32)
    sampler = KeyedSampler(params, 1, min(n_vocab, len(row)), sorted(forbidden))
    chosen = []
    for margin in (False, True):
        try:
            chosen.append(sampler.choose(row, [1], margin=margin).token)
        except DecodeError:
            chosen.append(None)
    assert chosen[0] == chosen[1]
    assert chosen[0] not in forbidden


def test_ids_of_a_larger_draft_vocabulary_are_never_chosen():
    row = np.zeros(20, np.float32)
    row[15:] = 50
    sampler = KeyedSampler(SamplingParams(logit_bias={2: -math.inf, 17: 4.0}), 1, 20, forbidden=[1, 18])
    small = sampler.limited(10)
    got = {small.choose(row, [15, 16, *range(i)]).token for i in range(300)}
    assert got == set(range(10)) - {1, 2}
    assert sampler.limited(20) is sampler
    assert sampler.choose(row, []).token in {15, 16, 17, 19}


@pytest.mark.parametrize("temperature", [1e-300, 1e-30, 1e-5, 1e4])
@pytest.mark.parametrize("top_k", [0, 40])
def test_extreme_temperatures_are_argmax_or_nearly_uniform(temperature, top_k):
    row = random_row(500, 2)
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=1, min_p=0)
    got = {KeyedSampler(params, 1, 500).choose(row, range(i), margin=i % 2 > 0).token for i in range(100)}
    assert got == {int(row.argmax())} if temperature < 1 else len(got) > 20


def test_the_row_is_restored():
    row = random_row(100, 1)
    before = row.copy()
    KeyedSampler(SamplingParams(repeat_penalty=1.5, logit_bias={3: 2.0}), 1, 100, [5]).choose(
        row, [1, 2, 3], True
    )
    assert (row == before).all()


@given(st.integers(2, 400), st.integers(0, 2**32))
def test_probabilities_are_those_of_the_raw_row(n_vocab, seed):
    row = random_row(n_vocab, seed, 5.0)
    logs = log_softmax(row)
    assert logs.dtype == np.float64
    assert np.exp(logs).sum() == pytest.approx(1)
    for token in (0, n_vocab - 1, int(row.argmax())):
        assert probability(row, token) == pytest.approx(math.exp(logs[token]), rel=1e-4)


def test_an_impossible_token_has_probability_zero():
    row = np.array([-np.inf, 3, 3], np.float32)
    assert probability(row, 0) == 0
    assert log_softmax(row)[0] == -math.inf
