"""scripts.replay records traces of heads and of draft models with the real llama.cpp."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

from scripts.replay.__main__ import load
from tests.support import tinygguf, tinymtp

LAST = (0.0, 1.0)  # only the last block adds something: a head that is a copy of it is perfect
NOISE = 0.1  # makes it wrong now and then


def record(folder: Path, target: Path, draft: Path, patch: pytest.MonkeyPatch) -> list[int]:
    """Right choices of each text of 30 tokens."""
    prompts, out = folder / "prompts.json", folder / "traces.json"
    prompts.write_text(json.dumps({"some": ["the quick brown fox", "once upon a time"]}))
    arguments = ["--record", str(out), "-m", str(target), "-md", str(draft), "--prompts", str(prompts)]
    patch.setattr(sys, "argv", ["replay", *arguments, "-n", "30", "--ctx", "512"])
    patch.delitem(sys.modules, "scripts.replay.__main__", raising=False)
    runpy.run_module("scripts.replay", run_name="__main__", alter_sys=True)
    found = load(str(out))["some"]
    assert [len(trace.text) for trace in found] == [30, 30]
    assert all(conf > 0 for trace in found for conf in trace.conf)
    return [sum(a == b for a, b in zip(trace.draft, trace.text, strict=True)) for trace in found]


def test_the_head_inside_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tinymtp.mimo2(tmp_path / "m.gguf", adds=LAST, copied=True, head_noise=NOISE)
    right = record(tmp_path, model, model, monkeypatch)
    assert min(right) > 15
    assert sum(right) < 60


def test_a_head_in_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trunk = tinymtp.mimo2(tmp_path / "trunk.gguf", adds=LAST, part="trunk")
    head = tinymtp.mimo2(tmp_path / "mtp.gguf", adds=LAST, copied=True, part="head")
    assert record(tmp_path, trunk, head, monkeypatch) == [30, 30]


def test_a_draft_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tinygguf.llama(tmp_path / "target.gguf", adds=LAST)
    draft = tinygguf.llama(tmp_path / "draft.gguf", adds=LAST, noise=NOISE)
    right = record(tmp_path, target, draft, monkeypatch)
    assert min(right) > 5
    assert sum(right) < 60


def test_a_head_that_is_only_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tinymtp.mimo2(tmp_path / "m.gguf", part="promise")
    with pytest.raises(SystemExit):
        record(tmp_path, model, model, monkeypatch)
    assert "the file does not have" in capsys.readouterr().err
