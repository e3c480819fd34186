"""The summary of each cell, the totals and the page. Figures in, text out.

usage: python -m scripts.bench.peers.table FIGURES.json    # prints the page
"""

from __future__ import annotations

import json
import math
import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scripts import cli
from scripts.bench.peers.cells import Figures
from scripts.bench.peers.points import OUR_PLAIN, OURS, PLAIN

TITLE = "# specllama against llama.cpp's own tools"
DEFAULT = "n_max 3"  # the default of llama.cpp's tool


class Pick(NamedTuple):
    """llama.cpp's fastest point by half of a cell's runs; best: our rate over it by the other half."""

    label: str
    name: str
    best: float


class Summary(NamedTuple):
    """A cell: specllama's rate in tokens/s, and its ratio to other ways of decoding.

    picks: llama.cpp's best point chosen by each half of the runs. default: None without a draft model. ttft:
    specllama's time to first token over that of its plain decoding.
    """

    label: str
    group: str
    machine: str
    rate: float
    plain: float
    peer_plain: float
    default: float | None
    picks: tuple[Pick, ...]
    ttft: float | None

    @property
    def best(self) -> float:
        """The ratio to llama.cpp's best point, the mean of both picks."""
        return _geometric(self.picks, "best")

    @property
    def best_name(self) -> str:
        """The picked point, or both."""
        return " or ".join(sorted({pick.name for pick in self.picks}))


def summary(figures: Figures, whole: bool = False) -> Summary:
    """Medians of all runs; llama.cpp's best point is chosen on one half of them and compared on the other.

    whole: rates over the time of prompt and answer.
    """
    rates = figures.wholes if whole else figures.rates
    halves = [{name: statistics.median(found[i::2]) for name, found in rates.items()} for i in (0, 1)]
    median = {name: statistics.median(found) for name, found in rates.items()}
    ttft = {name: statistics.median(found) for name, found in figures.ttft_ms.items()}
    ours, label = median[OURS], figures.cell.label
    return Summary(
        label=label,
        group=f"{figures.cell.kind} {figures.cell.cost}",
        machine=figures.machine,
        rate=ours,
        plain=ours / median[OUR_PLAIN],
        peer_plain=ours / median[PLAIN],
        default=ours / median[DEFAULT] if DEFAULT in median else None,
        picks=tuple(_pick(label, *pair) for pair in (halves, halves[::-1])),
        ttft=ttft[OURS] / ttft[OUR_PLAIN] if OUR_PLAIN in ttft else None,
    )


def _pick(label: str, chosen: Mapping[str, float], compared: Mapping[str, float]) -> Pick:
    name = max((name for name in chosen if name not in (OURS, OUR_PLAIN)), key=lambda name: chosen[name])
    return Pick(label, name, compared[OURS] / compared[name])


def line(s: Summary) -> str:
    """A line for a cell."""
    default = f"{s.default:.2f} x its default, " if s.default is not None else ""
    return f"{s.label:28} {s.rate:7.1f} t/s, {s.plain:.2f} x plain, {default}{s.best:.2f} x {s.best_name}"


def totals(cells: Sequence[Summary], with_first: bool = True) -> list[str]:
    """Geometric means and worst cells, a sentence each. with_first: include the time to first token."""
    out = [
        _mean("over its own plain decoding", cells, "plain"),
        _mean("over llama.cpp's plain decoding", cells, "peer_plain"),
        _mean("over llama.cpp's default, 3 drafted tokens", cells, "default"),
        _mean("over llama.cpp's best point, chosen in hindsight for each cell", cells, "best"),
    ]
    picks = [pick for s in cells for pick in s.picks]
    drafting = [pick for pick in picks if pick.name != PLAIN]
    out.append(_mean("the same where that point drafts", drafting, "best", "choice"))
    plain = [pick for pick in picks if pick.name == PLAIN]
    out.append(_mean("the same where it is plain", plain, "best", "choice"))
    first = [s for s in cells if s.ttft is not None]
    if first and with_first:
        worst = max(first, key=lambda s: s.ttft or 0.0)
        out.append(
            f"time to first token over that of plain decoding: {_geometric(first, 'ttft'):.2f}, longest "
            f"{worst.ttft:.2f} ({worst.label})"
        )
    return [text for text in out if text]


