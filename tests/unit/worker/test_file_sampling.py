"""Sampling parameters in model files, out of range and of kinds that are not there, as llama.cpp
reads them.
"""

from __future__ import annotations

from typing import Any

import pytest

from specllama.core.sampling.params import SamplingParams
from specllama.worker.load_info import sampling_defaults, sampling_notes


def read(**values: str) -> dict[str, Any]:
    params = sampling_defaults({f"general.sampling.{k}": v for k, v in values.items()}.get)
    SamplingParams.merge(params)
    return params


def notes(**values: str) -> str:
    made = sampling_notes({f"general.sampling.{k}": v for k, v in values.items()}.get)
    assert len(made) <= 1
    return made[0].message.rpartition("left out: ")[2] if made else ""


@pytest.mark.parametrize(
    ("key", "text", "name", "value"),
    [
        ("temp", "0.6", "temperature", 0.6),
        ("temp", "-1", "temperature", 0.0),  # the likeliest token
        ("temp", "1e9", "temperature", 10_000.0),
        ("temp", " .5x", "temperature", 0.5),
        ("top_k", "-1", "top_k", 0),  # off
        ("top_k", "20.000000", "top_k", 20),
        ("top_k", "9" * 30, "top_k", 2**31 - 1),
        ("top_p", "1.5", "top_p", 1.0),
        ("top_p", "-0.1", "top_p", 0.0),
        ("min_p", "-1", "min_p", 0.0),
        ("min_p", "2", "min_p", 1.0),
        ("penalty_last_n", "-5", "repeat_last_n", 0),
        ("penalty_last_n", "-1", "repeat_last_n", 0),  # off, in llama.cpp's samplers
        ("penalty_repeat", "1.1", "repeat_penalty", 1.1),
        ("penalty_repeat", "1000", "repeat_penalty", 100.0),
    ],
)
def test_numbers_out_of_range_have_llama_cpps_meaning(key: str, text: str, name: str, value: float) -> None:
    assert read(**{key: text}) == {name: value}
    assert notes(**{key: text}) == ""


@pytest.mark.parametrize(
    ("key", "text"),
    [("temp", "nan"), ("temp", "warm"), ("top_k", ""), ("penalty_repeat", "0"), ("penalty_repeat", "-1")],
)
def test_what_is_no_number_is_left_out_with_a_note(key: str, text: str) -> None:
    assert read(**{key: text}) == {}
    assert notes(**{key: text}) == f"{key} = {text}"


def test_samplers_that_are_not_there_are_named() -> None:
    left_out = notes(mirostat="2", mirostat_tau="5", xtc_probability="0.5", xtc_threshold="0.1", top_k="4")
    assert left_out == "mirostat = 2; xtc_probability = 0.5"
    assert notes(mirostat="0", xtc_probability="0.0", xtc_threshold="0.1") == ""


def test_a_sequence_switches_steps_off() -> None:
    usual = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature"
    assert read(sequence=usual) == {}
    assert notes(sequence=usual) == ""
    assert read(sequence="top-k;Temp") == {"top_p": 1.0, "min_p": 0.0}
    assert read(sequence="top-k;Temp", penalty_repeat="1.2")["repeat_penalty"] == 1.0
    assert notes(sequence="temperature;top_k") == "the order of the samplers"
    assert notes(sequence="top_k;adaptive_p") == "adaptive_p in the sequence of samplers"
    assert read(sequence="min_p;infill;temp")["infill_sampling"] is True
    assert read(top_k="9", sequence="temperature")["top_k"] == 0
