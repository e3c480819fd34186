"""The page of `bench --report`: one HTML file, nothing loaded from elsewhere, no scripts, light and dark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from specllama.bench import charts
from specllama.bench.notes import extent, notes
from specllama.bench.samples import AUTO, PLAIN
from specllama.bench.summary import Row, Summary
from specllama.bench.verdict import label, times

TITLE = "<title>specllama bench: "  # among the first 1024 bytes: by it a report is known
_MOST_LINES = 8  # of a chart
_STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1c2024;--dim:#60646c;--rule:#d9d9e0;--good:#30a46c;
--bad:#e5484d;--c0:#0068d6;--c1:#d6740b;--c2:#2b8a3e;--c3:#c2298a;--c4:#7048c8;--c5:#0b8a8a;--c6:#a8540f;--c7:#60646c}
@media(prefers-color-scheme:dark){:root{--bg:#111113;--fg:#edeef0;--dim:#b0b4ba;--rule:#363a3f;--c0:#70b8ff;
--c1:#ffa057;--c2:#71d083;--c3:#ff8dcc;--c4:#baa7ff;--c5:#53d6d6;--c6:#e0a070;--c7:#b0b4ba}}
body{background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;
padding:0 1rem}h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2.5rem}
.dim,.legend{color:var(--dim);font-size:.9rem}.verdict{font-size:1.1rem;border-left:4px solid var(--c0);
padding-left:1rem}.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;
font-size:.9rem}th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid var(--rule);
white-space:nowrap}th:first-child,td:first-child{text-align:left}td.best{font-weight:700}
svg{width:100%;max-width:44rem;height:auto;font:12px system-ui,sans-serif}svg text{fill:var(--dim)}
.grid{stroke:var(--rule)}.mark{stroke:var(--fg);stroke-dasharray:4 3}.line{fill:none;stroke-width:2}
.thick{stroke-width:3}.legend span{margin-right:1.2rem;white-space:nowrap}.key{display:inline-block;
width:.8rem;height:.8rem;margin-right:.4rem;background:var(--c)}.s0{--c:var(--c0)}.s1{--c:var(--c1)}.s2{--c:var(--c2)}
.s3{--c:var(--c3)}.s4{--c:var(--c4)}.s5{--c:var(--c5)}.s6{--c:var(--c6)}.s7{--c:var(--c7)}
.line,.thick{stroke:var(--c)}.dot,.fill{fill:var(--c)}
"""


def report(s: Summary, about: Mapping[str, Any], verdict: str) -> str:
    """The page. about: as in `record`; every text of it may hold anything."""
    target, draft = about["target"], about["draft"]
    names = f"{target['name']} {target['quant']}" + (
        f" with {draft['name']} {draft['quant']}" if draft else ""
    )
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
    return (
        (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width,initial-scale=1">'
            '<meta http-equiv="Content-Security-Policy" '
            "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
            f"{TITLE}{escape(names)}</title><style>{_STYLE}</style></head><body>\n"
            + "\n".join(sections)
            + "\n</body></html>\n"
        )
        .encode("utf-8", "replace")
        .decode()
    )


def _settings(s: Summary, about: Mapping[str, Any]) -> str:
    wanted, machine = about["settings"], about["machine"]
    return (
        f"specllama {about['version']}, {about['date']}; {machine['system']} {machine['machine']}, "
        f"{machine['cores']} cores, {machine['n_threads']} threads; "
        f"{', '.join(about['drafters']) or 'no drafter'}; {s.answers} of {about['planned']} answers, "
        f"{extent(wanted)}, {wanted['runs']} runs, interleaved. "
        "Figures are medians, in brackets 95 % intervals."
    )


