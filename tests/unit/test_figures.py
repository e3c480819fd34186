"""The statistics of an answer in the words of every front, from fixed counters and byte by byte.

With SPECLLAMA_GOLDEN=write in the environment tests/golden/figures.json is written again.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from specllama.api.outputs import CompletionStats
from specllama.cli import readout
from specllama.core.gain import PlainRate, compared_rate, plain_rate
from specllama.core.stats import RunStats
from specllama.server.dialects.shared.figures import figures, own_figures, timings
from specllama.server.events import End

GOLDEN = Path(__file__).parents[1] / "golden" / "figures.json"
MODEL = SimpleNamespace(name="m", path="/m.gguf", params=7, quant="Q4_0", n_gpu_layers=2)


def drafted() -> RunStats:
    return RunStats(
        n_prompt=30, n_reused=4, n_from_disk=2, n_evaluated=26, n_predict=41, n_drafted=60, n_accept=25,
        n_discarded=3, n_modelled=20, n_branch=6, n_branch_accept=2, n_forced=5, n_forced_accept=4,
        drafted_by=Counter({"copy": 40, "model": 25}), forced_by=Counter({"grammar": 5}),
        reached=[20, 10, 3], accepted_at=[15, 7, 1], reached_by={"copy": [12, 10], "model": [8, 0, 3]},
        accepted_by={"copy": [9, 7], "model": [6, 0, 1]}, rounds=16, plain_rounds=4, plain_seconds=0.21,
        steady_rounds=3, steady_seconds=0.1503, encode_seconds=0.4, ttft_seconds=0.45,
        decode_seconds=1.23456789, verify_seconds=0.9, draft_seconds=0.2, sampling_seconds=0.05, near_ties=2,
        redecided=1, width_changes=[(0, 4), (9, 8)], round_seconds={1: (4, 0.2), 5: (12, 0.8)},
        steady_by_rows={1: (3, 0.1503)}, steady_squares=0.0076, shortest={1: 0.05}, stalled_seconds=0.2,
    )  # fmt: skip


def plain() -> RunStats:
    return RunStats(
        n_prompt=9, n_evaluated=9, n_predict=11, rounds=10, plain_rounds=10, plain_seconds=0.5,
        steady_rounds=8, steady_seconds=0.41, steady_squares=0.02102, encode_seconds=0.1, ttft_seconds=0.1,
        decode_seconds=0.52, verify_seconds=0.5, exact_width=8, round_seconds={1: (10, 0.5)},
    )  # fmt: skip


def every_form() -> list[dict[str, Any]]:
    rates = [plain_rate(drafted(), 0.049), compared_rate(plain()), PlainRate(None, "none", 0, reason="why")]
    answers = [(drafted(), rate) for rate in rates] + [(plain(), rates[0])]
    forms: list[dict[str, Any]] = []
    for i, (stats, rate) in enumerate(answers):
        info: Any = SimpleNamespace(
            target=MODEL, draft=MODEL if i else None, load_seconds=0.1234567, head="", head_in_target=False
        )
        answer: Any = SimpleNamespace(
            text="t", ids=[1, 2], finish_reason="stop", seed=5, stats=stats, off_reason="off" * (i > 1),
            epsilon=0.1 if i else None,
        )  # fmt: skip
        forms.append(readout.as_json(answer, rate, info))
    ends = [End(i, "stop", None, *answer, off_reason="off" * i) for i, answer in enumerate(answers)]
    for some in ([], ends[:1], ends[3:], ends[:2]):
        fold: Any = SimpleNamespace(ends=some)
        forms += [figures(fold, True), own_figures(some, False), timings([end.stats for end in some])]
    forms.append(figures(fold, True, ["seed"]))
    for stats, rate in answers:
        counters = {name: getattr(stats, name) for name in RunStats.__slots__}
        forms.append(CompletionStats(**counters, seed=3, plain=rate).to_dict())
    forms.append(CompletionStats(seed=3, n_prompt=2, n_predict=1, n_drafted=4, n_accept=3).to_dict())
    return forms


def test_the_figures_of_every_front_are_the_same_byte_by_byte() -> None:
    text = "".join(json.dumps(form) + "\n" for form in every_form())
    if os.environ.get("SPECLLAMA_GOLDEN") == "write":
        GOLDEN.write_text(text, "utf-8")
    assert GOLDEN.read_text("utf-8") == text
