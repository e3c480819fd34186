"""Medians of the runs, and of their ratios. Numbers in, lines out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from scripts.bench.server.programs import OURS, PEER_DRAFT, PEER_PLAIN
from specllama.bench.serving.sweep import PLAIN, SPECULATIVE

DEFAULT, OWN_PLAIN = OURS.name, f"{OURS.name} plain"
RATIOS = {
    "over llama-server with the draft": (DEFAULT, PEER_DRAFT.name),
    "over llama-server without": (DEFAULT, PEER_PLAIN.name),
    "over its own plain decoding": (DEFAULT, OWN_PLAIN),
    "plain over llama-server without": (OWN_PLAIN, PEER_PLAIN.name),
}
Rates = Mapping[tuple[str, int, int], float]  # (name, concurrency, run) → tokens per second of all clients


def label(way: str, series: str) -> str:
    """The name of a series of a server."""
    if way != OURS.name:
        return way
    return {PLAIN: OWN_PLAIN, SPECULATIVE: DEFAULT}.get(series, DEFAULT)


def ratios(rates: Rates) -> list[dict[str, Any]]:
    """Each ratio at each concurrency: median, lowest and highest of the runs."""
    found = []
    for concurrency in sorted({c for _, c, _ in rates}):
        for name, (mine, theirs) in RATIOS.items():
            each = [
                rate / rates[theirs, c, run]
                for (way, c, run), rate in rates.items()
                if way == mine and c == concurrency and (theirs, c, run) in rates
            ]
            if each:
                ends = {"low": min(each), "high": max(each), "runs": len(each)}
                found.append({"concurrency": concurrency, "ratio": name, "median": median(each), **ends})
    return found


def medians(rates: Rates) -> list[dict[str, Any]]:
    """Median tokens per second of each way at each concurrency."""
    keys = sorted({(c, name) for name, c, _ in rates})
    return [
        {
            "concurrency": c,
            "way": name,
            "tps": median(r for (n, k, _), r in rates.items() if (n, k) == (name, c)),
        }
        for c, name in keys
    ]


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The figures as lines of text. found: as in the file of the script."""
    for one in found["medians"]:
        yield f"concurrency {one['concurrency']:<3} {one['way']:20} {one['tps']:8.2f} t/s"
    for one in found["ratios"]:
        spread = f"({one['low']:.3f} - {one['high']:.3f}, {one['runs']} runs)"
        yield f"concurrency {one['concurrency']:<3} specllama {one['ratio']:34} {one['median']:.3f} {spread}"
    for name, one in found["health"].items():
        yield f"/health of {name}: p99 {one['p99_ms']:.1f} ms, worst run {one['worst_ms']:.1f} ms"
    if (o := found["overhead"]) is not None and o["added_ms"] is not None:
        yield (
            f"between tokens at p50: {o['http_ms']:.3f} ms through HTTP, {o['engine_ms']:.3f} ms of the "
            f"engine; per request HTTP adds {o['added_ms']:.3f} ms"
        )
        if o["added_mean_ms"] is not None:
            yield f"in the mean, against the engine's times of the same answers: {o['added_mean_ms']:.3f} ms"


def healths(found: Mapping[str, Sequence[float | None]]) -> dict[str, dict[str, float]]:
    """The median and the worst of the runs' p99 latencies, ms."""
    known = {name: [p for p in each if p is not None] for name, each in found.items()}
    return {name: {"p99_ms": median(each), "worst_ms": max(each)} for name, each in known.items() if each}
