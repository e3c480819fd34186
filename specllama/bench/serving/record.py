"""The object of `bench --server --json`: schema specllama.bench-server/1. Times in seconds unless named ms;
what is not known is null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specllama.bench.serving import figures
from specllama.bench.serving.figures import Percentiles, ServingRow, ServingSummary
from specllama.bench.serving.sweep import ServingMeasurement

SCHEMA = "specllama.bench-server/1"


def record(
    s: ServingSummary, measured: Sequence[ServingMeasurement], about: Mapping[str, Any], verdict: str
) -> dict[str, Any]:
    """Everything that was found. about: server and settings, as they are to stand there."""
    return {
        "schema": SCHEMA,
        **about,
        "tokens_counted_by": "server" if s.counted else "chunks",
        "rows": [_row(row) for row in s.rows],
        "speculative_against_plain": [{"concurrency": c, "tps": x} for c, x in s.ratios.items()],
        "texts_compared": s.compared,
        "texts_different": s.different,
        "verdict": verdict,
        "cells": [_cell(m) for m in measured if m.answers],
    }


def _row(row: ServingRow) -> dict[str, Any]:
    return {
        "series": row.series,
        "concurrency": row.concurrency,
        "runs": row.runs,
        "tps": row.tps,
        "ttft_ms": _tails(row.ttft, 1000),
        "inter_token_ms": _tails(row.gap, 1000),
        "seconds": _tails(row.whole),
        "answers": row.answers,
        "failed": row.failed,
        "refused": row.refused,
        "n_predict": row.n_predict,
        "n_drafted": row.n_drafted,
        "n_accept": row.n_accept,
        "acceptance": row.acceptance,
        "prompt_cached": row.cached,
    }


def _cell(m: ServingMeasurement) -> dict[str, Any]:
    return {
        "series": m.cell.series,
        "concurrency": m.cell.concurrency,
        "run": m.cell.run,
        "complete": m.complete,
        "seconds": m.seconds,
        "tps": figures.tps(m),
        "ttft_ms": _tails(figures.ttft(m), 1000),
        "inter_token_ms": _tails(figures.gap(m), 1000),
        "answer_seconds": _tails(figures.whole(m)),
        "answers": len(m.whole),
        "n_predict": sum(a.n_tokens for a in m.whole),
        "problems": [a.problem.message for a in m.answers if a.problem is not None],
    }


def _tails(t: Percentiles | None, factor: float = 1) -> dict[str, float] | None:
    return None if t is None else {"p50": t.p50 * factor, "p99": t.p99 * factor}
