"""Heads for measurements: a fitted head drafts and changes no text, a wider one is the same head."""

from __future__ import annotations

import ast
import bisect
import inspect
import json
import random
import textwrap
from pathlib import Path

import numpy as np
import pytest

from scripts.bench.make_heads import eagle3_ff, widest, write_eagle3
from scripts.demo_pair import mtp_head
from scripts.demo_pair.llm import start_llama
from scripts.demo_pair.mimo2 import mimo2_of
from scripts.demo_pair.padding import Padding, read_source, write_padded
from specllama.data import EMBEDDED_TARGET
from specllama.gguf.header import read_model
from specllama.heads import read_head
from tests.support.command import Command

TEXTS = [text for m in (textwrap, json, bisect, random, ast) for text in inspect.getsource(m).split("\n\n\n")]
HEAD = EMBEDDED_TARGET.parent / "smollm2-eagle3.gguf"


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded target in f16 with a further block, as llama."""
    source, path = read_source(EMBEDDED_TARGET), tmp_path_factory.mktemp("heads") / "padded.gguf"
    write_padded(source, path, Padding(1, source.value("feed_forward_length")))
    assert read_model(str(path)).architecture == "llama"
    return path


def test_a_fitted_head_drafts_and_changes_no_text(padded: Path, tmp_path: Path, command: Command) -> None:
    start_llama()
    head = mtp_head.fit(padded, TEXTS, 6000, 256)
    trunk = mimo2_of(padded, tmp_path / "trunk.gguf", part="trunk")
    answers = []
    for n_ff in (256, 512):
        wide = mtp_head.widened(head, n_ff)
        path = mimo2_of(padded, tmp_path / f"mtp-{n_ff}.gguf", head=wide, part="head")
        found = read_head(read_model(str(path)))
        assert found is not None
        given = ["-m", str(trunk), "-md", str(path), "-p", "import json", "--draft-max", "2"]
        given += ["--temp", "0", "-n", "60", "--drafters", "model", "--json", "--no-calibrate", "--raw"]
        answers.append(command("run", *given).json)
    a, b = answers
    assert a["tokens"] == b["tokens"]
    assert (a["n_drafted"], a["n_accept"]) == (b["n_drafted"], b["n_accept"])
    assert a["n_accept"] > 0.1 * a["n_drafted"] > 0
    plain = ["-m", str(trunk), "-md", "none", "-p", "import json", "--temp", "0", "-n", "60"]
    plain += ["--draft-max", "0", "--json", "--no-calibrate", "--raw"]
    assert command("run", *plain).json["tokens"] == a["tokens"]


def test_a_head_of_another_size_than_its_model_needs_a_file_of_its_own(padded: Path, tmp_path: Path) -> None:
    head = {"ffn_gate": np.zeros((256, 512), np.float32)}
    with pytest.raises(ValueError, match="feed-forward size of 256, the model one of 1280"):
        mimo2_of(padded, tmp_path / "x.gguf", head=head)


def test_the_size_of_a_head_is_chosen_by_its_bytes() -> None:
    assert widest(10_000, lambda n_ff: 1000 + 10 * n_ff, 256, 32) == 896
    assert widest(10, lambda n_ff: 1000 + 10 * n_ff, 256, 32) == 256


def test_a_wider_eagle3_head_is_a_head(tmp_path: Path) -> None:
    out, n_ff = tmp_path / "wide.gguf", eagle3_ff(HEAD) + 320
    n_bytes = write_eagle3(HEAD, out, n_ff)
    added = 3 * 320 * 576 * 18 // 32  # three matrices of Q4_0
    assert n_bytes == pytest.approx(HEAD.stat().st_size + added, abs=1000)
    assert eagle3_ff(out) == n_ff
    assert read_head(read_model(str(out))) is not None
