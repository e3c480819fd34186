"""The object of `bench --server --json`, schema specllama.bench-server/1. Times are in seconds unless the key
ends in ms; null means unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from specllama.bench.serving import summary
from specllama.bench.serving.summary import Percentiles, ServingRow, ServingSummary
from specllama.bench.serving.sweep import ServingMeasurement
from specllama.json_types import JsonObject

SCHEMA = "specllama.bench-server/1"


class PercentilesRecord(TypedDict):
    """The median and the 99th percentile."""

    p50: float
    p99: float


class ServingRowRecord(TypedDict):
    """A series at a concurrency; see ServingRow."""

    series: str
    concurrency: int
    runs: int
    tps: float | None
    ttft_ms: PercentilesRecord | None
    inter_token_ms: PercentilesRecord | None
    seconds: PercentilesRecord | None
    answers: int
    failed: int
    refused: int
    n_predict: int
    n_drafted: int | None
    n_accept: int | None
    acceptance: float | None
    prompt_cached: float | None


class ServingCellRecord(TypedDict):
    """The answers of a series, a concurrency and a run; see ServingMeasurement."""

    series: str
    concurrency: int
    run: int
    complete: bool
    seconds: float
    tps: float | None
    ttft_ms: PercentilesRecord | None
    inter_token_ms: PercentilesRecord | None
    answer_seconds: PercentilesRecord | None
    answers: int
    n_predict: int
    problems: list[str]


def record(
    s: ServingSummary, measured: Sequence[ServingMeasurement], about: Mapping[str, Any], verdict: str
) -> JsonObject:
    """The whole object. about: server and settings under their keys in the object."""
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


def _row(row: ServingRow) -> ServingRowRecord:
    return {
        "series": row.series,
        "concurrency": row.concurrency,
        "runs": row.runs,
        "tps": row.tps,
        "ttft_ms": _percentiles(row.ttft, 1000),
        "inter_token_ms": _percentiles(row.gap, 1000),
        "seconds": _percentiles(row.total),
        "answers": row.answers,
        "failed": row.failed,
        "refused": row.refused,
        "n_predict": row.n_predict,
        "n_drafted": row.n_drafted,
        "n_accept": row.n_accept,
        "acceptance": row.acceptance,
        "prompt_cached": row.cached,
    }


def _cell(m: ServingMeasurement) -> ServingCellRecord:
    return {
        "series": m.cell.series,
        "concurrency": m.cell.concurrency,
        "run": m.cell.run,
        "complete": m.complete,
        "seconds": m.seconds,
        "tps": summary.tps(m),
        "ttft_ms": _percentiles(summary.ttft(m), 1000),
        "inter_token_ms": _percentiles(summary.gap(m), 1000),
        "answer_seconds": _percentiles(summary.total(m)),
        "answers": len(m.succeeded),
        "n_predict": sum(a.n_tokens for a in m.succeeded),
        "problems": [a.problem.message for a in m.answers if a.problem is not None],
    }


def _percentiles(t: Percentiles | None, factor: float = 1) -> PercentilesRecord | None:
    return None if t is None else {"p50": t.p50 * factor, "p99": t.p99 * factor}
