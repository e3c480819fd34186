"""Every sampling step, alone and in chains, leaves the tokens that llama.cpp's leaves, as likely."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from specllama.config.load import ModelSettings
from specllama.core.sampling.chain import Chain, State, Survivors
from specllama.core.sampling.infill import InfillRule
from specllama.core.sampling.params import DEFAULT_SAMPLERS, STEP_NAMES, SamplingParams
from specllama.core.sampling.sampler import KeyedSampler
from specllama.data import EMBEDDED_TARGET
from specllama.llama.model import LlamaModel, end_of_turn_id
from tests.support.examples import examples
from tests.support.llama_cpp_samplers import LlamaCppChain

OFF: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}
FEW = 3e-5  # rounding: rows that differ by this share are the same
SHARE = 1e-4  # the same of sums of probabilities, for which llama.cpp has 32 bits


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    model = LlamaModel(ModelSettings(path=str(EMBEDDED_TARGET)), vocab_only=True)
    yield model
    model.close()


@pytest.fixture(scope="module")
def infill(model: LlamaModel) -> InfillRule:
    return InfillRule(model.end_ids, end_of_turn_id(model), model.piece)


def probabilities(left: Survivors) -> dict[int, float]:
    values = left.values.astype(np.float64)
    weights = np.exp(values - values.max())
    return dict(zip(left.ids.tolist(), (weights / weights.sum()).tolist(), strict=True))


def left_of(
    model: LlamaModel, params: SamplingParams, row: np.ndarray, history: list[int], rule: InfillRule,
    state: State | None = None,
) -> Survivors:  # fmt: skip
    breakers = model.breakers(params.dry_sequence_breakers)
    chain = Chain(params, 5, model.n_vocab, rule if params.infill_sampling else None, breakers)
    biased = row.copy()
    for token, bias in params.logit_bias.items():
        biased[token] += bias
    return chain.survivors(biased, history, (), chain.start() if state is None else state)


def compare(model: LlamaModel, params: SamplingParams, rng: random.Random, rule: InfillRule) -> bool:
    """Whether the case was compared: not where rounding decides which tokens are left."""
    row = random_row(model, rng)
    history = random_text(model, rng)
    left = probabilities(left_of(model, params, row, history, rule))
    for sign in (1, -1):
        shares = {"top_p": params.top_p, "typical_p": params.typical_p}
        near = {name: share * (1 + sign * SHARE) for name, share in shares.items() if share < 1}
        other = left_of(model, replace(params, **near), row * np.float32(1 + sign * FEW), history, rule)
        if probabilities(other).keys() != left.keys():
            return False
    with contextlib.closing(LlamaCppChain(model, params)) as chain:
        chain.accept(history)
        expected, _ = chain.apply(row)
    assert left.keys() == expected.keys(), params
    # Adaptive-p multiplies the rounding of llama.cpp's sum of all probabilities, in 32 bits.
    same = 2e-4 if "adaptive_p" in params.samplers else 1e-6
    assert [left[i] for i in expected] == pytest.approx([*expected.values()], abs=same), params
    return True


def random_row(model: LlamaModel, rng: random.Random) -> np.ndarray:
    numbers = np.random.default_rng(rng.randrange(2**32)).standard_normal(model.n_vocab)
    return (numbers * rng.choice((0.3, 1.0, 3.0, 6.0)) - rng.choice((0, 4))).astype(np.float32)


def random_text(model: LlamaModel, rng: random.Random) -> list[int]:
    text = "".join(
        rng.choice(("import os\n", "a: b ", "read the file ", "x* ", '"')) for _ in range(rng.randrange(40))
    )
    return model.tokenize(text, False, False) + [
        rng.randrange(model.n_vocab) for _ in range(rng.randrange(4))
    ]


def random_params(rng: random.Random, step: str) -> dict[str, Any]:
    """What the step may be asked for."""
    some = rng.choice
    return {
        "penalties": lambda: {
            "repeat_penalty": some((0.7, 1.0, 1.3)), "frequency_penalty": some((0, -0.4, 0.5)),
            "presence_penalty": some((0, 0.7)), "repeat_last_n": some((0, 3, 64, 200)),
        },
        "dry": lambda: {
            "dry_multiplier": some((0.3, 0.8, 5)), "dry_base": some((1, 1.1, 1.75)),
            "dry_allowed_length": some((0, 1, 2, 4)), "dry_penalty_last_n": some((5, 64, 300)),
            "dry_sequence_breakers": some(([], ["\n", ":", '"', "*"], ["file", "b a"], ["é。", "the"])),
        },
        "top_n_sigma": lambda: {"top_n_sigma": some((-1, 0.5, 1, 2.5))},
        "top_k": lambda: {"top_k": some((0, 1, 5, 40, 10_000))},
        "typ_p": lambda: {"typical_p": some((0.0, 0.2, 0.6, 0.95))},
        "top_p": lambda: {"top_p": some((0.0, 0.3, 0.9, 0.999))},
        "min_p": lambda: {"min_p": some((0.01, 0.1, 1.0))},
        "xtc": lambda: {"xtc_probability": 1.0, "xtc_threshold": some((0.0, 0.002, 0.05, 0.3))},
        "temperature": lambda: {
            "temperature": some((0, 0.1, 0.8, 1.0, 1.7)), "dynatemp_range": some((0, 0, 0.5, 2)),
            "dynatemp_exponent": some((0.5, 1, 2)),
        },
        "infill": dict,
        "adaptive_p": lambda: {
            "adaptive_target": some((0, 0.1, 0.6, 1)), "adaptive_decay": some((0, 0.5, 0.99)),
        },
    }[step]()  # fmt: skip


@pytest.mark.parametrize("step", STEP_NAMES.values())
def test_each_step_alone(model: LlamaModel, infill: InfillRule, step: str) -> None:
    rng = random.Random(f"alone {step}")
    before = {"top_k": 30} if step == "infill" else {}
    compared = 0
    for _ in range(12):
        samplers = [*(["top_k"] if before else []), step]
        given = OFF | before | random_params(rng, step) | {"min_keep": rng.choice((0, 0, 3))}
        compared += compare(model, SamplingParams(**given, samplers=samplers), rng, infill)
    assert compared > 6


def test_random_chains(model: LlamaModel, infill: InfillRule) -> None:
    rng, compared, n = random.Random("chains"), 0, examples(250)
    for _ in range(n):
        steps = [*STEP_NAMES.values()]
        rng.shuffle(steps)
        steps = steps[: rng.randint(0, len(steps))]
        if rng.random() < 0.2:
            steps = [*DEFAULT_SAMPLERS]
        if "infill" in steps:
            steps = ["top_k", *steps]
        given = dict(OFF)
        for step in steps:
            given |= random_params(rng, step)
        given["min_keep"] = rng.choice((0, 0, 1, 5))
        if "infill" in steps:
            given["top_k"] = 30
        if "typ_p" in steps:  # llama.cpp's entropy is not a number where a logit is -inf
            given["top_n_sigma"] = -1
            given["temperature"] = given["temperature"] or 0.5
            given["dynatemp_range"] = 0
        elif rng.random() < 0.3:
            given["logit_bias"] = {
                rng.randrange(model.n_vocab): rng.choice((-math.inf, 5.0)) for _ in range(9)
            }
        compared += compare(model, SamplingParams(**given, samplers=steps), rng, infill)
    assert compared > n / 2


@pytest.mark.parametrize(
    "given",
    [
        {"mirostat": 1},
        {"mirostat": 1, "mirostat_tau": 2.0, "mirostat_eta": 0.5, "temperature": 0.6},
        {"mirostat": 2},
        {"mirostat": 2, "mirostat_tau": 1.0, "mirostat_eta": 1.0, "logit_bias": {5: -math.inf}},
        {"mirostat": 2, "temperature": 0},
        {"samplers": ["top_k", "adaptive_p"], "adaptive_target": 0.4},
        {"samplers": ["min_p", "adaptive_p", "temperature"], "adaptive_target": 0.1, "adaptive_decay": 0.5},
    ],
    ids=str,
)
def test_what_adapts_itself_to_the_text(model: LlamaModel, infill: InfillRule, given: dict[str, Any]) -> None:
    """Over 30 tokens, those that llama.cpp chooses."""
    params, rng = SamplingParams(**given), random.Random(str(given))
    ours = Chain(params, 5, model.n_vocab)
    state, compared = ours.start(), 0
    with contextlib.closing(LlamaCppChain(model, params)) as chain:
        for _ in range(30):
            row = random_row(model, rng)
            expected, token = chain.apply(row)
            chain.accept([token])
            left = left_of(model, params, row, [], infill, state)
            found = probabilities(left)
            if found.keys() == expected.keys():
                assert [found[i] for i in expected] == pytest.approx([*expected.values()], abs=2e-4)
                compared += 1
            else:  # one token at the limit
                assert len(found.keys() ^ expected.keys()) <= 2
            state = ours.after(state, left, token)
    assert compared >= 25


def test_breakers_are_those_of_llama_cpp(model: LlamaModel) -> None:
    """Texts of several tokens, across tokens, too long, of several bytes."""
    for text in ("\n", "file", " the file", "é。", "ab" * 40, "import os\n"):
        params = SamplingParams(
            **OFF, samplers=["dry"], dry_multiplier=1.0, dry_allowed_length=1, dry_penalty_last_n=300,
            dry_sequence_breakers=[text],
        )  # fmt: skip
        rng = random.Random(text)
        for _ in range(6):
            begin = model.tokenize(f"read{text}then read{text}", False, False)
            history = begin[: rng.randrange(len(begin) + 1)] + random_text(model, rng) + begin
            row = np.zeros(model.n_vocab, np.float32)
            with contextlib.closing(LlamaCppChain(model, params)) as chain:
                chain.accept(history)
                expected, _ = chain.apply(row)
            sampler = KeyedSampler(params, 1, model.n_vocab, breakers=model.breakers([text]))
            top = dict(sampler.final_logprobs(row, history, None, 0, model.n_vocab)[1])
            assert [math.exp(top[i]) for i in expected] == pytest.approx([*expected.values()], abs=1e-6)
