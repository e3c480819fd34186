"""The tiny heads load in llama.cpp and draft there, perfect ones perfectly, over llama.cpp's own interface.

Each in a child process: on many invalid files llama.cpp aborts instead of raising.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specllama.config.load import ModelSettings
from specllama.core.interfaces import BatchRow
from specllama.data import EMBEDDED_TARGET
from specllama.gguf.architectures import LAYER_INPUTS
from specllama.llama.context import LlamaContext
from specllama.llama.model import LlamaModel
from tests.support import tinygguf, tinyheads, tinymtp
from tests.support.command import Command
from tests.support.forks import BARE
from tests.support.headloop import N_DRAFT, PROMPT
from tests.support.mimo2 import mimo2_of

Build = Callable[[Path], tuple[Path, Path]]


def drafted(kind: str, target: Path, head: Path) -> dict[str, Any]:
    """What `tests.support.headloop` reports."""
    done = Command(head.parent).python("-m", "tests.support.headloop", kind, target, head, imports=BARE)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["equal"]
    return report


def twice(path: Path) -> tuple[Path, Path]:
    return path, path


def with_target(target: Path, head: Callable[[Path], Path]) -> tuple[Path, Path]:
    return target, head(target)


RANDOM: dict[str, tuple[str, Build]] = {
    "qwen35": ("mtp", lambda d: twice(tinymtp.qwen35(d / "t.gguf"))),
    "mimo2": ("mtp", lambda d: twice(tinymtp.mimo2(d / "t.gguf"))),
    "step35": ("chained", lambda d: twice(tinymtp.step35(d / "t.gguf"))),
    "embedded": ("mtp", lambda d: twice(mimo2_of(EMBEDDED_TARGET, d / "t.gguf"))),
    "gemma4": (
        "assistant",
        lambda d: (tinyheads.gemma4(d / "t.gguf"), tinyheads.gemma4_assistant(d / "h.gguf")),
    ),
    "eagle3": ("eagle3", lambda d: (tinygguf.llama(d / "t.gguf"), tinyheads.eagle3(d / "h.gguf"))),
    "eagle3 with own tensors": (
        "eagle3",
        lambda d: (
            tinygguf.llama(d / "t.gguf"),
            tinyheads.eagle3(d / "h.gguf", own_embeddings=True, own_output=True),
        ),
    ),
    "eagle3 with d2t": (
        "eagle3",
        lambda d: (tinygguf.llama(d / "t.gguf"), tinyheads.eagle3(d / "h.gguf", d2t=range(3, 99))),
    ),
    "dflash": ("dflash", lambda d: (tinygguf.llama(d / "t.gguf"), tinyheads.dflash(d / "h.gguf"))),
    "dflash with own tensors": (
        "dflash",
        lambda d: (tinygguf.llama(d / "t.gguf"), tinyheads.dflash(d / "h.gguf", own_embeddings=True)),
    ),
    "dflash 2": (
        "dflash2",
        lambda d: (tinygguf.llama(d / "t.gguf"), tinyheads.dflash(d / "h.gguf", top_k=4)),
    ),
    "dspark": (
        "dspark",
        lambda d: (tinygguf.llama(d / "t.gguf"), tinyheads.dflash(d / "h.gguf", markov=True)),
    ),
}

PERFECT: dict[str, tuple[str, Build]] = {
    "qwen35": ("mtp", lambda d: twice(tinymtp.qwen35(d / "t.gguf", adds=(0, 0, 0, 1), copied=True))),
    "mimo2": ("mtp", lambda d: twice(tinymtp.mimo2(d / "t.gguf", adds=(0, 1), copied=True))),
    "step35": ("chained", lambda d: twice(tinymtp.step35(d / "t.gguf", adds=(0, 1), copied=True))),
    "qwen35 in two files": (
        "mtp",
        lambda d: (
            tinymtp.qwen35(d / "t.gguf", adds=(0, 0, 0, 1), part="trunk"),
            tinymtp.qwen35(d / "mtp-t.gguf", adds=(0, 0, 0, 1), copied=True, part="head"),
        ),
    ),
    "step35 in two files": (
        "chained",
        lambda d: (
            tinymtp.step35(d / "t.gguf", adds=(0, 1), part="trunk"),
            tinymtp.step35(d / "mtp-t.gguf", adds=(0, 1), copied=True, part="head"),
        ),
    ),
    "gemma4": (
        "assistant",
        lambda d: with_target(
            tinyheads.gemma4(d / "t.gguf", adds=(0, 0)),
            lambda target: tinyheads.gemma4_assistant(d / "h.gguf", copy_of=target),
        ),
    ),
    "eagle3": (
        "eagle3",
        lambda d: with_target(
            tinygguf.llama(d / "t.gguf", adds=(0, 1)),
            lambda target: tinyheads.eagle3(d / "h.gguf", copy_of=target),
        ),
    ),
    "dspark": (
        "dspark",
        lambda d: with_target(
            tinygguf.llama(d / "t.gguf", adds=(0, 0)),
            lambda target: tinyheads.dflash(d / "h.gguf", markov=True, copy_of=target),
        ),
    ),
}


@pytest.mark.parametrize("name", RANDOM)
def test_a_random_head_drafts_and_is_nearly_always_wrong(name: str, tmp_path: Path) -> None:
    kind, build = RANDOM[name]
    target, head = build(tmp_path)
    assert name == "embedded" or max(target.stat().st_size, head.stat().st_size) < 650_000
    report = drafted(kind, target, head)
    assert sum(report["accepted"]) <= 0.2 * N_DRAFT * len(report["accepted"])
    if kind == "dspark":
        assert len(report["confidence"]) == N_DRAFT
        assert all(0 < p < 1 for p in report["confidence"])


@pytest.mark.parametrize("name", PERFECT)
def test_a_perfect_head_is_always_right(name: str, tmp_path: Path) -> None:
    kind, build = PERFECT[name]
    report = drafted(kind, *build(tmp_path))
    assert set(report["accepted"]) == {N_DRAFT}
    assert report["n_different"] >= 3
    assert all(p > 0.9 for p in report["confidence"])


def test_noise_and_shortened_vocabularies_cost_some_of_the_acceptance(tmp_path: Path) -> None:
    target = tinygguf.llama(tmp_path / "t.gguf", adds=(0, 1))
    for head in (
        tinyheads.eagle3(tmp_path / "noisy.gguf", copy_of=target, head_noise=0.3),
        tinyheads.eagle3(tmp_path / "short.gguf", copy_of=target, d2t=range(0, tinygguf.N_VOCAB, 2)),
    ):
        accepted = drafted("eagle3", target, head)["accepted"]
        assert 3 <= sum(accepted) < N_DRAFT * len(accepted)
    hybrid = tinymtp.qwen35(tmp_path / "h.gguf", adds=(0.1, 0.1, 0.1, 1), copied=True, head_noise=0.05)
    accepted = drafted("mtp", hybrid, hybrid)["accepted"]
    assert 3 <= sum(accepted) < N_DRAFT * len(accepted)


def test_targets_that_do_not_hand_out_their_layers_end_the_process(tmp_path: Path) -> None:
    """If this fails, llama.cpp has learnt it: `layer_inputs` of gguf/architectures.toml can grow."""
    target = tinygguf.gemma3(tmp_path / "t.gguf")
    assert "gemma3" not in LAYER_INPUTS
    with pytest.raises(AssertionError, match="layer input tensor is null"):
        drafted("eagle3", target, tinyheads.eagle3(tmp_path / "h.gguf"))


@pytest.mark.parametrize("part", ["trunk", "promise"])
def test_a_target_does_not_depend_on_its_head(part: tinymtp.Part, tmp_path: Path) -> None:
    whole = tinymtp.mimo2(tmp_path / "whole.gguf", adds=(0.5, 1))
    other = tinymtp.mimo2(tmp_path / "other.gguf", adds=(0.5, 1), part=part)
    a, b = logits(whole), logits(other)
    assert np.abs(a - b).max() < 1e-4
    assert np.ptp(a) > 5


def test_the_repacked_target_computes_what_the_embedded_one_does(tmp_path: Path) -> None:
    a, b = logits(EMBEDDED_TARGET), logits(mimo2_of(EMBEDDED_TARGET, tmp_path / "t.gguf"))
    assert np.abs(a - b).max() < 0.01 * np.ptp(a)


def logits(path: Path) -> np.ndarray[Any, np.dtype[np.float32]]:
    settings = ModelSettings(
        path=str(path), n_threads=1, cache_type_k="f32", cache_type_v="f32", flash_attn="off"
    )
    model = LlamaModel(settings)
    context = LlamaContext(model, 256)
    rows = [BatchRow(token, i, 0, i >= 8) for i, token in enumerate(PROMPT)]
    rows_read = np.array(context.decode(rows))
    context.close()
    model.close()
    return rows_read