def _mean(what: str, cells: Sequence[Summary | Pick], name: str, of: str = "cell") -> str:
    found = [s for s in cells if getattr(s, name) is not None]
    if not found:
        return ""
    worst = min(found, key=lambda s: getattr(s, name))
    least, all_ = getattr(worst, name), f"{len(found)} {of}{'s' if len(found) > 1 else ''}"
    return f"{what}: {_geometric(found, name):.2f} over {all_}, worst {least:.2f} ({worst.label})"


def _geometric(cells: Sequence[Summary | Pick], name: str) -> float:
    return math.exp(statistics.mean(math.log(getattr(s, name)) for s in cells))


def markdown(found: Sequence[Figures], about: Mapping[str, Any]) -> str:
    """The page. about: settings, versions, command, dates, the number of planned cells, the file of raw
    figures.
    """
    cells, wholes = [summary(f) for f in found], [summary(f, whole=True) for f in found]
    tables = [*_weights(cells), *_machines(cells), *_groups(cells), *_cells(cells)]
    end = ["", f"All figures: `{about['raw']}`.", ""]
    return "\n".join([*_head(cells, about), *_totals(cells, wholes), *tables, *end])


def _head(cells: Sequence[Summary], about: Mapping[str, Any]) -> Iterator[str]:
    yield from (TITLE, "")
    if len(cells) < about["planned"]:
        yield from (f"**Not complete: {len(cells)} of {about['planned']} cells are measured.**", "")
    for name, letter in (letters := _letters(cells)).items():
        n = sum(s.machine == name for s in cells)
        here, many = (f" {letter}", f"; cells: {n}") if len(letters) > 1 else ("", "")
        yield f"- Machine{here}: {name}; {about['n_threads']} threads{many}"
    yield f"- specllama {', '.join(about['commits'])}, llama-cpp-python {about['binding']}"
    yield f"- llama.cpp's tools: {about['peer']}"
    yield f"- Measured: {about['dates']}"
    yield f"- Command: `{about['command']}`"
    yield from ("", "## How it was measured", "", *_method(about))


def _method(about: Mapping[str, Any]) -> Iterator[str]:
    points = "; ".join(about["peer_points"])
    for text in (
        f"""A cell is a type of weights, the cost of a draft model (one of its decodes relative to one of
        the target's), a workload and a temperature. In each cell all ways of decoding answer the same
        prompts with the same files, threads and seeds: {about["n"]} tokens each, prompts per workload:
        {about["per_workload"]}, runs: {about["runs"]}, in a different order each time, each in a process of
        its own. At a temperature each run has another seed, and llama.cpp writes other texts than
        specllama, which may be easier or harder to draft for: there only the mean of many cells means
        something.""",
        """Rates are by each program's own clock: decoded tokens over the time after the prompt. specllama
        runs with its defaults; its plain decoding is `--draft-max 0`. llama.cpp's plain decoding is
        `llama-completion`, by the time of its decodes alone; everything else of llama.cpp is
        `llama-speculative-simple`. That program ends with the round in which it reaches the requested
        number of tokens: tokens beyond it are not counted, their time is. Ways of decoding without a draft
        model are run once for all draft costs that are measured together, in turn with everything else.""",
        """The programs read the prompt with the draft model at different times: llama.cpp's tool before its
        clock for decoding starts, specllama after the first token, as far as that pays. So the totals are
        given twice: for decoding alone, and for prompt and answer together. specllama has answered one
        other prompt with each pair before it is measured, and keeps what it learns (`tune` was not run).""",
        f"""llama.cpp's grid ({about["grid"]}): {points}. Its best point is chosen for each cell in
        hindsight, by one half of the runs, and compared by the medians of the other half; each half chooses
        once (two choices a cell). All other figures are medians of all runs. Means are geometric.""",
    ):
        yield from (textwrap.fill(" ".join(text.split()), 110, break_on_hyphens=False), "")


