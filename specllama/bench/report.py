"""The page of `bench --report`: its sections. page.py draws and styles them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from specllama.bench.page import bars, entry, lines, page, table, whiskers
from specllama.bench.record import draft_name
from specllama.bench.runner import AUTO, COPY, LLAMA_CPP, PLAIN
from specllama.bench.summary import BenchSummary, SummaryRow, extent, label, notes, times
from specllama.wording import counted

_MAX_LINES = 8  # of a chart


def report(s: BenchSummary, about: Mapping[str, Any], verdict: str) -> str:
    """The page as HTML. about: as in `record`; its texts may hold anything and are escaped."""
    target, draft = about["target"], draft_name(about)
    names = f"{target['name']} {target['quant']}" + (f" with {draft}" if draft else "")
    sections = [
        f"<h1>{escape(names)}</h1>",
        f'<p class="dim">{escape(_settings(s, about))}</p>',
        f'<p class="verdict">{escape(verdict)}</p>',
        *(f'<p class="dim">{escape(text)}</p>' for text in notes(s, about)),
        *_total(s),
        *_workloads(s),
        *_acceptance(s),
        *_times(s),
        *_curve(s),
    ]
    return page(names, sections)


def _name(config: str) -> str:
    return config if config in (AUTO, COPY, LLAMA_CPP) else f"k = {config}"


def _settings(s: BenchSummary, about: Mapping[str, Any]) -> str:
    settings, machine = about["settings"], about["machine"]
    return (
        f"specllama {about['version']}, {about['date']}; {machine['system']} {machine['machine']}, "
        f"{counted(machine['cores'], 'core')}, {counted(machine['n_threads'], 'thread')}; "
        f"{', '.join(about['drafters']) or 'no drafter'}; {s.answers} of "
        f"{counted(about['planned'], 'answer')}, {extent(settings)}, "
        f"{counted(settings['runs'], 'run')}, interleaved. "
        "Figures are medians, with 95 % intervals in brackets."
    )


def _total(s: BenchSummary) -> Iterator[str]:
    yield "<h2>Speed over plain decoding, all workloads</h2>"
    speedups = {name: e for name, cell in s.total.cells.items() if (e := cell.speedup) is not None}
    if speedups:
        labels = [_name(name) for name in speedups]
        yield whiskers(labels, list(speedups.values()), "speed over plain decoding by draft length")
    rows = []
    for name, cell in s.total.cells.items():
        accept = cell.total.acceptance_rate
        rows.append(
            [
                entry(name),
                entry(times(cell.rate).replace(" x", "") if cell.rate else "-"),
                entry(times(cell.speedup) if cell.speedup else "-"),
                entry(f"{1000 * cell.ttft.value:.1f} ms" if cell.ttft else "-"),
                entry("-" if accept is None else f"{100 * accept:.0f} %"),
                entry(str(cell.answers)),
            ]
        )
    yield table(["length", "tokens/s", "over plain", "first token", "accepted", "answers"], rows)


def _workloads(s: BenchSummary) -> Iterator[str]:
    lengths = [name for name in s.configs if name != PLAIN]
    if not lengths:
        return
    yield "<h2>By workload</h2>"
    rows = []
    for row in [*s.rows, s.total]:
        regret = "-" if row.regret is None else f"{100 * row.regret:.0f} %"
        cells = [_speed(row, name) for name in lengths]
        rows.append([entry(label(row)), *cells, entry(row.best or "-"), entry(regret)])
    yield table(["", *lengths, "best fixed", "regret of auto"], rows)
    yield (
        '<p class="dim">Regret: the share of the speed of the best fixed length in hindsight that auto '
        "misses. Point at a figure to see its interval.</p>"
    )


def _speed(row: SummaryRow, name: str) -> str:
    e = row.cells[name].speedup if name in row.cells else None
    if e is None:
        return entry("-")
    strength = min(60.0, 60 * abs(e.value - 1))
    colour = f"color-mix(in srgb,var({'--good' if e.value >= 1 else '--bad'}) {strength:.0f}%,transparent)"
    best = ' class="best"' if name == row.best else ""
    return f'<td{best} style="background:{colour}" title="{escape(times(e))}">{e.value:.2f}</td>'


def _acceptance(s: BenchSummary) -> Iterator[str]:
    by_config = {
        n: c.total.accept_by_position for n, c in s.total.cells.items() if c.total.accept_by_position
    }
    if not by_config:
        return
    names = list(by_config)[-_MAX_LINES:]  # auto and the longest
    series = {_name(name): [(float(j), p) for j, p in enumerate(by_config[name], 1)] for name in names}
    yield "<h2>Accepted by position in the draft</h2>"
    yield lines(series, "share of accepted draft tokens by position", "position", percent=True)


def _times(s: BenchSummary) -> Iterator[str]:
    rows = {}
    for name, cell in s.total.cells.items():
        shares = cell.total.time_shares
        whole = sum(shares.values())
        if whole > 0:
            rows[name] = {part: seconds / whole for part, seconds in shares.items()}
    if rows:
        yield "<h2>Where the time goes</h2>"
        yield bars(rows, "shares of the decoding time by draft length")


def _curve(s: BenchSummary) -> Iterator[str]:
    points = s.costs.points
    if len(points) < 2:
        return
    yield "<h2>Time of a decode by its rows</h2>"
    series = {"ms": [(p.rows, 1000 * p.seconds) for p in points]}
    yield lines(series, "milliseconds of a decode by its rows", "rows", "ms")
    rows, changes = [], any(p.changing is not None for p in points)
    for p in points:
        x = s.costs.relative(p)
        each = "-" if x is None else f"{x:.2f}"
        cells = [f"{p.rows:.3g}", f"{1000 * p.seconds:.3g}", each, str(p.rounds)]
        if changes:
            cells.append("-" if p.changing is None else f"{1000 * p.changing:.3g}")
        rows.append([entry(cell) for cell in cells])
    titles = ["rows", "ms", "over one row", "rounds"]
    yield table([*titles, "ms after a change of the rows"][: 4 + changes], rows)
    if not s.costs.exact:
        yield '<p class="dim">Each point is a draft length: its mean rows and mean time.</p>'
