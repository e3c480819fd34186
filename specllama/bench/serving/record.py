"""The object of `bench --server --json`, schema specllama.bench-server/1. Times are in seconds unless the key
ends in ms; null means unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specllama.bench.serving import summary
from specllama.bench.serving.summary import Percentiles, ServingRow, ServingSummary
from specllama.bench.serving.sweep import ServingMeasurement
from specllama.json_types import JsonObject

SCHEMA = "specllama.bench-server/1"


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


def _row(row: ServingRow) -> JsonObject:
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


def _cell(m: ServingMeasurement) -> JsonObject:
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


def _percentiles(t: Percentiles | None, factor: float = 1) -> JsonObject | None:
    return None if t is None else {"p50": t.p50 * factor, "p99": t.p99 * factor}
