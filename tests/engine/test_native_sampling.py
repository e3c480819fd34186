"""Choices and probabilities by compiled functions: those of numpy, which what they do not know is left to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specllama.core.interfaces import DecodeError
from specllama.core.sampling import native
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.proposal import probability
from specllama.core.sampling.sampler import KeyedSampler
from specllama.llama.library import KERNELS
from tests.support.scripted import TableMask

pytestmark = pytest.mark.skipif(not KERNELS.level, reason="there are no kernels here")

PARAMS: list[Mapping[str, float]] = [
    {},
    {"temperature": 0.1},
    {"top_k": 1},
    {"top_k": 2, "top_p": 1.0, "min_p": 0.0},
    {"top_k": 256, "top_p": 1.0, "min_p": 0.0, "temperature": 2.0},
    {"top_k": 30, "min_p": 0.3},
    {"top_p": 0.5},
    {"top_p": 0.0},
]


def rows(n_vocab: int) -> list[NDArray[np.float32]]:
    """Flat and peaked ones, with equal logits and with tokens that cannot be chosen."""
    rng = np.random.default_rng(n_vocab)
    normal = [rng.standard_normal(n_vocab).astype(np.float32) * scale for scale in (0.5, 2, 8)]
    equal = [np.round(row) for row in normal]
    impossible = [np.where(rng.random(n_vocab) < 0.7, np.float32(-np.inf), row) for row in normal]
    for row in impossible:
        row[3] = 0.5
    few = np.full(n_vocab, -np.inf, np.float32)
    few[[3, n_vocab - 1]] = 1.0
    return [*normal, *equal, *impossible, few, np.zeros(n_vocab, np.float32)]


def chosen_by_numpy(
    monkeypatch: pytest.MonkeyPatch, sampler: KeyedSampler, row: NDArray[np.float32], n: int
) -> int:
    with monkeypatch.context() as without:
        without.setattr(native, "functions", None)
        return sampler.choose(row, range(n)).token


@pytest.mark.parametrize("n_vocab", [7, 300, 2049, 32000, 50257, 128256])
def test_the_choice_is_that_of_numpy(monkeypatch: pytest.MonkeyPatch, n_vocab: int) -> None:
    native_choices = 0
    for params in PARAMS:
        sampler = KeyedSampler(SamplingParams(**params), seed=-3, n_vocab=n_vocab)  # type: ignore[arg-type]
        for row in rows(n_vocab):
            for n in (0, 11):
                expected = chosen_by_numpy(monkeypatch, sampler, row.copy(), n)
                assert sampler.choose(row, range(n)).token == expected
                native_choices += sampler._native.choose(row, n) == expected
    assert native_choices > 40 or n_vocab < 2049  # small ones are left to numpy


MANY = dict.fromkeys(range(100, 201), 50.0)  # more than are compiled


@pytest.mark.parametrize("more", [{}, {"repeat_penalty": 1.5}, {"logit_bias": MANY}, {"temperature": 0.0}])
def test_biases_and_penalties_come_before_the_choice(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    params = SamplingParams(**{"logit_bias": {5: 50.0, 9: -50.0, 11: 49.5}, **more})
    sampler = KeyedSampler(params, 1, 32000, forbidden=[7])
    for row in rows(32000):
        row[7] = 1000.0
        before = row.copy()
        for n in (0, 6):
            assert sampler.choose(row, range(n)).token == chosen_by_numpy(monkeypatch, sampler, row, n)
            assert (row == before).all()


@pytest.mark.parametrize("legal", [[5, 12], [11, 12]])
def test_a_choice_that_a_grammar_forbids_gives_way_to_a_legal_one(
    monkeypatch: pytest.MonkeyPatch, legal: list[int]
) -> None:
    sampler = KeyedSampler(SamplingParams(logit_bias={5: 50.0, 11: 49.5}, temperature=3.0), 1, 32000)
    mask = TableMask(32000, lambda _: legal)
    for row in rows(32000)[:6]:
        tokens = [sampler.choose(row, range(n), mask=mask).token for n in range(20)]
        with monkeypatch.context() as without:
            without.setattr(native, "functions", None)
            assert tokens == [sampler.choose(row, range(n), mask=mask).token for n in range(20)]
        assert set(tokens) <= set(legal)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("at", [0, 255, 31990, 31999])
def test_a_row_that_is_not_finite_is_an_error(bad: float, at: int) -> None:
    row = rows(32000)[0]
    row[at] = bad
    sampler = KeyedSampler(SamplingParams(), 1, 32000)
    assert sampler._native.choose(row, 0) == native.UNKNOWN
    with pytest.raises(DecodeError, match="not finite"):
        sampler.choose(row, [])


def test_rows_of_another_form_are_left_to_numpy() -> None:
    row = rows(32000)[1]
    sampler = KeyedSampler(SamplingParams(), 1, 16000)
    token = sampler.choose(row[:16000].copy(), []).token
    spread, fixed = np.repeat(row[:16000], 2)[::2], row[:16000].copy()
    fixed.flags.writeable = False
    for other in (spread, fixed, row[:16000].astype(np.float64), row[:0]):
        assert sampler._native.choose(other, 0) == native.UNKNOWN
        assert native.probability(other, 0) is None
    assert sampler.choose(spread, []).token == token


@pytest.mark.parametrize("n_vocab", [7, 300, 32000, 128256])
def test_the_probability_is_that_of_numpy(monkeypatch: pytest.MonkeyPatch, n_vocab: int) -> None:
    for row in rows(n_vocab):
        token = int(row.argmax())
        known = native.probability(row, token)
        with monkeypatch.context() as without:
            without.setattr(native, "functions", None)
            assert known == pytest.approx(probability(row, token), rel=1e-4)
