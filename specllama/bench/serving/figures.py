"""What the answers of a sweep come to: of a cell, and of a series at a concurrency the medians of its runs.
Pure. Times in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from specllama.bench.serving.asks import PLAIN, SPECULATIVE, Cell
from specllama.bench.serving.sweep import ServingMeasurement


@dataclass(frozen=True, slots=True)
class Percentiles:
    """The middle, and what one in a hundred exceeds."""

    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class ServingRow:
    """A series at a concurrency. runs: how many cells; tps: tokens of all clients per second; ttft: to the
    first text; gap: between tokens; whole: to the end of the answer. answers: whole ones; failed: without
    one; refused: 429s, those that were asked again and answered too. None where there is nothing to tell.
    """

    series: str
    concurrency: int
    runs: int
    tps: float | None
    ttft: Percentiles | None
    gap: Percentiles | None
    whole: Percentiles | None
    answers: int
    failed: int
    refused: int
    n_predict: int
    n_drafted: int | None
    n_accept: int | None
    n_prompt: int | None
    n_cached: int | None

    @property
    def acceptance(self) -> float | None:
        return self.n_accept / self.n_drafted if self.n_accept is not None and self.n_drafted else None

    @property
    def cached(self) -> float | None:
        """The share of the prompts' tokens that the server had cached."""
        return self.n_cached / self.n_prompt if self.n_cached is not None and self.n_prompt else None


@dataclass(frozen=True, slots=True)
class ServingSummary:
    """rows: by series, then concurrency. ratios: concurrency → tokens per second of the speculative series
    over the plain one's, median of the runs. compared, different: answers of both series to one request, and
    how many of them are not the same text. counted: whether all tokens are the server's own count.
    """

    rows: Sequence[ServingRow]
    ratios: dict[int, float]
    compared: int
    different: int
    counted: bool


def percentile(values: Iterable[tuple[float, float]], share: float) -> float | None:
    """The smallest value that so much of the weight does not exceed; None without values. (value, weight)"""
    ordered = sorted(values)
    rest = share * sum(weight for _, weight in ordered)
    for value, weight in ordered:
        rest -= weight
        if rest <= 1e-9:
            return value
    return ordered[-1][0] if ordered else None


def summarise(measured: Sequence[ServingMeasurement], series: Sequence[str]) -> ServingSummary:
    """All figures of a sweep that may have been interrupted."""
    concurrencies = sorted({m.cell.concurrency for m in measured})
    found = [_row(name, c, measured) for name in series for c in concurrencies]
    rates = {m.cell: rate for m in measured if (rate := tps(m)) is not None}
    ratios: dict[int, list[float]] = {}
    for cell, rate in rates.items():
        base = rates.get(Cell(PLAIN, cell.concurrency, cell.run))
        if cell.series == SPECULATIVE and base:
            ratios.setdefault(cell.concurrency, []).append(rate / base)
    compared, different = _texts(measured)
    return ServingSummary(
        rows=[row for row in found if row.answers or row.failed],
        ratios={c: median(ratios[c]) for c in sorted(ratios)},
        compared=compared,
        different=different,
        counted=all(a.n_predict is not None for m in measured for a in m.whole),
    )


def tps(m: ServingMeasurement) -> float | None:
    """Tokens of all clients per second; None for a cell that was interrupted."""
    n = sum(answer.n_tokens for answer in m.whole)
    return n / m.seconds if m.complete and n and m.seconds > 0 else None


def ttft(m: ServingMeasurement) -> Percentiles | None:
    """To the first text of an answer."""
    return _tails((a.pieces[0].at, 1.0) for a in m.whole if a.pieces)


def gap(m: ServingMeasurement) -> Percentiles | None:
    """Between tokens, see Answer.gaps."""
    return _tails(gap for a in m.whole for gap in a.gaps())


def whole(m: ServingMeasurement) -> Percentiles | None:
    """To the end of an answer."""
    return _tails((a.seconds, 1.0) for a in m.whole)


def _row(series: str, concurrency: int, measured: Sequence[ServingMeasurement]) -> ServingRow:
    mine = [m for m in measured if m.cell.series == series and m.cell.concurrency == concurrency]
    mine = [m for m in mine if m.answers]
    answers = [answer for m in mine for answer in m.whole]
    rates = [rate for m in mine if (rate := tps(m)) is not None]

    def total(counts: Iterable[int | None]) -> int | None:
        known = [n for n in counts if n is not None]
        return sum(known) if known else None

    return ServingRow(
        series=series,
        concurrency=concurrency,
        runs=len(mine),
        tps=median(rates) if rates else None,
        ttft=_median(mine, ttft),
        gap=_median(mine, gap),
        whole=_median(mine, whole),
        answers=len(answers),
        failed=sum(len(m.answers) for m in mine) - len(answers),
        refused=sum(a.refused for m in mine for a in m.answers),
        n_predict=sum(a.n_tokens for a in answers),
        n_drafted=total(a.n_drafted for a in answers),
        n_accept=total(a.n_accept for a in answers),
        n_prompt=total(a.n_prompt for a in answers if a.n_cached is not None),
        n_cached=total(a.n_cached for a in answers),
    )


def _median(
    measured: Sequence[ServingMeasurement], figure: Callable[[ServingMeasurement], Percentiles | None]
) -> Percentiles | None:
    found = [tails for m in measured if (tails := figure(m)) is not None]
    return Percentiles(median(t.p50 for t in found), median(t.p99 for t in found)) if found else None


def _tails(values: Iterable[tuple[float, float]]) -> Percentiles | None:
    known = list(values)
    p50, p99 = percentile(known, 0.5), percentile(known, 0.99)
    return None if p50 is None or p99 is None else Percentiles(p50, p99)


def _place(cell: Cell) -> tuple[int, int]:
    return cell.concurrency, cell.run


def _texts(measured: Sequence[ServingMeasurement]) -> tuple[int, int]:
    """Answers of both series to one request, and how many of them differ."""
    texts: dict[tuple[int, int, int], set[str]] = {}
    counts: dict[tuple[int, int, int], int] = {}
    for m in measured:
        for answer in m.whole:
            key = (*_place(m.cell), answer.number)
            texts.setdefault(key, set()).add(answer.digest)
            counts[key] = counts.get(key, 0) + 1
    both = [key for key, n in counts.items() if n == 2]
    return len(both), sum(len(texts[key]) > 1 for key in both)
