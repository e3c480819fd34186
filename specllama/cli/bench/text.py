"""The tables of `bench`: figures in, lines out."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specllama.bench.intervals import Estimate
from specllama.bench.page import TITLE
from specllama.bench.record import draft_name
from specllama.bench.runner import AUTO, COPY, LLAMA_CPP, PLAIN
from specllama.bench.summary import BenchSummary, SummaryRow, extent, notes
from specllama.cli.formatting import rough_duration, table, wrapped
from specllama.cli.options import mapped_errors, refuse_stdout
from specllama.config.defaults import is_draft_model
from specllama.config.text_file import expanded
from specllama.errors import ResourceError, UsageError
from specllama.regular_file import read_regular
from specllama.text.terminal import printable
from specllama.wording import counted

_POSITIONS, _MAX_NAME = 16, 16
_LEGEND = (
    "auto, speed: times plain decoding; best: the fixed length that turned out to be the fastest; regret: "
    "the share of its speed that auto misses; 95 %: the interval in which the value before it lies."
)
_WIDTHS_SHOWN = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)


def lines(
    s: BenchSummary, about: Mapping[str, Any], verdict: str, answers: Sequence[str], width: int | None
) -> Iterator[str]:
    """All tables, no line longer than `width` where possible, the verdict and the answers after it."""
    yield from wrapped(_head(about), width)
    yield from wrapped(
        f"{s.answers} of {counted(about['planned'], 'answer')}, {extent(about['settings'])}, measured in "
        f"{rough_duration(about['seconds'])}. Medians, with 95 % intervals.",
        width,
    )
    yield from _speeds(s, width)
    if AUTO in s.configs:
        yield from _hindsight(s, width)
    yield from _by_config(s, width)
    yield from _positions(s, width)
    yield from _curve(s, width)
    yield ""
    for text in [*notes(s, about), verdict, *answers]:
        yield from wrapped(text, width)


def _head(about: Mapping[str, Any]) -> str:
    target, draft = about["target"], draft_name(about)
    parts = [f"target {printable(target['name'])} {target['quant']}"]
    if draft:
        parts.append(printable(draft))
    others = [name for name in about["drafters"] if not is_draft_model(name)]
    return ", ".join([*parts, *others, counted(about["machine"]["n_threads"], "thread")])


def _speeds(s: BenchSummary, width: int | None) -> Iterator[str]:
    lengths = [name for name in s.configs if name != PLAIN]
    header = ["workload", "temp", "plain t/s", *lengths]
    rows = []
    for row in [*s.rows, s.total]:
        base = row.cells.get(PLAIN)
        rate = f"{base.rate.value:.1f}" if base and base.rate else "-"
        cells = []
        for name in lengths:
            e = row.cells[name].speedup if name in row.cells else None
            cells.append("-" if e is None else f"{e.value:.2f}" + ("*" if name == row.best else " "))
        rows.append([*_labels(row), rate, *cells])
    yield ""
    if lengths:
        yield from wrapped("Speed over plain decoding, by draft length (* the best fixed one):", width)
    yield from table(header, rows, width, 2)


def _hindsight(s: BenchSummary, width: int | None) -> Iterator[str]:
    header = ["workload", "temp", "auto", "95 %", "best", "speed", "auto/best", "95 %", "regret"]
    rows = []
    for row in [*s.rows, s.total]:
        auto = row.cells[AUTO].speedup if AUTO in row.cells else None
        best = row.cells[row.best].speedup if row.best else None
        regret = "-" if row.regret is None else f"{100 * row.regret:.0f} %"
        its = "1.00" if row.best == PLAIN else _value(best)
        against = row.auto_against_best
        values = [_value(auto), _range(auto), row.best or "-", its, _value(against), _range(against), regret]
        rows.append([*_labels(row), *values])
    yield ""
    yield from wrapped("Auto against plain decoding, and against the best fixed length in hindsight:", width)
    yield from table(header, rows, width, 2)
    yield from wrapped(_LEGEND, width)


def _by_config(s: BenchSummary, width: int | None) -> Iterator[str]:
    header = ["length", "t/s", "x plain", "95 %", "1st token", "accept", "verify", "draft", "samp.", "other"]
    rows, plain = [], s.total.cells.get(PLAIN)
    for name in s.configs:
        cell = s.total.cells[name]
        rate = cell.rate.value if cell.rate else None
        if cell.speedup and plain and plain.rate:
            rate = plain.rate.value * cell.speedup.value  # of the same answers, so that the line adds up
        shares = cell.total.time_shares.values()
        whole = sum(shares) or 1.0
        accept = cell.total.acceptance_rate
        rows.append(
            [
                name,
                "-" if rate is None else f"{rate:.1f}",
                _value(cell.speedup),
                _range(cell.speedup),
                f"{1000 * cell.ttft.value:.1f} ms" if cell.ttft else "-",
                "-" if accept is None else f"{100 * accept:.0f} %",
                *(f"{100 * share / whole:.0f} %" for share in shares),
            ]
        )
    yield ""
    yield from wrapped("All workloads together, by draft length (t/s: plain's, times the speed-up):", width)
    yield from table(header, rows, width, 1)


def _positions(s: BenchSummary, width: int | None) -> Iterator[str]:
    """Acceptance by position: of auto, the best length and the longest one."""
    lengths = [name for name in s.configs if name not in (PLAIN, AUTO, COPY, LLAMA_CPP)]
    shown = {*lengths[-1:], AUTO, s.total.best}
    by_config = {n: s.total.cells[n].total.accept_by_position[:_POSITIONS] for n in s.configs if n in shown}
    by_config = {name: shares for name, shares in by_config.items() if shares}
    if not by_config:
        return
    most = max(map(len, by_config.values()))
    shown_rows: dict[str, list[float | None]] = {name: [*shares] for name, shares in by_config.items()}
    if AUTO in by_config and len(by := s.total.cells[AUTO].total.accept_by_source) > 1:
        shown_rows |= {f"  {source}": shares[:most] for source, shares in by.items()}
    rows = [
        [name, *("-" if p is None else f"{100 * p:.0f}" for p in shares), *["-"] * (most - len(shares))]
        for name, shares in shown_rows.items()
    ]
    yield ""
    yield "Accepted by position, %:"
    yield from table(["length", *map(str, range(1, most + 1))], rows, width, 1)


def _curve(s: BenchSummary, width: int | None) -> Iterator[str]:
    costs = s.costs
    points = [p for p in costs.points if not costs.exact or p.rows in _WIDTHS_SHOWN]
    if len(points) < 2:
        return
    head = "t(n), a decode of n rows:" if costs.exact else "A decode by its mean rows, one column a length:"
    rows = [
        ["ms", *(f"{1000 * p.seconds:.3g}" for p in points)],
        ["x t(1)", *("-" if (x := costs.relative(p)) is None else f"{x:.2f}" for p in points)],
    ]
    if any(p.changing is not None for p in points):
        changing = ("-" if p.changing is None else f"{1000 * p.changing:.3g}" for p in points)
        rows.insert(1, ["after a change, ms", *changing])
    yield ""
    yield from wrapped(head, width)
    yield from table(["rows", *(f"{p.rows:.3g}" for p in points)], rows, width, 1)
    if costs.draft_token is not None:
        each = f" = {costs.draft_token / costs.t1:.2f} x t(1)" if costs.t1 else ""
        cost = f"{1000 * costs.draft_token:.3g} ms{each}"
        yield from wrapped(f"A token of the draft, reading the prompt included: {cost}", width)


def _labels(row: SummaryRow) -> list[str]:
    name = row.workload or "all"
    short = name if len(name) <= _MAX_NAME else name[: _MAX_NAME - 3] + "..."
    return [short, "all" if row.temperature is None else f"{row.temperature:g}"]


def _value(e: Estimate | None) -> str:
    return "-" if e is None else f"{e.value:.2f}"


def _range(e: Estimate | None) -> str:
    return "-" if e is None or e.low is None or e.high is None else f"{e.low:.2f}-{e.high:.2f}"


# The file of `bench --report`: checked before anything is measured, replaced atomically.


def checked_path(name: str) -> Path:
    """The path of a report, after a test that it can be written. Only an earlier report is ever replaced.

    Raises UsageError.
    """
    if not name.strip() or "\0" in name:
        raise UsageError("--report needs the path of a file to write")
    refuse_stdout(name, "--report")
    path = expanded(name)
    with mapped_errors(UsageError, f"--report: {name} cannot be written", "name a file that can be"):
        if path.is_dir():
            raise UsageError(f"--report: {name} is a directory", f"for example {path / 'bench.html'}")
        if os.path.lexists(path):
            if not path.is_file():
                raise UsageError(f"--report: {name} is no regular file")
            start = read_regular(path, 1024)
            if start and TITLE.encode() not in start:
                raise UsageError(f"--report: {name} is there and no report of bench, it is not overwritten")
            if not os.access(path, os.W_OK):
                raise UsageError(f"--report: {name} cannot be written: Permission denied")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    return path


def write_report(path: Path, html: str) -> None:
    """Write a report to a temporary file that then replaces `path`. Raises ResourceError."""
    with mapped_errors(ResourceError, f"--report: {path} cannot be written"):
        number, name = tempfile.mkstemp(dir=path.parent, prefix=".bench-", suffix=".html")
        try:
            with open(number, "w", encoding="utf-8", newline="\n") as file:
                file.write(html)
            umask = os.umask(0)
            os.umask(umask)
            with contextlib.suppress(OSError):
                os.chmod(name, 0o666 & ~umask)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
