"""The output of `bench` from fixed answers, byte by byte: the tables, the object of --json and the page.

With SPECLLAMA_GOLDEN=write in the environment the files of tests/golden/bench are written again.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from specllama.bench.report import report, sweep_report
from specllama.bench.runner import BenchSample
from specllama.bench.server_client import ServedAnswer, ServedPiece
from specllama.bench.summary import SCHEMA, sample_figures, summarise
from specllama.bench.sweep import PLAIN, SERVED, SPECULATIVE, ServingCell, ServingMeasurement, cell_figures
from specllama.bench.sweep import SCHEMA as SWEEP_SCHEMA
from specllama.bench.sweep import summarise as summarise_sweep
from specllama.bench.sweep import verdict as sweep_verdict
from specllama.bench.words import advice, draft_answer, verdict
from specllama.cli.bench.text import lines, sweep_lines
from specllama.core.stats import RunStats
from specllama.errors import NetworkError
from tests.support.bench_samples import sample

GOLDEN = Path(__file__).parents[2] / "golden" / "bench"
WAYS = ["plain", "llama.cpp", "1", "4", "copy", "auto"]
SPEED = {"plain": 1.0, "llama.cpp": 0.6, "1": 1.2, "4": 1.5, "copy": 1.1, "auto": 1.7}
TARGET = {
    "name": "Big \x1b[1m<Model>",
    "path": "/m/big.gguf",
    "params": 7,
    "quant": "Q4_0",
    "n_gpu_layers": 3,
}
DRAFT = {**TARGET, "name": "small", "path": "/m/small.gguf", "params": 1}


def answers(workloads: Sequence[str], temperatures: Sequence[float], lose: str = "") -> list[BenchSample]:
    """Answers of every way, with figures by a fixed seed. lose: the workload on which auto loses."""
    rng, samples = random.Random(7), []
    for run in (1, 2, 3):
        for temperature in temperatures:
            for workload in workloads:
                for number in (1, 2):
                    base = rng.uniform(30, 40)
                    for name in WAYS:
                        factor = 0.6 if (workload, name) == (lose, "auto") else SPEED[name]
                        one = sample(name, base * factor * rng.uniform(0.97, 1.03), workload, number)
                        case = replace(one.step.case, temperature=temperature)
                        step = replace(one.step, case=case, run=run)
                        differs = (name, number, run, temperature) == ("4", 2, 1, 0.8)
                        samples.append(
                            replace(
                                one, step=step, tokens=(1, 2, 9) if differs else (1, 2, 3), ties_known=True
                            )
                        )
                        counted(one.stats, name, rng)
    return [with_times(one, rng) for one in samples]


def counted(stats: RunStats, name: str, rng: random.Random) -> None:
    """Counters of an answer of this configuration."""
    stats.ttft_seconds = rng.uniform(0.2, 0.3)
    stats.n_prompt, stats.n_reused, stats.near_ties = 40, 4, rng.randrange(3)
    stats.rounds, stats.verify_seconds, stats.sampling_seconds = 30, 1.2, 0.1
    stats.n_evaluated, stats.encode_seconds = 36, 0.2
    if name in ("plain", "llama.cpp"):
        return
    most = {"1": 1, "4": 4}.get(name, 8)
    stats.reached = sorted((rng.randrange(5, 30) for _ in range(most)), reverse=True)
    stats.accepted_at = [rng.randrange(n) for n in stats.reached]
    stats.reached_by = {"copy": list(stats.reached)}
    stats.accepted_by = {"copy": list(stats.accepted_at)}
    stats.n_drafted, stats.n_accept = sum(stats.reached), sum(stats.accepted_at)
    stats.drafted_by, stats.n_discarded = Counter({"copy": stats.n_drafted}), 2
    if name != "copy":
        stats.reached_by["model"], stats.accepted_by["model"] = [3, 0, 2][:most], [2, 0, 1][:most]
        stats.drafted_by["model"], stats.n_modelled, stats.draft_seconds = 5, 5, 0.15
        stats.n_branch, stats.n_branch_accept = 2, 1


def with_times(one: BenchSample, rng: random.Random) -> BenchSample:
    """The same with times of its decodes, which take longer after a change of their rows."""
    k, stats = one.step.config.draft_max, one.stats
    stats.round_seconds, stats.steady_by_rows = {1: (30, 0.9)}, {1: (28, 0.82)}
    if k != 0:
        widths = [k + 1] if k else [2, 5, 9]
        steady = {w: (4, 4 * 0.03 * (1 + 0.1 * w) * rng.uniform(0.98, 1.02)) for w in widths}
        every = {w: (6, seconds + 2 * 0.08) for w, (_, seconds) in steady.items()}
        stats.round_seconds, stats.steady_by_rows = every | {1: (4, 0.16)}, steady | {1: (2, 0.06)}
    return one


def about(**changes: Any) -> dict[str, Any]:
    return {
        "version": "1.2", "date": "2026-01-02T03:04:05+00:00",
        "machine": {"system": "Linux", "machine": "x86_64", "cores": 2, "n_threads": 1},
        "target": TARGET, "draft": DRAFT, "head": "", "head_in_target": False,
        "drafters": ["copy", "model"], "n_ctx": 4096, "load_ms": 12.5,
        "settings": {
            "text": None, "n_tokens": 64, "runs": 3, "k": [1, 4], "temperatures": [0.0, 0.8],
            "workloads": {"edit": 2, "free": 2},
        },
        "exact": False, "planned": 144, "seconds": 3723.0, "interrupted": False, "skipped": {}, **changes,
    }  # fmt: skip


def served(number: int, rng: random.Random, **more: Any) -> ServedAnswer:
    """An answer of a server in ten pieces."""
    pace = rng.uniform(0.009, 0.012)
    pieces = [ServedPiece(0.1 + pace * i, 1 + i % 2) for i in range(10)]
    return ServedAnswer(number, pieces, 0.11 + pace * 10, n_predict=20, digest="d", **more)


def sweep(series: Sequence[str]) -> list[ServingMeasurement]:
    """Cells of two runs at three concurrencies."""
    rng, cells = random.Random(3), []
    for run in (1, 2):
        for clients in (1, 2, 4):
            for name in series:
                drafts = (
                    {"n_drafted": 12, "n_accept": 9} if name != PLAIN else {"n_drafted": 0, "n_accept": 0}
                )
                cached = {"n_prompt": 30, "n_cached": 10}
                got = [served(i, rng, **drafts, **cached) for i in range(4)]
                if (name, clients) == (PLAIN, 4):
                    got[1] = ServedAnswer(1, problem=NetworkError("the connection broke"), refused=2)
                if (name, clients, run) == (SPECULATIVE, 2, 1):
                    got[0].digest = "other"
                complete = (clients, run) != (4, 2)
                seconds = rng.uniform(1.0, 1.1) / (1 + 0.5 * (name != PLAIN))
                cells.append(ServingMeasurement(ServingCell(name, clients, run), got, seconds, complete))
    return cells


def about_server(**changes: Any) -> dict[str, Any]:
    return {
        "version": "1.2", "date": "2026-01-02T03:04:05+00:00",
        "server": {
            "url": "http://h/v1", "model": "<m\x1b>", "owner": "specllama", "build": "b1", "n_slots": 2
        },
        "series": [SPECULATIVE, PLAIN], "one_series": None,
        "settings": {
            "requests": 4, "concurrency": [1, 2, 4], "runs": 2, "n_tokens": 20, "temperature": 0.0,
            "raw": False, "ignore_eos": False, "timeout": 600.0, "workloads": {"edit": 4},
        },
        "answers": 46, "planned": 48, "seconds": 61.5, "interrupted": False, "failure": None, "problems": [],
        **changes,
    }  # fmt: skip


def in_bench(
    samples: list[BenchSample], ways: list[str], off: str, info: dict[str, Any]
) -> tuple[dict[str, Any], list[str], str]:
    """The object, the lines at two widths, and the page."""
    s = summarise(samples, ways)
    words = [draft_answer(s, "draft model"), advice(s, off)]
    record = {"schema": SCHEMA, **info, **s, "verdict": verdict(s, off)}
    record["samples"] = [sample_figures(one) for one in samples]
    return record, [line for width in (80, None) for line in lines(record, words, width)], report(record)


def in_sweep(
    cells: list[ServingMeasurement], series: list[str], why: str, info: dict[str, Any]
) -> tuple[dict[str, Any], list[str], str]:
    s = summarise_sweep(cells, series)
    record = {"schema": SWEEP_SCHEMA, **info, **s, "verdict": sweep_verdict(s, why)}
    record["cells"] = [cell_figures(m) for m in cells]
    return record, [line for width in (60, None) for line in sweep_lines(record, width)], sweep_report(record)


def drafts() -> tuple[dict[str, Any], list[str], str]:
    return in_bench(answers(("edit", "free"), (0.0, 0.8), "free"), WAYS, "", about())


def interrupted() -> tuple[dict[str, Any], list[str], str]:
    """Without times of decodes by their rows; a head; answers without a speed; prompts that were left out."""
    samples = [
        replace(one, ties_known=False) for one in answers(("a workload with a long name",), (0.0,))[:-1]
    ]
    for one in samples:
        one.stats.round_seconds, one.stats.steady_by_rows = {}, {}
    samples[0].stats.n_predict = 1
    skipped = {f"long {i}": "it has 9000 tokens" for i in range(7)}
    info = about(interrupted=True, skipped=skipped, head="eagle3", head_in_target=True, exact=True)
    return in_bench(samples, WAYS, "", info)


def only_plain() -> tuple[dict[str, Any], list[str], str]:
    samples = [one for one in answers(("edit",), (0.0,)) if one.config == "plain"]
    settings = {**about()["settings"], "text": "given.py", "n_tokens": None}
    info = about(draft=None, drafters=[], settings=settings, seconds=4.2)
    return in_bench(samples, ["plain"], "no draft fits", info)


def losing() -> tuple[dict[str, Any], list[str], str]:
    """Drafts that never pay."""
    samples = [one for one in answers(("edit",), (0.0,), "edit") if one.config != "copy"]
    for one in samples:
        if one.config in ("1", "4"):
            one.stats.decode_seconds *= 2
    return in_bench(samples, WAYS, "", about())


def two_series() -> tuple[dict[str, Any], list[str], str]:
    return in_sweep(sweep([SPECULATIVE, PLAIN]), [SPECULATIVE, PLAIN], "", about_server())


def one_series() -> tuple[dict[str, Any], list[str], str]:
    cells = sweep([SERVED])
    for one in cells:
        for answer in one.answers:
            answer.n_predict = answer.n_drafted = answer.n_accept = answer.n_prompt = answer.n_cached = None
    info = about_server(interrupted=True, failure="the server is gone", series=[SERVED], one_series="because")
    info["server"] |= {"n_slots": None, "model": "", "build": "", "owner": "them"}
    info["settings"] |= {"ignore_eos": True}
    return in_sweep(cells, [SERVED], "because", info)


def of_one_precision(value: Any) -> Any:
    """The last digits of intervals depend on how a machine adds."""
    if isinstance(value, float):
        return float(f"{value:.10g}")
    if isinstance(value, dict):
        return {name: of_one_precision(part) for name, part in value.items()}
    return [of_one_precision(part) for part in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("made", [drafts, interrupted, only_plain, losing, two_series, one_series])
def test_the_output_is_the_same_byte_by_byte(made: Any) -> None:
    written, shown, page = made()
    parts = of_one_precision(json.loads(json.dumps(written, default=asdict)))
    rows = [f"{json.dumps(key)}: {json.dumps(part)}" for key, part in parts.items()]
    body = re.sub(r"<style>.*?</style>|<script.*?</script>|sha256-[^']+", "", page, flags=re.DOTALL)
    numbers = r"(?<![\w.#-])-?\d+\.\d{10,}"
    body = re.sub(numbers, lambda found: f"{float(found[0]):.10g}", body)
    for suffix, text in (("json", "\n".join(rows)), ("txt", "\n".join(shown)), ("html", body)):
        path = GOLDEN / f"{made.__name__}.{suffix}"
        if os.environ.get("SPECLLAMA_GOLDEN") == "write":
            path.write_text(text + "\n", "utf-8")
        assert path.read_text("utf-8") == text + "\n", path.name
