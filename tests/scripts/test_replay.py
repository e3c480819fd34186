"""scripts.replay: the planner against other ways of decoding; traces of heads and of draft models."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support import tinygguf, tinymtp
from tests.support.command import Command
from tests.support.paths import ROOT

TRACES = ROOT / "tests/unit/core/traces"
TEXTS = TRACES / "pydoc.json"
CHANGES_COST_MORE_THAN_THREE_DECODES = "MoE 128/8, 16 layers, Q4_K_M"
LAST = (0.0, 1.0)  # only the last block adds something: a head that is a copy of it is perfect
NOISE = 0.1  # makes it wrong now and then

HOME = tempfile.TemporaryDirectory()


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return Command(Path(HOME.name)).python("-m", "scripts.replay", *arguments, timeout=240)


class Cell(NamedTuple):
    """A line of --detail. rates: by what the planner is compared with."""

    machine: str
    workload: str
    rates: dict[str, float]


def replayed(*flags: str) -> list[Cell]:
    """The cells with the draft model as recorded."""
    done = run(TEXTS, "--real", "--detail", *flags)
    assert done.returncode == 0, done.stderr
    found = []
    for line in done.stdout.split("\npydoc: ")[0].splitlines():
        machine, workload, rates = re.fullmatch(r"  (.+?) +c=[\d.]+ (\w+) +(.+)", line).groups()
        by_name = (rate.split(" x ") for rate in rates.split(", "))
        found.append(Cell(machine, workload, {name: float(rate) for rate, name in by_name}))
    assert len(found) == 9 * 3 * 5
    return found


@pytest.mark.parametrize("flags", [("--fixed",), ("--cold",)], ids=["known machine", "unknown machine"])
def test_the_planner_beats_the_best_settings_of_other_engines(flags: tuple[str, ...]) -> None:
    cells = replayed(*flags)
    rates = {name: [cell.rates[name] for cell in cells] for name in cells[0].rates}
    assert statistics.geometric_mean(rates["best of grid"]) > 1.05
    n_tokens = {w: sum(len(t["text"]) for t in texts) for w, texts in json.loads(TEXTS.read_text()).items()}
    for cell in cells:  # in shorter ones earlier gains are a large share
        if (n := n_tokens[cell.workload]) > 100:
            assert cell.rates["plain"] >= 1 / (1.01 + 4 / n), cell
    if "--fixed" in flags:
        assert statistics.geometric_mean(rates["best fixed"]) > 1.03
        for cell in cells:  # no draft length beats the oracle that knows where drafts are wrong
            assert cell.rates["oracle stop"] <= min(1, *(cell.rates[n] for n in ("plain", "n_max 3")))


def test_on_devices_one_width_a_text_is_as_fast_as_the_best_fixed_length_and_hardly_slower_than_plain() -> (
    None
):
    """What changes of the width cost is measured at loading. The texts are few, the first ones unseen."""
    done = run(TEXTS, "--real", "--devices", TRACES / "gpu_curves.json")
    assert done.returncode == 0, done.stderr
    line = r"pydoc \| (.+) \| c 0\.05: ([\d.]+) x plain, .* ([\d.]+) \(\d+\), worst text ([+-][\d.]+) t\(1\)"
    found = re.findall(line, done.stdout)
    assert len(found) == 6
    for device, gain, fixed, excess in found:
        assert float(gain) > 0.7 * float(fixed) > 1.1, device
        assert float(excess) < (12 if device == CHANGES_COST_MORE_THAN_THREE_DECODES else 4), device
    assert statistics.geometric_mean(float(gain) / float(fixed) for _, gain, fixed, _ in found) > 0.95


# Recording with the real llama.cpp


def record(folder: Path, target: Path, draft: Path) -> subprocess.CompletedProcess[str]:
    (folder / "prompts.json").write_text(json.dumps({"some": ["the quick brown fox", "once upon a time"]}))
    return run(
        *("--record", folder / "traces.json", "-m", target, "-md", draft),
        *("--prompts", folder / "prompts.json", "-n", 30, "--ctx", 512),
    )


def n_right(folder: Path, target: Path, draft: Path) -> list[int]:
    """Right choices of each text of 30 tokens."""
    done = record(folder, target, draft)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads((folder / "traces.json").read_text())["some"]
    assert [len(trace["text"]) for trace in found] == [30, 30]
    assert all(conf > 0 for trace in found for conf in trace["conf"])
    return [sum(a == b for a, b in zip(t["draft"], t["text"], strict=True)) for t in found]


def test_records_the_head_inside_the_target(tmp_path: Path) -> None:
    model = tinymtp.mimo2(tmp_path / "m.gguf", adds=LAST, copied=True, head_noise=NOISE)
    right = n_right(tmp_path, model, model)
    assert min(right) > 15
    assert sum(right) < 60


def test_records_a_head_in_a_file_of_its_own(tmp_path: Path) -> None:
    trunk = tinymtp.mimo2(tmp_path / "trunk.gguf", adds=LAST, part="trunk")
    head = tinymtp.mimo2(tmp_path / "mtp.gguf", adds=LAST, copied=True, part="head")
    assert n_right(tmp_path, trunk, head) == [30, 30]


def test_records_a_draft_model(tmp_path: Path) -> None:
    target = tinygguf.llama(tmp_path / "target.gguf", adds=LAST)
    draft = tinygguf.llama(tmp_path / "draft.gguf", adds=LAST, noise=NOISE)
    right = n_right(tmp_path, target, draft)
    assert min(right) > 5
    assert sum(right) < 60


def test_a_head_that_is_only_promised_is_refused(tmp_path: Path) -> None:
    model = tinymtp.mimo2(tmp_path / "m.gguf", part="promise")
    done = record(tmp_path, model, model)
    assert done.returncode != 0
    assert "the file does not have" in done.stderr
