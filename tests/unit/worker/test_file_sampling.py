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


def test_every_key_of_llama_cpp_is_read() -> None:
    given = {"mirostat": "2", "mirostat_tau": "4", "mirostat_eta": "0.2", "xtc_probability": "0.5"}
    assert read(**given, xtc_threshold="0.2") == {
        "mirostat": 2, "mirostat_tau": 4.0, "mirostat_eta": 0.2, "xtc_probability": 0.5, "xtc_threshold": 0.2
    }  # fmt: skip
    assert notes(**given) == ""


def test_a_sequence_of_samplers() -> None:
    usual = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature"
    assert read(sequence=usual) == {}
    assert notes(sequence=usual) == ""
    assert read(sequence="Temp;top-k") == {"samplers": ("temperature", "top_k")}
    assert notes(sequence="Temp;top-k") == ""
    assert read(sequence="top_k;magic;xtc") == {"samplers": ("top_k", "xtc")}
    assert notes(sequence="top_k;magic;xtc") == "magic in the sequence of samplers"
    assert SamplingParams(**read(sequence="min_p;infill;temp")).infill_sampling is True
    assert len(read(sequence="top_k;" * 99)["samplers"]) == 32
