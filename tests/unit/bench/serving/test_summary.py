"""The figures of a sweep, its verdict and its page."""

from __future__ import annotations

from typing import Any

import pytest

from specllama.bench.serving.client import ServedAnswer, ServedPiece
from specllama.bench.serving.report import report
from specllama.bench.serving.summary import percentile, summarise, tps
from specllama.bench.serving.sweep import (
    PLAIN,
    SERVED,
    SPECULATIVE,
    ServingCell,
    ServingMeasurement,
)
from specllama.bench.serving.verdict import notes, verdict
from specllama.errors import NetworkError


def test_percentiles_are_weighted() -> None:
    assert percentile([], 0.5) is None
    assert percentile([(5.0, 1.0)], 0.99) == 5
    hundred = [(float(i), 1.0) for i in range(100, 0, -1)]
    assert (percentile(hundred, 0.5), percentile(hundred, 0.99)) == (50, 99)
    assert percentile([(1.0, 9.0), (7.0, 1.0)], 0.9) == 1
    assert percentile([(1.0, 9.0), (7.0, 1.0)], 0.95) == 7


def cell(
    series: str, concurrency: int, run: int, seconds: float, *answers: ServedAnswer
) -> ServingMeasurement:
    return ServingMeasurement(ServingCell(series, concurrency, run), list(answers), seconds, True)


def answer(number: int = 0, digest: str = "d", n: int = 10, **more: Any) -> ServedAnswer:
    pieces = [ServedPiece(0.1 + 0.01 * i) for i in range(n)]
    return ServedAnswer(number, pieces, 0.5, n_predict=n, digest=digest, **more)


def test_a_sweep_is_summarised_by_series_and_concurrency() -> None:
    broken = ServedAnswer(1, problem=NetworkError("gone"), refused=2)
    measured = [
        cell(SPECULATIVE, 1, 1, 1.0, answer(n_drafted=8, n_accept=6)),
        cell(PLAIN, 1, 1, 5.0, answer(n_drafted=0, n_accept=0)),
        cell(SPECULATIVE, 1, 2, 0.5, answer(digest="other")),
        cell(PLAIN, 1, 2, 1.25, answer()),
        cell(PLAIN, 4, 1, 1.0, answer(), broken),
    ]
    unfinished = cell(SPECULATIVE, 4, 1, 1.0, answer())
    unfinished.complete = False
    s = summarise([*measured, unfinished, ServingMeasurement(ServingCell(PLAIN, 8, 1))], [SPECULATIVE, PLAIN])
    assert s.ratios == {1: 3.0}  # 15 over 5, as in the rows; the median of 5 and 2.5 is another figure
    assert (s.compared, s.different, s.counted) == (3, 1, True)
    rows = {(row.series, row.concurrency): row for row in s.rows}
    assert list(rows) == [(SPECULATIVE, 1), (SPECULATIVE, 4), (PLAIN, 1), (PLAIN, 4)]
    first = rows[SPECULATIVE, 1]
    assert (first.runs, first.tps, first.acceptance, first.answers) == (2, 15.0, 0.75, 2)
    assert first.ttft is not None
    assert first.gap is not None
    assert first.total is not None
    assert (first.ttft.p50, first.gap.p50, first.total.p99) == (0.1, pytest.approx(0.01), 0.5)
    assert rows[PLAIN, 1].acceptance is None
    assert rows[SPECULATIVE, 4].tps is None
    assert (rows[PLAIN, 4].failed, rows[PLAIN, 4].refused) == (1, 2)
    assert tps(unfinished) is None
    text = verdict(s, "")
    assert "over without it, by concurrency: 3.00 x at 1. Most tokens per second: 15.0 at" in text
    shown = notes(s, ABOUT)
    assert [note.partition(" ")[0] for note in shown] == ["Interrupted:", "Ended", "1", "2", "The", "Texts:"]
    page = report(s, ABOUT, "<so>")
    assert page.count('data-chart="') == 3
    assert "&lt;so&gt;" in page


ABOUT: dict[str, Any] = {
    "version": "1", "date": "today", "answers": 6, "planned": 9, "interrupted": True, "failure": "gone",
    "problems": ["gone"],
    "server": {"url": "http://h/v1", "model": "<m>", "owner": "", "build": "b", "n_slots": 2},
    "settings": {"requests": 2, "n_tokens": 16, "temperature": 0.0, "runs": 2, "ignore_eos": False},
}  # fmt: skip


def test_a_sweep_without_answers_has_no_figures() -> None:
    s = summarise([ServingMeasurement(ServingCell(SERVED, 1, 1))], [SERVED])
    assert (list(s.rows), s.ratios) == ([], {})
    assert verdict(s, "why").startswith("Too little")
    assert report(s, ABOUT, "").count('data-chart="') == 0
