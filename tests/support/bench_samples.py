"""Samples with given speeds, for the tests of summaries, verdicts and reports."""

from __future__ import annotations

from collections import Counter
from typing import Any

from specllama.bench.runner import COPY, LLAMA_CPP, BenchCase, BenchConfig, BenchSample, BenchStep
from specllama.core.stats import RunStats

SECONDS = 2.0
MODEL = {"name": "<b>pydoc</b>", "quant": "Q4_0", "path": "x", "params": 1, "n_gpu_layers": 0}
ABOUT: dict[str, Any] = {  # models, machine and settings of a bench
    "version": "1", "date": "today", "target": MODEL, "draft": MODEL, "drafters": ["copy", "model"],
    "machine": {"system": "Linux", "machine": "x86", "cores": 2, "n_threads": 2},
    "settings": {"text": None, "n_tokens": 8, "runs": 1}, "interrupted": False, "skipped": {},
    "planned": 9, "exact": False,
}  # fmt: skip


def config(name: str) -> BenchConfig:
    if name == LLAMA_CPP:
        return BenchConfig(0, kernels=False)
    if name == COPY:
        return BenchConfig(None, runs_models=False)
    return BenchConfig({"plain": 0, "auto": None}.get(name, int(name) if name.isdigit() else None))


def sample(
    name: str,
    tps: float,
    workload: str = "edit",
    number: int = 1,
    temperature: float = 0.0,
    run: int = 1,
    tokens: tuple[int, ...] = (1, 2, 3),
    round_seconds: dict[int, tuple[int, float]] | None = None,
    **stats: Any,
) -> BenchSample:
    """An answer that a configuration wrote at `tps` tokens a second, for SECONDS, drafting unless plain."""
    case = BenchCase(workload, number, f"{workload} {number}", temperature)
    counted = RunStats(n_predict=round(tps * SECONDS) + 1, decode_seconds=SECONDS, ttft_seconds=0.5)
    counted.n_drafted = int(name not in ("plain", LLAMA_CPP))
    for key, value in stats.items():
        setattr(counted, key, Counter(value) if key == "drafted_by" else value)
    counted.round_seconds = round_seconds or {}
    return BenchSample(BenchStep(run, case, config(name)), tokens, counted)
