"""Drafts of another vocabulary as users name them: on the command line, in a file, in Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllama import LLM, SamplingParams
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.errors import IncompatiblePairError, UsageError
from tests.support import tinygguf, tinyheads
from tests.support.command import Command, assert_error
from tests.support.foreign import permuted

ASKED = ("--raw", "-p", "def walk(path):", "-n", "40", "--temp", "0.8", "--seed", "3", "--json", "-t", "1")


@pytest.fixture
def draft(command: Command) -> str:
    return str(permuted(Path(EMBEDDED_DRAFT), command.home / "other.gguf", every=4, drop=True))


def test_run_drafts_with_it_and_writes_the_same_text(command: Command, draft: str) -> None:
    pair = (
        "run",
        "-m",
        str(EMBEDDED_TARGET),
        "-md",
        draft,
        "--draft-max",
        "3",
        "--drafters",
        "model",
        *ASKED,
    )
    assert_error(command(*pair), 7, "do not fit together", "--draft-vocab auto")
    found = command(*pair, "--draft-vocab", "auto")
    assert found.code == 0, found.err
    plain = command("run", "-m", str(EMBEDDED_TARGET), "-md", "none", "--drafters", "none", *ASKED)
    assert found.json["text"] == plain.json["text"]
    assert found.json["n_accept"] > 0
    assert "vocabulary translated" in found.err
    assert_error(command(*pair, "--draft-vocab", "all"), 2, "--draft-vocab")


def test_a_head_is_not_translated(command: Command) -> None:
    target = tinygguf.llama(command.home / "t.gguf")
    head = tinyheads.eagle3(command.home / "h.gguf", target_layers=(0, 1, 9))
    result = command(
        "run", "-m", str(target), "-md", str(head), "--draft-vocab", "auto", "-p", "x", "-n", "1"
    )
    assert_error(result, 7, "reads layer 9", "--draft-vocab is of no use to a head")


def test_python(draft: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=30)
    with pytest.raises(IncompatiblePairError):
        LLM(EMBEDDED_TARGET, speculative_model=draft)
    with pytest.raises(UsageError, match="draft_vocab"):
        LLM(EMBEDDED_TARGET, speculative_model=draft, draft_vocab="all")
    with LLM(EMBEDDED_TARGET, speculative_model=None, n_threads=1) as llm:
        expected = llm.generate(["import os"], params)[0].outputs[0].text
    with LLM(EMBEDDED_TARGET, speculative_model=draft, draft_vocab="auto", n_threads=1) as llm:
        assert llm.info["verdict"] == "translated"
        assert llm.generate(["import os"], params)[0].outputs[0].text == expected
