"""The tables of `bench`, and the file of --report."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from specllama.bench import sweep
from specllama.bench.report import TITLE
from specllama.bench.runner import AUTO, COPY, LLAMA_CPP, PLAIN
from specllama.bench.summary import Estimate, speedup, t1_of
from specllama.bench.words import draft_name, extent, notes, percent, shown
from specllama.cli import console
from specllama.cli.formatting import rough_duration, table, wrapped
from specllama.cli.options import mapped_errors, refuse_stdout
from specllama.config.defaults import is_draft_model
from specllama.config.store import write_whole
from specllama.config.text_file import expanded
from specllama.errors import ResourceError, UsageError
from specllama.json_types import JsonObject
from specllama.regular_file import read_regular
from specllama.text.terminal import printable
from specllama.wording import counted

_POSITIONS, _MAX_NAME = 16, 16
_LEGEND = (
    "auto, speed: times plain decoding; best: the fixed length that turned out to be the fastest; regret: "
    "the share of its speed that auto misses; 95 %: the interval in which the value before it lies."
)
_WIDTHS_SHOWN = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)


def lines(s: JsonObject, answers: Sequence[str], width: int | None) -> Iterator[str]:
    """All tables, lines within `width` where possible, verdict and answers. s: the object of --json."""
    yield from wrapped(_head(s), width)
    yield from wrapped(
        f"{s['answers']} of {counted(s['planned'], 'answer')}, {extent(s['settings'])}, measured in "
        f"{rough_duration(s['seconds'])}. Medians, with 95 % intervals.",
        width,
    )
    yield from _speeds(s, width)
    if AUTO in s["configurations"]:
        yield from _hindsight(s, width)
    yield from _by_config(s, width)
    yield from _positions(s, width)
    yield from _curve(s, width)
    yield ""
    for text in [*notes(s), s["verdict"], *answers]:
        yield from wrapped(text, width)


def _head(s: JsonObject) -> str:
    target, draft = s["target"], draft_name(s)
    parts = [f"target {printable(target['name'])} {target['quant']}"]
    if draft:
        parts.append(printable(draft))
    others = [name for name in s["drafters"] if not is_draft_model(name)]
    return ", ".join([*parts, *others, counted(s["machine"]["n_threads"], "thread")])


def _speeds(s: JsonObject, width: int | None) -> Iterator[str]:
    lengths = [name for name in s["configurations"] if name != PLAIN]
    rows = []
    for row in [*s["rows"], s["total"]]:
        cells = []
        for name in lengths:
            e = speedup(row, name)
            form = "{:.2f}*" if name == row["best_fixed"] else " {:.2f}"  # room for the star in every column
            cells.append("-" if e is None else form.format(e.value))
        plain = row["configurations"].get(PLAIN, {}).get("decode_tps")
        rows.append([*_labels(row), shown(plain, ".1f"), *cells])
    yield ""
    if lengths:
        yield from wrapped("Speed over plain decoding, by draft length (* the best fixed one):", width)
    yield from table(["workload", "temp", "plain t/s", *lengths], rows, width, 2)


def _hindsight(s: JsonObject, width: int | None) -> Iterator[str]:
    header = ["workload", "temp", "auto", "95 %", "best", "speed", "auto/best", "95 %", "regret"]
    rows = []
    for row in [*s["rows"], s["total"]]:
        auto, best, against = speedup(row, AUTO), row["best_fixed"], row["auto_against_best"]
        its = "1.00" if best == PLAIN else shown(speedup(row, best))
        values = [shown(auto), _range(auto), best or "-", its, shown(against), _range(against)]
        rows.append([*_labels(row), *values, percent(row["regret"])])
    yield ""
    yield from wrapped("Auto against plain decoding, and against the best fixed length in hindsight:", width)
    yield from table(header, rows, width, 2)
    yield from wrapped(_LEGEND, width)


def _by_config(s: JsonObject, width: int | None) -> Iterator[str]:
    header = ["length", "t/s", "x plain", "95 %", "1st token", "accept", "verify", "draft", "samp.", "other"]
    cells = s["total"]["configurations"]
    plain = cells[PLAIN]["decode_tps"] if PLAIN in cells else None
    rows = []
    for name, cell in cells.items():
        rate, e = cell["decode_tps"], cell["speedup"]
        if e and plain:
            rate = plain.value * e.value  # of the same answers, so that the line adds up
        first = shown(cell["ttft_ms"], ".1f") + (" ms" if cell["ttft_ms"] else "")
        whole = sum(cell["time"].values()) or 1.0
        shares = [percent(share / whole) for share in cell["time"].values()]
        rows.append(
            [name, shown(rate, ".1f"), shown(e), _range(e), first, percent(cell["acceptance"]), *shares]
        )
    yield ""
    yield from wrapped("All workloads together, by draft length (t/s: plain's, times the speed-up):", width)
    yield from table(header, rows, width, 1)


def _positions(s: JsonObject, width: int | None) -> Iterator[str]:
    """Acceptance by position: of auto, the best length and the longest one."""
    cells = s["total"]["configurations"]
    lengths = [name for name in cells if name not in (PLAIN, AUTO, COPY, LLAMA_CPP)]
    chosen = {*lengths[-1:], AUTO, s["total"]["best_fixed"]}
    by_name: dict[str, Sequence[float | None]] = {
        name: shares[:_POSITIONS]
        for name, cell in cells.items()
        if name in chosen and (shares := cell["accept_by_position"])
    }
    if not by_name:
        return
    most = max(map(len, by_name.values()))
    if AUTO in by_name and len(by := cells[AUTO]["accept_by_source"]) > 1:
        by_name |= {f"  {source}": shares[:most] for source, shares in by.items()}
    rows = [
        [name, *(shown(p, ".0f", 100) for p in shares), *["-"] * (most - len(shares))]
        for name, shares in by_name.items()
    ]
    yield ""
    yield "Accepted by position, %:"
    yield from table(["length", *map(str, range(1, most + 1))], rows, width, 1)


def _curve(s: JsonObject, width: int | None) -> Iterator[str]:
    exact = s["t_n_exact"]
    points = [p for p in s["t_n"] if not exact or p["rows"] in _WIDTHS_SHOWN]
    if len(points) < 2:
        return
    rows = [["ms", *(shown(p["seconds"], ".3g", 1000) for p in points)]]
    if any(p["changing_seconds"] is not None for p in points):
        rows.append(["after a change, ms", *(shown(p["changing_seconds"], ".3g", 1000) for p in points)])
    rows.append(["x t(1)", *(shown(p["relative"]) for p in points)])
    yield ""
    yield from wrapped(
        "t(n), a decode of n rows:" if exact else "A decode by its mean rows, one column a length:", width
    )
    yield from table(["rows", *(shown(p["rows"], ".3g") for p in points)], rows, width, 1)
    if (draft_token := s["draft_token_seconds"]) is not None:
        t1 = t1_of(s)
        each = f" = {draft_token / t1:.2f} x t(1)" if t1 else ""
        cost = f"{1000 * draft_token:.3g} ms{each}"
        yield from wrapped(f"A token of the draft, reading the prompt included: {cost}", width)


def _labels(row: JsonObject) -> list[str]:
    name, temperature = row["workload"] or "all", row["temperature"]
    short = name if len(name) <= _MAX_NAME else name[: _MAX_NAME - 3] + "..."
    return [short, "all" if temperature is None else f"{temperature:g}"]


def _range(e: Estimate | None) -> str:
    return "-" if e is None or e.low is None or e.high is None else f"{e.low:.2f}-{e.high:.2f}"


_COLUMNS = (  # title, unit, how a row shows it; the series only where there are several
    ("clients", "", lambda row: str(row["concurrency"])),
    ("series", "", lambda row: row["series"]),
    ("t/s", "", lambda row: shown(row["tps"], ".1f")),
    ("first", "ms", lambda row: shown((row["ttft_ms"] or {}).get("p50"), ".0f")),
    ("token", "ms", lambda row: shown((row["inter_token_ms"] or {}).get("p50"), ".1f")),
    ("p99", "ms", lambda row: shown((row["inter_token_ms"] or {}).get("p99"), ".1f")),
    ("answer", "s", lambda row: shown((row["seconds"] or {}).get("p50"), ".2f")),
    ("p99", "s", lambda row: shown((row["seconds"] or {}).get("p99"), ".2f")),
    ("accept", "", lambda row: percent(row["acceptance"])),
)
_SWEEP_LEGEND = (
    "Clients at once; tokens per second of all of them; to the first token, between tokens, to the end of an "
    "answer: p50 and p99."
)


def sweep_lines(s: JsonObject, width: int | None) -> Iterator[str]:
    """The whole text of a sweep, no line longer than `width` where possible. s: the object of --json."""
    yield from wrapped(printable(sweep.name(s)), width)
    yield from wrapped(printable(f"{sweep.extent(s)}."), width)
    if s["rows"]:
        yield from wrapped(_SWEEP_LEGEND, width)
        yield ""
        n_series = len({row["series"] for row in s["rows"]})
        of_columns = [column for column in _COLUMNS if n_series > 1 or column[0] != "series"]
        rows, last = [[unit for _, unit, _ in of_columns]], None
        for row in sorted(s["rows"], key=lambda row: row["concurrency"]):
            cells = [cell(row) for _, _, cell in of_columns]
            rows.append(["" if row["concurrency"] == last else cells[0], *cells[1:]])
            last = row["concurrency"]
        n_labels = 1 if n_series == 1 else 2
        header = [title for title, _, _ in of_columns]
        yield from table(header, rows, width, n_labels, left=range(1, n_labels))
    yield ""
    for text in [*sweep.notes(s), s["verdict"]]:
        yield from wrapped(printable(text), width)


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


def write_report(path: Path | None, page: Callable[[JsonObject], str], record: JsonObject) -> None:
    """Write the page of an object, if there is a path for it. Raises ResourceError."""
    if path is not None:
        with mapped_errors(ResourceError, f"--report: {path} cannot be written"):
            write_whole(path, page(record))
        console.note(f"report: {path}")
