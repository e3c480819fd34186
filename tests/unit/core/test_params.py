"""Sampling parameters: errors name the field; layers of defaults."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from specllama.core.sampling.params import SamplingParams
from specllama.errors import UsageError

BAD = [
    ("temperature", [-0.1, 10_001, math.nan, math.inf, "hot", True]),
    ("top_k", [-2, 2**31, 1.5, "40"]),
    ("top_p", [-0.01, 1.01, math.nan]),
    ("min_p", [-0.01, 1.01, [0.1]]),
    ("repeat_penalty", [0, -1, 101, 10**400]),
    ("repeat_last_n", [-2, 2.5]),
    ("presence_penalty", [-101, 101]),
    ("frequency_penalty", [-101, 101, {}]),
    ("max_tokens", [0, -3, 1.5, 2**31, False]),
    ("seed", [-(2**63) - 1, 2**64, 1.0, "7", True]),
    ("stop", ["", ["a", ""], [5], 5, {"a": 1}]),
    ("ignore_eos", [1, "yes"]),
    (
        "logit_bias",
        [
            {-1: 1.0},
            {2**31: 1.0},
            {"x": 1.0},
            {"9" * 5000: 1.0},
            {1.0: 1.0},
            {True: 1.0},
            {1: math.nan},
            {1: math.inf},
            {1: 1e39},
            {1: "5"},
            {1: None},
            [5],
            "5",
        ],
    ),
]


@pytest.mark.parametrize(
    ("name", "value"), [(n, v) for n, values in BAD for v in values], ids=lambda v: str(v)[:30]
)
def test_values_out_of_range_are_rejected_by_name(name, value):
    with pytest.raises(UsageError, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0),
        ("temperature", 10_000),
        ("top_k", 0),
        ("top_k", 2**31 - 1),
        ("top_p", 0),
        ("top_p", 1),
        ("min_p", 1.0),
        ("repeat_last_n", -1),
        ("max_tokens", 1),
        ("max_tokens", -2),
        ("seed", 0),
        ("seed", 2**64 - 1),
    ],
)
def test_the_ends_of_the_ranges_are_allowed(name, value):
    assert getattr(SamplingParams(**{name: value}), name) == value


def test_logit_bias_accepts_strings_and_integers_as_ids():
    assert SamplingParams(logit_bias={"5": 1, 7: -math.inf}).logit_bias == {5: 1.0, 7: -math.inf}


def test_one_stop_string_becomes_a_tuple():
    assert SamplingParams(stop="\n\n").stop == ("\n\n",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")


def test_the_callers_mapping_is_not_kept():
    biases = {1: 2.0}
    params = SamplingParams(logit_bias=biases)
    biases[1] = math.nan
    assert params.logit_bias == {1: 2.0}


def test_merge_uses_the_first_value_that_is_not_none():
    got = SamplingParams.merge(
        {"temperature": 0.1, "top_k": None}, {"temperature": 0.5, "top_k": 7}, {"top_k": 9, "min_p": 0.3}
    )
    assert (got.temperature, got.top_k, got.min_p) == (0.1, 7, 0.3)
    assert got.top_p == SamplingParams().top_p
    assert SamplingParams.merge() == SamplingParams() == SamplingParams.merge({}, {"seed": None})


def test_unknown_names_are_usage_errors_with_the_nearest_ones():
    for make in (SamplingParams, lambda **given: replace(SamplingParams(), **given)):
        with pytest.raises(UsageError, match="unknown sampling parameter 'temprature'") as caught:
            make(temprature=1)
        assert caught.value.hint == "did you mean temperature?"
    with pytest.raises(UsageError, match="'zork'") as caught:
        SamplingParams(zork=1)
    assert "top_k" in caught.value.hint
    with pytest.raises(UsageError, match="unknown sampling parameter 1"):
        SamplingParams.merge({1: None})


def test_merge_rejects_unknown_names_and_invalid_values():
    with pytest.raises(UsageError, match="unknown sampling parameter 'temprature'") as caught:
        SamplingParams.merge({"temprature": 1})
    assert "temperature" in caught.value.hint
    with pytest.raises(UsageError, match="top_k"):
        SamplingParams.merge({}, {"top_k": -5})


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, False),
        ({"repeat_penalty": 1.1}, True),
        ({"presence_penalty": -0.1}, True),
        ({"frequency_penalty": 0.1}, True),
        ({"repeat_penalty": 1.1, "repeat_last_n": 0}, False),
    ],
)
def test_penalised_is_whether_the_history_matters(params, expected):
    assert SamplingParams(**params).penalised is expected


def test_temperature_zero_is_greedy():
    assert SamplingParams(temperature=0).greedy
    assert not SamplingParams(temperature=1e-9).greedy