def _totals(cells: Sequence[Summary], wholes: Sequence[Summary]) -> Iterator[str]:
    yield from ("## Totals", "", "specllama's rate of decoding", "")
    yield from (*(f"- {text}" for text in totals(cells)), "")
    yield from ("Tokens by the time of prompt and answer together", "")
    yield from (*(f"- {text}" for text in totals(wholes, with_first=False)), "")


def _groups(cells: Sequence[Summary]) -> Iterator[str]:
    yield from ("## By weights and draft cost", "", "Geometric means over workloads and temperatures.", "")
    yield "| weights, cost | cells | x plain | worst | x peer's default | x its best | worst | first token |"
    yield "|---|---|---|---|---|---|---|---|"
    for group in sorted({s.group for s in cells}):
        mine = [s for s in cells if s.group == group]
        default, ttft = (_optional(mine, name) for name in ("default", "ttft"))
        yield (
            f"| {group} | {len(mine)} | {_geometric(mine, 'plain'):.2f} | {min(s.plain for s in mine):.2f} | "
            f"{default} | {_geometric(mine, 'best'):.2f} | {min(s.best for s in mine):.2f} | {ttft} |"
        )
    yield ""


def _weights(cells: Sequence[Summary]) -> Iterator[str]:
    """The table by type of weights."""
    yield from ("## By weights", "", "Geometric means over draft costs, workloads and temperatures.", "")
    yield (
        "| weights | default against plain decoding: mean, worst, best cell | against llama.cpp's default, 3 "
        "drafted tokens | against the best of its settings, chosen in hindsight | cells |"
    )
    yield "|---|---|---|---|---|"
    for kind in sorted({s.group.split()[0] for s in cells}):
        mine = [s for s in cells if s.group.split()[0] == kind]
        plain = [s.plain for s in mine]
        yield (
            f"| {kind} | {_geometric(mine, 'plain'):.2f} x, {min(plain):.2f}, {max(plain):.2f} | "
            f"{_times(_optional(mine, 'default'))} | {_times(_optional(mine, 'best'))} | {len(mine)} |"
        )
    yield ""


def _letters(cells: Sequence[Summary]) -> dict[str, str]:
    """A letter for each machine."""
    return {name: chr(ord("A") + i) for i, name in enumerate(dict.fromkeys(s.machine for s in cells))}


def _machines(cells: Sequence[Summary]) -> Iterator[str]:
    letters = _letters(cells)
    if len(letters) < 2:
        return
    yield from ("## By machine", "")
    for name, letter in letters.items():
        yield from (f"{letter}, {name}", "")
        yield from (*(f"- {text}" for text in totals([s for s in cells if s.machine == name])), "")


def _times(figure: str) -> str:
    return f"{figure} x" if figure else ""


def _optional(cells: Sequence[Summary], name: str) -> str:
    found = [s for s in cells if getattr(s, name) is not None]
    return f"{_geometric(found, name):.2f}" if found else ""


def _cells(cells: Sequence[Summary]) -> Iterator[str]:
    letters = _letters(cells)
    several = len(letters) > 1
    yield from ("## All cells", "")
    head = "| cell | specllama, t/s | x plain | x peer's default | x its best | which is | first token |"
    yield head + (" machine |" if several else "")
    yield "|---" * (8 if several else 7) + "|"
    for s in sorted(cells):
        default, ttft = ("" if x is None else f"{x:.2f}" for x in (s.default, s.ttft))
        best = f"{s.best:.2f} | {s.best_name}"
        row = f"| {s.label} | {s.rate:.1f} | {s.plain:.2f} | {default} | {best} | {ttft} |"
        yield row + (f" {letters[s.machine]} |" if several else "")


def main() -> None:
    parser = cli.parser(__doc__)
    parser.add_argument("figures", type=Path, help="as `python -m scripts.bench.peers` writes them")
    path = parser.parse_args().figures
    raw = json.loads(path.read_text("utf-8"))
    found, settings = [Figures.from_dict(cell) for cell in raw["cells"]], raw["settings"]
    of_page = {
        "commits": sorted({f.commit for f in found}), "dates": " to ".join(sorted({f.date for f in found})),
        "peer_points": settings["points"], "planned": len(found), "raw": path.name,
    }  # fmt: skip
    print(markdown(found, {**raw["about"], **settings, **of_page}))


if __name__ == "__main__":
    main()
