"""Sampling steps in any order: texts with drafts are those without; large rows as small ones.

Whether each step is llama.cpp's: tests/engine/test_samplers.py.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.core.engine import Engine
from specllama.core.interfaces import DecodeError
from specllama.core.policy.fixed import Fixed
from specllama.core.sampling import chain, dry
from specllama.core.sampling.params import PARAMETERS, STEP_NAMES, SamplingParams
from specllama.core.sampling.rows import gumbel, keyed_best
from specllama.core.sampling.sampler import NOTHING_LEGAL, KeyedSampler
from specllama.core.sequence import Request
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.model import ModelDrafter
from specllama.errors import with_option_names
from specllama.testing import TableContext, table_row
from tests.support.examples import examples
from tests.support.scripted import TableMask

N_VOCAB = 32
BREAKERS = {7: [()], 9: [(10,)]}
chains = st.builds(
    SamplingParams,
    samplers=st.lists(st.sampled_from([*STEP_NAMES.values()]), max_size=12),
    temperature=st.sampled_from([0, 0.4, 0.8, 1.0, 1.5]),
    dynatemp_range=st.sampled_from([0, 0, 0.5]),
    top_k=st.sampled_from([0, 3, 12, 40]),
    top_p=st.sampled_from([0.5, 0.95, 1.0]),
    min_p=st.sampled_from([0, 0.05, 0.3]),
    typical_p=st.sampled_from([0.3, 0.9, 1.0]),
    top_n_sigma=st.sampled_from([-1, 1, 2]),
    xtc_probability=st.sampled_from([0, 0.5, 1]),
    xtc_threshold=st.sampled_from([0.05, 0.2]),
    dry_multiplier=st.sampled_from([0, 0.8, 100]),
    dry_allowed_length=st.sampled_from([0, 1, 2]),
    dry_penalty_last_n=st.sampled_from([-1, 0, 12]),
    repeat_penalty=st.sampled_from([1.0, 1.3]),
    mirostat=st.sampled_from([0, 0, 0, 1, 2]),
    mirostat_tau=st.sampled_from([0.5, 3.0]),
    adaptive_target=st.sampled_from([-1, 0.2, 0.7]),
    min_keep=st.sampled_from([0, 0, 3]),
    logit_bias=st.sampled_from([{}, {5: 3.0, 6: -math.inf}]),
    max_tokens=st.sampled_from([12, 40]),
    logprobs=st.sampled_from([None, 3]),
)
prompts = st.lists(st.integers(4, N_VOCAB - 1), min_size=1, max_size=16)


def generated(requests: list[Request], *drafters, n_max: int, n_slots: int = 1):
    ticks = itertools.count()
    target = TableContext(N_VOCAB, 96 * n_slots, n_slots)
    engine = Engine(target, Fixed([*drafters], n_max), end_ids={3}, clock=lambda: float(next(ticks)))
    generations = [engine.submit(request) for request in requests]
    while engine.busy:
        engine.step()
    return generations


@settings(max_examples=examples(80), deadline=None)
@given(
    st.lists(st.tuples(prompts, chains, st.integers(0, 2**64 - 1), st.booleans()), min_size=1, max_size=3),
    st.integers(1, 8),
    st.integers(1, 3),
)
def test_the_text_is_the_same_with_and_without_drafts(work, n_max, n_slots):
    def requests() -> list[Request]:
        return [
            Request(
                prompt, params, seed, breakers=BREAKERS, final_probs=True,
                mask=TableMask(N_VOCAB, lambda _: range(2, 20)) if masked else None,
            )
            for prompt, params, seed, masked in work
        ]  # fmt: skip

    expected = [generated([request], n_max=0)[0] for request in requests()]
    rows = lambda ids: table_row(ids, N_VOCAB) + table_row(ids, N_VOCAB, 5) * 0.3  # noqa: E731
    draft = ModelDrafter(TableContext(N_VOCAB, 96 * n_slots, n_slots, rows=rows), N_VOCAB)
    got = generated(requests(), draft, CopyDrafter(), n_max=n_max, n_slots=n_slots)
    for one, other in zip(got, expected, strict=True):
        assert one.output == other.output
        assert one.logprobs == other.logprobs


def one_row(seed: int = 1, n: int = 400) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(n) * 2).astype(np.float32)


def test_choices_are_as_probable_as_reported():
    """With steps in another order, and the row unchanged."""
    params = SamplingParams(
        samplers=["temperature", "xtc", "top_k", "typ_p"], temperature=1.3, top_k=9, typical_p=0.9,
        xtc_probability=1.0, xtc_threshold=0.05,
    )  # fmt: skip
    sampler, row, n = KeyedSampler(params, 5, 400), one_row(), 3000
    before = row.copy()
    counts: dict[int, int] = {}
    for i in range(n):
        token = sampler.choose(row, range(i)).token
        counts[token] = counts.get(token, 0) + 1
    assert (row == before).all()
    expected = {i: math.exp(p) for i, p in sampler.final_logprobs(row, [], None, 0, 400)[1]}
    assert set(counts) <= set(expected)
    assert sum(expected.values()) == pytest.approx(1)
    for token, p in expected.items():
        assert abs(counts.get(token, 0) / n - p) < 5 * math.sqrt(p * (1 - p) / n) + 1e-9


def test_xtc_removes_the_likeliest_as_often_as_asked_at_positions_that_are_the_same_for_drafts():
    params = SamplingParams(
        samplers=["xtc", "temperature"], temperature=0, xtc_probability=0.3, xtc_threshold=0.01
    )
    sampler, row = KeyedSampler(params, 8, 400), one_row()
    removed = [sampler.choose(row, range(i)).token != row.argmax() for i in range(600)]
    assert 0.23 < sum(removed) / 600 < 0.37
    for i in range(600):
        drafted = sampler.choose(row, range(i // 2), ahead=range(i - i // 2)).token
        assert (drafted != row.argmax()) == removed[i]


@pytest.mark.parametrize("params", [{"mirostat": 2}, {"samplers": ["adaptive_p"], "adaptive_target": 0.3}])
def test_the_state_changes_with_the_text_and_not_with_drafts(params):
    sampler, row = KeyedSampler(SamplingParams(**params), 1, 400), one_row()
    shared = sampler.widened(500)
    first = sampler.final_logprobs(row, [1], None, 0, 400)
    for i in range(9):
        shared.choose(row, [1], ahead=range(i))
    assert sampler.final_logprobs(row, [1], None, 0, 400) == first
    sampler.advance(sampler.choose(row, [1]))
    changed = sampler.final_logprobs(row, [1], None, 0, 400)
    assert changed != first
    assert shared.final_logprobs(row, [1], None, 0, 400) == changed


def test_a_choice_that_a_small_change_would_turn_has_no_margin():
    sampler = KeyedSampler(
        SamplingParams(samplers=["typ_p", "temperature"], typical_p=0.99, temperature=0), 1, 3
    )
    close, clear = np.array([2, 1.99, -5], np.float32), np.array([2, 1, -5], np.float32)
    assert sampler.choose(close, [], margin=0.1)[:2] == (0, 0.0)
    assert sampler.choose(clear, [], margin=0.1)[:2] == (0, 0.1)
    assert sampler.choose(clear, [])[:2] == (0, math.inf)


def test_a_grammar_that_allows_none_of_the_survivors_restricts_the_row():
    sampler = KeyedSampler(SamplingParams(samplers=["temperature", "top_k"], top_k=2), 1, 400)
    row = one_row()
    legal = row.argsort()[:50]
    token = sampler.choose(row, [], mask=TableMask(400, lambda _: legal)).token
    assert token in legal[row[legal].argsort()[-2:]]
    assert sampler.choose(row, [], mask=TableMask(400, lambda _: ())).token == NOTHING_LEGAL


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_rows_that_are_not_finite_are_refused(value):
    row = one_row()
    row[3] = value
    with pytest.raises(DecodeError, match="not finite"):
        KeyedSampler(SamplingParams(samplers=["typ_p"], typical_p=0.5), 1, 400).choose(row, [])


@pytest.mark.parametrize("spread", [0.01, 1, 8])
def test_the_best_of_many_is_that_of_all_noise(spread):
    scores, ids = one_row(3, 20_000).astype(np.float64) * spread, np.arange(20_000) * 3
    for position in range(30):
        expected = int((scores + gumbel(9, position, ids)).argmax())
        assert keyed_best(9, position, ids, scores) == expected


@settings(max_examples=examples(40), deadline=None)
@given(
    st.integers(1, 30_000), st.sampled_from([0, 1, 4]), st.floats(0, 1), st.booleans(), st.integers(0, 2**32)
)
def test_shares_of_large_rows_are_those_of_a_sort(n, steps, share, more, seed):
    costs = np.abs(one_row(seed, n))
    if steps:  # many ties
        costs = np.round(costs * steps)
    weights = np.full(n, 1, np.float32)  # sums without rounding
    goal = math.floor(share * n)
    order = costs.argsort(kind="stable")
    expected = order[: min(n, max(1, goal + more))]
    assert chain._reaching(costs, weights, goal, more).tolist() == sorted(expected)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=60), st.integers(1, 5), st.integers(1, 60))
def test_repetitions_are_those_of_every_comparison(tokens, least, limit):
    n = len(tokens)
    expected = {}
    for end in range(n - 1):
        length = 0
        while length <= end and tokens[end - length] == tokens[n - 1 - length]:
            length += 1
        if min(length, limit) >= least:
            expected[end] = min(length, limit)
    assert dry._repeats(tokens, least, limit) == expected
    everything = dry._all_repeats(tokens, limit)
    assert {end: length for end, length in everything.items() if length >= least} == expected


def test_a_long_repetition_costs_no_more_than_its_length():
    """Every token repeats: the comparison of each with each would be 10^9 steps."""
    found = dry.penalties([5] * 30_000, {}, 1.0, 1.0001, 2)
    assert found == {5: pytest.approx(1.0001**29_997, rel=1e-3)}


def test_parameters_without_effect_are_named_once_a_reason():
    named = {
        "xtc_threshold": 0.2,
        "dry_base": 2.0,
        "dry_allowed_length": 3,
        "top_k": 5,
        "adaptive_target": 0.5,
    }
    assert _idle({**named, "mirostat_tau": 3.0}) == [
        "xtc_threshold has no effect without xtc_probability",
        "dry_base and dry_allowed_length have no effect without dry_multiplier",
        "adaptive_target has no effect: adaptive_p is not among the samplers",
        "mirostat_tau has no effect without mirostat",
    ]
    assert _idle({"xtc_probability": 0.5, "xtc_threshold": 0.6}) == [
        "xtc_threshold has no effect: above 0.5 xtc is off"
    ]
    assert _idle({name: parameter.default for name, parameter in PARAMETERS.items()}) == []


def test_what_mirostat_takes_the_place_of_is_one_sentence():
    steps = {"top_k": 5, "min_keep": 2, "samplers": ["top_k"]}
    used = {"mirostat": 2, "mirostat_tau": 3.0, "temperature": 0.5}
    assert _idle({**used, **steps}) == ["top_k, min_keep and samplers have no effect with mirostat"]
    assert _idle({**used, "samplers": ["top_k"]}) == ["samplers has no effect with mirostat"]


def _idle(params):
    sentences = SamplingParams.merge(params).without_effect([*params])
    return [with_option_names(sentence, lambda name, _: name) for sentence in sentences]
