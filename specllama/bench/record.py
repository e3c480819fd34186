"""The object of `bench --json`, schema specllama.bench/1. Times are in seconds unless the key ends in ms;
null means unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specllama.bench.intervals import Estimate
from specllama.bench.runner import PLAIN, BenchSample
from specllama.bench.summary import BenchSummary, SummaryCell, SummaryRow
from specllama.json_types import JsonObject

SCHEMA = "specllama.bench/1"


def record(
    summary: BenchSummary, samples: Sequence[BenchSample], about: Mapping[str, Any], verdict: str
) -> JsonObject:
    """The whole object. about: models, machine and settings under their keys in the object."""
    costs = summary.costs
    return {
        "schema": SCHEMA,
        **about,
        "configurations": list(summary.configs),
        "answers": summary.answers,
        "too_short": summary.too_short,
        "near_ties": summary.near_ties,
        "total": _row(summary.total),
        "rows": [_row(row) for row in summary.rows],
        "t_n": [
            {
                "rows": p.rows,
                "seconds": p.seconds,
                "relative": costs.relative(p),
                "rounds": p.rounds,
                "changing_seconds": p.changing,
            }
            for p in costs.points
        ],
        "t_n_exact": costs.exact,
        "draft_token_seconds": costs.draft_token,
        "first_accepted": costs.first_accepted,
        "rounds_drafted": costs.drafted,
        "texts_compared": summary.compared,
        "texts_different": [
            {
                "workload": d.case.workload,
                "prompt": d.case.number,
                "temperature": d.case.temperature,
                "run": d.run,
                "configuration": d.config,
                "token": d.token,
            }
            for d in summary.differences
        ],
        "verdict": verdict,
        "samples": [_sample(s) for s in samples],
    }


def draft_name(about: Mapping[str, Any]) -> str:
    """The draft for people: "draft NAME QUANT", the head, or both; "" without one. about: as in `record`."""
    draft, head = about["draft"], about.get("head", "")
    if draft is None:
        return ""
    name = f"{draft['name']} {draft['quant']}"
    if not head:
        return f"draft {name}"
    own, alone = f"head of the model ({head})", draft["path"] == about["target"]["path"]
    if about.get("head_in_target", alone):
        return own if alone else f"{own} + draft {name}"
    return f"head {name} ({head})"


def _row(row: SummaryRow) -> JsonObject:
    return {
        "workload": row.workload,
        "temperature": row.temperature,
        "configurations": {name: _cell(name, cell) for name, cell in row.cells.items()},
        "best_fixed": row.best,
        "auto_against_best": _estimate(row.auto_against_best),
        "auto_over_copies": _estimate(row.auto_over_copies),
        "regret": row.regret,
    }


def _cell(name: str, cell: SummaryCell) -> JsonObject:
    total = cell.total
    return {
        "answers": cell.answers,
        "decode_tps": _estimate(cell.rate),
        "speedup": _estimate(cell.speedup) if name != PLAIN else None,
        "ttft_ms": _estimate(cell.ttft, 1000),
        "n_predict": total.n_predict,
        "n_drafted": total.n_drafted,
        "n_accept": total.n_accept,
        "n_branch": total.n_branch,
        "n_branch_accept": total.n_branch_accept,
        "n_discarded": total.n_discarded,
        "drafted_by": dict(total.drafted_by),
        "acceptance": total.acceptance_rate,
        "accept_by_position": total.accept_by_position,
        "accept_by_source": total.accept_by_source,
        "rounds": total.rounds,
        "decode_seconds": total.decode_seconds,
        "time": total.time_shares,
    }


def _estimate(e: Estimate | None, factor: float = 1) -> JsonObject | None:
    if e is None:
        return None
    low, high = (None if x is None else x * factor for x in (e.low, e.high))
    return {"value": e.value * factor, "low": low, "high": high, "n": e.n}


def _sample(s: BenchSample) -> JsonObject:
    case, stats = s.step.case, s.stats
    return {
        "workload": case.workload,
        "prompt": case.number,
        "temperature": case.temperature,
        "run": s.step.run,
        "configuration": s.config,
        "n_prompt": stats.n_prompt,
        "n_reused": stats.n_reused,
        "n_predict": stats.n_predict,
        "n_drafted": stats.n_drafted,
        "n_accept": stats.n_accept,
        "ttft_ms": 1000 * stats.ttft_seconds,
        "decode_seconds": stats.decode_seconds,
        "decode_tps": stats.decode_tps,
    }
