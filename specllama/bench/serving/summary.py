"""From the answers of a sweep to figures of its cells and medians over runs. Pure. Times in seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from specllama.bench.serving.sweep import PLAIN, SPECULATIVE, ServingMeasurement


@dataclass(frozen=True, slots=True)
class Percentiles:
    """The median and the 99th percentile."""

    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class ServingRow:
    """A series at a concurrency. None for figures that were not measured.

    runs: number of cells; tps: tokens per second of all clients together; ttft: to the first text; gap:
    between tokens; total: to the end of an answer. answers: completed ones; failed: incomplete ones; refused:
    429s, also of requests that were answered later.
    """

    series: str
    concurrency: int
    runs: int
    tps: float | None
    ttft: Percentiles | None
    gap: Percentiles | None
    total: Percentiles | None
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
        """The share of prompt tokens that the server had cached."""
        return self.n_cached / self.n_prompt if self.n_cached is not None and self.n_prompt else None


@dataclass(frozen=True, slots=True)
class ServingSummary:
    """rows: by series, then concurrency. ratios: concurrency → tokens per second of the speculative series
    over the plain one's, those of the rows. compared: requests that both series answered; different: how
    many of those got different texts. counted: whether the server counted all tokens itself.
    """

    rows: Sequence[ServingRow]
    ratios: dict[int, float]
    compared: int
    different: int
    counted: bool


def percentile(values: Iterable[tuple[float, float]], share: float) -> float | None:
    """The smallest value that covers this share of the weight. values: (value, weight); None without any."""
    ordered = sorted(values)
    rest = share * sum(weight for _, weight in ordered)
    for value, weight in ordered:
        rest -= weight
        if rest <= 1e-9:
            return value
    return ordered[-1][0] if ordered else None


def summarise(measured: Sequence[ServingMeasurement], series: Sequence[str]) -> ServingSummary:
    """All figures of a sweep, which may have been interrupted."""
    concurrencies = sorted({m.cell.concurrency for m in measured})
    rows = [_row(name, c, measured) for name in series for c in concurrencies]
    rates = {(row.series, row.concurrency): row.tps for row in rows}
    ratios = {}
    for c in concurrencies:
        rate, plain = rates.get((SPECULATIVE, c)), rates.get((PLAIN, c))
        if rate and plain:
            ratios[c] = rate / plain
    compared, different = _texts(measured)
    return ServingSummary(
        rows=[row for row in rows if row.answers or row.failed],
        ratios=ratios,
        compared=compared,
        different=different,
        counted=all(a.n_predict is not None for m in measured for a in m.succeeded),
    )


def tps(m: ServingMeasurement) -> float | None:
    """Tokens per second of all clients together; None for an interrupted cell."""
    n = sum(answer.n_tokens for answer in m.succeeded)
    return n / m.seconds if m.complete and n and m.seconds > 0 else None


def ttft(m: ServingMeasurement) -> Percentiles | None:
    """Seconds to the first text of an answer."""
    return _percentiles((a.pieces[0].at, 1.0) for a in m.succeeded if a.pieces)


def gap(m: ServingMeasurement) -> Percentiles | None:
    """Seconds between tokens, see ServedAnswer.gaps."""
    return _percentiles(gap for a in m.succeeded for gap in a.gaps())


def total(m: ServingMeasurement) -> Percentiles | None:
    """Seconds to the end of an answer."""
    return _percentiles((a.seconds, 1.0) for a in m.succeeded)


def _row(series: str, concurrency: int, measured: Sequence[ServingMeasurement]) -> ServingRow:
    cells = [m for m in measured if m.cell.series == series and m.cell.concurrency == concurrency]
    cells = [m for m in cells if m.answers]
    answers = [answer for m in cells for answer in m.succeeded]
    rates = [rate for m in cells if (rate := tps(m)) is not None]

    def add(counts: Iterable[int | None]) -> int | None:
        known = [n for n in counts if n is not None]
        return sum(known) if known else None

    return ServingRow(
        series=series,
        concurrency=concurrency,
        runs=len(cells),
        tps=median(rates) if rates else None,
        ttft=_median(cells, ttft),
        gap=_median(cells, gap),
        total=_median(cells, total),
        answers=len(answers),
        failed=sum(len(m.answers) for m in cells) - len(answers),
        refused=sum(a.refused for m in cells for a in m.answers),
        n_predict=sum(a.n_tokens for a in answers),
        n_drafted=add(a.n_drafted for a in answers),
        n_accept=add(a.n_accept for a in answers),
        n_prompt=add(a.n_prompt for a in answers if a.n_cached is not None),
        n_cached=add(a.n_cached for a in answers),
    )


def _median(
    measured: Sequence[ServingMeasurement], figure: Callable[[ServingMeasurement], Percentiles | None]
) -> Percentiles | None:
    percentiles = [p for m in measured if (p := figure(m)) is not None]
    return (
        Percentiles(median(p.p50 for p in percentiles), median(p.p99 for p in percentiles))
        if percentiles
        else None
    )


def _percentiles(values: Iterable[tuple[float, float]]) -> Percentiles | None:
    known = list(values)
    p50, p99 = percentile(known, 0.5), percentile(known, 0.99)
    return None if p50 is None or p99 is None else Percentiles(p50, p99)


def _texts(measured: Sequence[ServingMeasurement]) -> tuple[int, int]:
    """Requests that both series answered, and how many of them got different texts."""
    texts: dict[tuple[int, int, int], set[str]] = {}
    counts: dict[tuple[int, int, int], int] = {}
    for m in measured:
        for answer in m.succeeded:
            key = (m.cell.concurrency, m.cell.run, answer.number)
            texts.setdefault(key, set()).add(answer.digest)
            counts[key] = counts.get(key, 0) + 1
    both = [key for key, n in counts.items() if n == 2]
    return len(both), sum(len(texts[key]) > 1 for key in both)
