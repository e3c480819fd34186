"""Drafts of another vocabulary as users name them: on the command line, in a file, in Python."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from specllama import LLM, SamplingParams
from specllama.config.store import Store
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.errors import IncompatiblePairError, UsageError
from specllama.gguf.header import identity, read_header
from specllama.models.foreign_drafts import DraftRecord, MeasuredDrafts
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
    drafted = command(*pair, "--draft-vocab", "auto")
    assert drafted.code == 0, drafted.err
    plain = command("run", "-m", str(EMBEDDED_TARGET), "-md", "none", "--drafters", "none", *ASKED)
    assert drafted.json["text"] == plain.json["text"]
    assert drafted.json["n_accept"] > 0
    assert "vocabulary translated" in drafted.err
    assert_error(command(*pair, "--draft-vocab", "all"), 2, "--draft-vocab")


def test_a_head_is_not_translated(command: Command) -> None:
    target = tinygguf.llama(command.home / "t.gguf")
    head = tinyheads.eagle3(command.home / "h.gguf", target_layers=(0, 1, 9))
    result = command(
        "run", "-m", str(target), "-md", str(head), "--draft-vocab", "auto", "-p", "x", "-n", "1"
    )
    assert_error(result, 7, "reads layer 9", "--draft-vocab is of no use to a head")


def record(command: Command, draft: str, speedup: float, without: float = 1.0) -> None:
    """Store a measurement of the draft for the embedded target under another name."""
    target = Path(shutil.copy(EMBEDDED_TARGET, command.home / "big.gguf"))
    measured = DraftRecord(
        draft, identity(read_header(draft)), "tune", speedup, without, 640, acceptance=0.4, needed=0.5
    )
    MeasuredDrafts(read_header(target), Store(command.cache / "drafts")).put(measured)


def test_auto_uses_it_where_it_was_measured_to_pay(command: Command, draft: str) -> None:
    record(command, draft, 1.32)
    run = ("run", "-m", "big.gguf", *ASKED)
    plain = command(*run, "-md", "none", "--drafters", "none").json
    strict = command(*run)
    assert strict.json["draft"] is None
    assert "--draft-vocab auto would use the draft other.gguf, of another vocabulary" in strict.err
    auto = command(*run, "--draft-vocab", "auto")
    assert "the draft other.gguf, of another vocabulary" in auto.err
    assert "is used: specllama tune predicted 1.32 x plain decoding, 1.00 x without it" in auto.err
    assert auto.json["draft"]["path"] == draft
    assert auto.json["text"] == strict.json["text"] == plain["text"]
    record(command, draft, 1.32, without=1.3)
    result = command(*run, "--draft-vocab", "auto")
    assert result.json["draft"] is None
    left_out = "other.gguf is left out: specllama tune predicted 1.32 x plain decoding, 1.30 x without it"
    assert result.err.count(left_out) == 1
    check = command("pair-check", "big.gguf", "--draft-vocab", "auto")
    assert check.code == 2
    assert check.err.replace("\n", " ").count(left_out) == 1
    assert "no draft for it is known" not in check.err


def test_pair_check_says_whether_it_pays(command: Command, draft: str) -> None:
    shutil.copy(EMBEDDED_TARGET, command.home / "big.gguf")

    def said(*more: str) -> str:
        return " ".join(command("pair-check", "big.gguf", *more).out.split())

    assert "-md auto uses it only if it was measured to pay here, from 1.05 x: specllama tune" in said(draft)
    record(command, draft, 1.02)
    text = said(draft)
    assert (
        "predicted 1.02 x plain decoding, 1.00 x without it: -md auto leaves it out, as it needs 1.05" in text
    )
    assert "40 % of its tokens were right, and drafts pay from 50 % here" in text
    record(command, draft, 1.32)
    assert "-md auto uses it, with --draft-vocab auto" in said(draft)
    assert command("pair-check", "big.gguf").code == 2
    auto = command("pair-check", "big.gguf", "--draft-vocab", "auto")
    assert (auto.code, auto.err) == (0, "")
    for figure in ("1.32 x", "100 % of tokens shared"):
        assert auto.out.count(figure) == 1, "each figure is printed once"


def test_tune_tries_those_that_were_measured(command: Command, draft: str) -> None:
    record(command, draft, 1.0)
    args = ("-m", "big.gguf", "-n", "8", "--workloads", "free", "--json", "--ignore-load")
    report = command("tune", *args, "--draft-vocab", "auto").json
    paths = [one["path"] for one in (*report["ranking"], *report["not_ranked"])]
    assert sorted(map(str, paths)) == sorted([draft, "None"])


def test_tune_says_how_to_measure_those_that_it_leaves_out(command: Command, draft: str) -> None:
    record(command, draft, 1.0)
    args = ("-m", "big.gguf", "-n", "8", "--workloads", "free", "--ignore-load")
    auto = command("tune", *args)
    assert "left out, as of another vocabulary: other.gguf; --draft-vocab auto measures it" in auto.err
    named = command("tune", *args, "-md", draft)
    assert_error(named, 7, "no draft fits the target", "or --draft-vocab auto: 100 % of tokens shared")


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