def _total(s: Summary) -> Iterator[str]:
    yield "<h2>Speed over plain decoding, all workloads</h2>"
    found = {name: e for name, cell in s.total.cells.items() if (e := cell.speedup) is not None}
    if found:
        labels = [name if name == AUTO else f"k = {name}" for name in found]
        yield charts.whiskers(labels, list(found.values()), "speed over plain decoding by draft length")
    rows = []
    for name, cell in s.total.cells.items():
        accept = cell.total.acceptance_rate
        rows.append(
            [
                _cell(name),
                _cell(times(cell.rate).replace(" x", "") if cell.rate else "-"),
                _cell(times(cell.speedup) if cell.speedup else "-"),
                _cell(f"{1000 * cell.ttft.value:.1f} ms" if cell.ttft else "-"),
                _cell("-" if accept is None else f"{100 * accept:.0f} %"),
                _cell(str(cell.answers)),
            ]
        )
    yield _table(["length", "tokens/s", "over plain", "first token", "accepted", "answers"], rows)


def _workloads(s: Summary) -> Iterator[str]:
    lengths = [name for name in s.configs if name != PLAIN]
    if not lengths:
        return
    yield "<h2>By workload</h2>"
    rows = []
    for row in [*s.rows, s.total]:
        regret = "-" if row.regret is None else f"{100 * row.regret:.0f} %"
        cells = [_speed(row, name) for name in lengths]
        rows.append([_cell(label(row)), *cells, _cell(row.best or "-"), _cell(regret)])
    yield _table(["", *lengths, "best fixed", "regret of auto"], rows)
    yield (
        '<p class="dim">Regret: the share of the best fixed length\'s speed, known in hindsight, '
        "that auto left. Point at a figure to see its interval.</p>"
    )


def _speed(row: Row, name: str) -> str:
    e = row.cells[name].speedup if name in row.cells else None
    if e is None:
        return _cell("-")
    strength = min(60.0, 60 * abs(e.value - 1))
    colour = f"color-mix(in srgb,var({'--good' if e.value >= 1 else '--bad'}) {strength:.0f}%,transparent)"
    best = ' class="best"' if name == row.best else ""
    return f'<td{best} style="background:{colour}" title="{escape(times(e))}">{e.value:.2f}</td>'


def _acceptance(s: Summary) -> Iterator[str]:
    found = {n: c.total.accept_by_position for n, c in s.total.cells.items() if c.total.accept_by_position}
    if not found:
        return
    names = list(found)[-_MOST_LINES:]  # auto and the longest
    series = {
        name if name == AUTO else f"k = {name}": [(float(j), p) for j, p in enumerate(found[name], 1)]
        for name in names
    }
    yield "<h2>Accepted by position in the draft</h2>"
    yield charts.lines(series, "share of accepted draft tokens by position", "position", percent=True)


def _times(s: Summary) -> Iterator[str]:
    rows = {}
    for name, cell in s.total.cells.items():
        shares = cell.total.time_shares
        whole = sum(shares.values())
        if whole > 0:
            rows[name] = {part: seconds / whole for part, seconds in shares.items()}
    if rows:
        yield "<h2>Where the time goes</h2>"
        yield charts.bars(rows, "shares of the decoding time by draft length")


def _curve(s: Summary) -> Iterator[str]:
    points = s.costs.points
    if len(points) < 2:
        return
    yield "<h2>What a decode of n rows takes</h2>"
    series = {"ms": [(p.rows, 1000 * p.seconds) for p in points]}
    yield charts.lines(series, "milliseconds of a decode by its rows", "rows")
    rows = []
    for p in points:
        x = s.costs.relative(p)
        each = "-" if x is None else f"{x:.2f}"
        rows.append(
            [_cell(f"{p.rows:.3g}"), _cell(f"{1000 * p.seconds:.3g}"), _cell(each), _cell(str(p.rounds))]
        )
    yield _table(["rows", "ms", "over one row", "rounds"], rows)
    if not s.costs.exact:
        yield '<p class="dim">Each point is a draft length: its mean rows and mean time.</p>'


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(text: str) -> str:
    return f"<td>{escape(text)}</td>"
