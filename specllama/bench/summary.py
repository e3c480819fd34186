"""From samples to figures: speed against plain decoding of the same answers, regret, acceptance, times.

Pure: knows no engine, no clock and no output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from specllama.bench.costs import BenchCosts, costs_of
from specllama.bench.intervals import Estimate, estimate, quotient
from specllama.bench.runner import AUTO, COPY, LLAMA_CPP, PLAIN, BenchCase, BenchSample
from specllama.core.stats import RunStats
from specllama.wording import counted

Key = tuple[BenchCase, int]  # a case and a run: answers with the same key are compared


@dataclass(frozen=True, slots=True)
class SummaryCell:
    """A configuration in a row. rate: tokens/s after the first token; speedup: over plain decoding of the
    same answer, None for plain decoding itself; ttft: seconds to the first token. total: the sums of the
    counters of all answers.
    """

    answers: int
    rate: Estimate | None
    speedup: Estimate | None
    ttft: Estimate | None
    total: RunStats


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """A workload at a temperature; None stands for all workloads or all temperatures.

    best: the best fixed length in hindsight, plain decoding included. auto_against_best: auto's speed-up over
    that length's, with the interval of their quotient; None without auto. The best of several noisy figures
    looks better than it is, so this errs against auto. auto_over_copies: the same over that of auto without
    draft models and heads; None where that was not measured.
    """

    workload: str | None
    temperature: float | None
    cells: Mapping[str, SummaryCell]
    best: str | None
    auto_against_best: Estimate | None
    auto_over_copies: Estimate | None = None

    @property
    def regret(self) -> float | None:
        """The share of the best fixed length's speed that auto misses; 0 if auto is faster."""
        against = self.auto_against_best
        return None if against is None else max(0.0, 1 - against.value)


class TextDifference(NamedTuple):
    """An answer whose text differs from plain decoding's. token: the first that differs, from 0."""

    case: BenchCase
    run: int
    config: str
    token: int


@dataclass(frozen=True, slots=True)
class BenchSummary:
    """All figures of a bench. compared: answers compared with plain decoding's; too_short: answers of one
    token, which have no speed; near_ties: None if the engine did not count them.
    """

    configs: Sequence[str]
    rows: Sequence[SummaryRow]
    total: SummaryRow
    costs: BenchCosts
    differences: Sequence[TextDifference]
    compared: int
    too_short: int
    near_ties: int | None
    answers: int


def summarise(samples: Sequence[BenchSample], configs: Sequence[str]) -> BenchSummary:
    """The figures of a bench that may have been interrupted. configs: the names, in the order to show."""
    by_config: dict[str, dict[Key, BenchSample]] = {name: {} for name in configs}
    for sample in samples:
        by_config[sample.config][sample.step.case, sample.step.run] = sample
    present = [name for name in configs if by_config[name]]
    groups = _groups(samples)
    temperatures = sorted({t for _, t in groups})
    rows = [_row(by_config, present, [group], *name) for name, group in groups.items()]
    if len(temperatures) > 1 and len(rows) > len(temperatures):
        for t in temperatures:
            rows.append(_row(by_config, present, [g for (_, u), g in groups.items() if u == t], None, t))
    differences, compared = _differences(by_config)
    ours = [s for s in samples if s.config != LLAMA_CPP]
    known = [s for s in ours if s.ties_known]
    return BenchSummary(
        configs=present,
        rows=rows,
        total=_row(by_config, present, list(groups.values()), None, None),
        costs=costs_of(ours),
        differences=differences,
        compared=compared,
        too_short=sum(s.stats.decode_tps is None for s in samples),
        near_ties=sum(s.stats.near_ties for s in known) if known else None,
        answers=len(samples),
    )


def _groups(samples: Iterable[BenchSample]) -> dict[tuple[str, float], list[BenchCase]]:
    """The cases of each workload at each temperature, sorted."""
    cases = dict.fromkeys(s.step.case for s in samples)
    groups: dict[tuple[str, float], list[BenchCase]] = {}
    for case in sorted(cases, key=lambda u: (u.workload, u.temperature, u.number)):
        groups.setdefault((case.workload, case.temperature), []).append(case)
    return groups


def _row(
    by_config: Mapping[str, Mapping[Key, BenchSample]],
    configs: Sequence[str],
    groups: Sequence[Sequence[BenchCase]],
    workload: str | None,
    temperature: float | None,
) -> SummaryRow:
    def figure(
        samples: Mapping[Key, BenchSample], value: Callable[[Key, BenchSample], float | None]
    ) -> Estimate | None:
        runs = sorted({run for _, run in samples})
        return estimate(
            [
                [
                    [v for run in runs if (s := samples.get((case, run))) and (v := value((case, run), s))]
                    for case in cases
                ]
                for cases in groups
            ]
        )

    def rate_over(base_name: str) -> Callable[[Key, BenchSample], float | None]:
        def ratio(key: Key, sample: BenchSample) -> float | None:
            base = by_config.get(base_name, {}).get(key)
            rate, base_rate = sample.stats.decode_tps, base.stats.decode_tps if base else None
            return rate / base_rate if rate and base_rate else None

        return ratio

    included = {case for cases in groups for case in cases}
    cells = {}
    for name in configs:
        samples = by_config[name]
        stats = [s.stats for (case, _), s in samples.items() if case in included]
        cells[name] = SummaryCell(
            answers=len(stats),
            rate=figure(samples, lambda _, s: s.stats.decode_tps),
            speedup=None if name == PLAIN else figure(samples, rate_over(PLAIN)),
            ttft=figure(samples, lambda _, s: s.stats.ttft_seconds),
            total=with_sums(stats),
        )

    def paired(name: str, other: str) -> list[list[list[float]]]:
        """Speed-ups of `name` where `other` has answered too: by group, case and run."""
        samples, others = by_config[name], by_config[other]
        runs, speedup = sorted({run for _, run in samples}), rate_over(PLAIN)
        keys = [[[(case, run) for run in runs] for case in cases] for cases in groups]
        return [
            [
                [v for key in unit if key in samples and key in others and (v := speedup(key, samples[key]))]
                for unit in units
            ]
            for units in keys
        ]

    best = best_fixed(cells)
    against = None
    if best is not None and AUTO in cells:
        against = _against(cells[AUTO], cells[best], quotient(paired(AUTO, best), paired(best, AUTO)))
    over = None
    if AUTO in cells and COPY in cells:
        over = _against(cells[AUTO], cells[COPY], quotient(paired(AUTO, COPY), paired(COPY, AUTO)))
    return SummaryRow(workload, temperature, cells, best, against, over)


def _against(auto: SummaryCell, best: SummaryCell, paired: Estimate | None) -> Estimate | None:
    """The quotient of the two speed-ups as they are shown, with the interval of the quotient of the answers
    that both wrote.
    """
    if paired is None or auto.speedup is None:
        return None
    value = auto.speedup.value / (best.speedup.value if best.speedup is not None else 1.0)
    if paired.low is None or paired.high is None:
        return replace(paired, value=value)
    by = value / paired.value
    return Estimate(value, paired.low * by, paired.high * by, paired.n)


def best_fixed(cells: Mapping[str, SummaryCell]) -> str | None:
    """The fixed length with the highest speed, plain decoding included; None without plain answers."""
    if PLAIN not in cells or cells[PLAIN].rate is None:
        return None
    speeds = {
        name: c.speedup.value
        for name, c in cells.items()
        if name not in (AUTO, COPY, LLAMA_CPP) and c.speedup is not None
    }
    return max([PLAIN, *speeds], key=lambda name: speeds.get(name, 1.0))


def with_sums(stats: Iterable[RunStats]) -> RunStats:
    """The sums of the counters and times of several answers; of widths there are none."""
    total = RunStats()
    for one in stats:
        for name in RunStats.__slots__:
            before = getattr(total, name)
            if isinstance(before, (int, float)):
                setattr(total, name, before + getattr(one, name))
        total.drafted_by.update(one.drafted_by)
        _add(total.reached, one.reached)
        _add(total.accepted_at, one.accepted_at)
        for source, counts in one.reached_by.items():
            _add(total.reached_by.setdefault(source, []), counts)
            _add(total.accepted_by.setdefault(source, []), one.accepted_by[source])
    return total


def _add(sums: list[int], counts: Sequence[int]) -> None:
    """Add counts by position."""
    sums += [0] * (len(counts) - len(sums))
    for j, n in enumerate(counts):
        sums[j] += n


def _differences(by_config: Mapping[str, Mapping[Key, BenchSample]]) -> tuple[list[TextDifference], int]:
    plain, differences, compared = by_config.get(PLAIN, {}), [], 0
    for name, samples in by_config.items():
        for key, sample in samples.items():
            base = plain.get(key)
            if base is None or name in (PLAIN, LLAMA_CPP):
                continue
            compared += 1
            if base.tokens != sample.tokens:
                same = zip(base.tokens, sample.tokens, strict=False)
                shorter = min(len(base.tokens), len(sample.tokens))
                token = next((i for i, (a, b) in enumerate(same) if a != b), shorter)
                differences.append(TextDifference(*key, name, token))
    return sorted(
        differences, key=lambda d: (d.case.workload, d.case.temperature, d.case.number, d.run)
    ), compared


# The figures of a bench in sentences: what auto gains, where it loses, why drafting does not pay, and notes
# on how to read the figures. Prints nothing.


_MIN_LOSS = 0.02  # smaller losses are not mentioned
_MAX_ROWS, _MAX_NOTES = 4, 5  # listed by name
_FORCED = (
    "The text was given: every configuration wrote the same text, and a draft was accepted where it agrees "
    "with the text, whatever the model would have written."
)


def verdict(s: BenchSummary, off: str = "") -> str:
    """One to three sentences. off: why nothing could be drafted at all, "" if something could."""
    if off:
        return f"Only plain decoding was measured: {off}."
    total = s.total
    auto = total.cells.get(AUTO)
    speedup = auto.speedup if auto else None
    if speedup is None or total.best is None:
        return "Too little was measured to compare drafting with plain decoding."
    parts = [f"with auto, decoding ran at {times(speedup)} the speed of plain decoding"]
    if (against := total.auto_against_best) is not None and total.best != PLAIN:
        best = total.cells[total.best].speedup
        assert best is not None
        name = f"{total.best} ({best.value:.2f} x)"
        parts.append(f"at {times(against)} that of the best fixed length in hindsight, {name}")
    elif not nothing_pays(s):
        parts.append("no fixed length was faster than plain decoding")
    text = " and ".join(parts)
    if losing := [row for row in s.rows if row.workload and _loses(row)]:
        text += f"; it loses on {_listed(losing)}"
    if better := [row for row in s.rows if row.workload and _fixed_is_faster(row) and row not in losing]:
        text += f"; a fixed length is faster on {_listed(better, best=True)}"
    text = text[0].upper() + text[1:] + "."
    if nothing_pays(s):
        text += f" {why(s)}"
    elif not _certain(s):
        text += " No gain is certain yet: more --runs or prompts narrow the intervals."
    return text


def advice(s: BenchSummary, off: str = "", busy: bool = False) -> str:
    """What to do, in one or two sentences. off: as for `verdict`. busy: whether other programs disturbed the
    figures, which then give no advice.
    """
    auto = s.total.cells.get(AUTO)
    if off:
        text = "name a draft with -md to compare; specllama models show MODEL lists those that fit."
    elif busy:
        text = "measure again on an idle machine before changing anything."
    elif auto is None or auto.speedup is None or s.total.best is None:
        text = "let it run to the end, or measure longer answers with -n."
    elif nothing_pays(s):
        text = "keep the default, which drafts where that pays; -md none saves the memory of a draft."
    elif not _certain(s):
        text = "keep the default; measure again with more --runs on an idle machine before changing anything."
    elif _copies_are_faster(s.total):
        text = "-md none was faster here: the draft costs more than it gains."
    elif _fixed_is_faster(s.total):
        text = f"--draft-max {s.total.best} was faster here than the default; try it for such texts."
    elif better := [row for row in s.rows if row.workload and _fixed_is_faster(row)]:
        text = (
            f"keep the default; for texts like {better[0].workload} alone try --draft-max {better[0].best}."
        )
    else:
        text = "keep the default, --draft-max auto."
    return f"Advice: {text}"


def draft_answer(s: BenchSummary, noun: str, busy: bool = False) -> str:
    """Whether the draft helps, in a sentence; "" where that was not measured. noun: of the draft. busy: as
    for `advice`.
    """
    over = s.total.auto_over_copies
    if over is None:
        return ""
    if busy:
        return f"Your {noun}: cannot tell what it gains over copying alone, the machine was busy."
    gains = f"Your {noun}: {_change(over.value)} over copying alone"
    if over.low is None or over.high is None:
        return f"{gains}, by too few answers for an interval."
    sure = "" if over.low > 1 or over.high < 1 else ", which may be chance"
    return f"{gains} ({_change(over.low)} to {_change(over.high)}){sure}."


def nothing_pays(s: BenchSummary) -> bool:
    """Whether no configuration was faster than plain decoding, over all workloads."""
    speedups = _speedups(s)
    return bool(speedups) and all(e.value <= 1 for e in speedups)


def why(s: BenchSummary) -> str:
    """Why drafting does not pay: the cost of verifying, the cost of drafting, the acceptance."""
    costs, head = s.costs, "Speculation does not pay here over all workloads"
    second, t1 = costs.second, costs.t1
    if second is None or not t1 or costs.first_accepted is None:
        return f"{head}: hardly anything was drafted."
    text = f"{head}: a decode of {second.rows:.3g} rows takes {second.seconds / t1:.2f} x the time of one row"
    if costs.draft_token is not None:
        text += f", a draft token {costs.draft_token / t1:.2f} x"
    need, got = costs.break_even, costs.first_accepted
    assert need is not None
    accepted = f"{_percent(got)} of first draft tokens were accepted"
    if need >= 1:
        return f"{text}, so such drafts cannot pay even if all of them are accepted; {accepted}."
    text += f", so such a draft pays from an acceptance of {_percent(need)}; {accepted}"
    if costs.drafted is not None and costs.drafted < 0.5:
        text += f", but only {_percent(costs.drafted)} of rounds had a draft"
    elif got > need:
        text += ", but later ones less often, and a round takes more time than its decode"
    return f"{text}."


def notes(s: BenchSummary, about: Mapping[str, Any]) -> list[str]:
    """What is missing, and whether drafts changed a text. about: as in `record`."""
    lines = []
    if about["interrupted"]:
        lines.append(f"Interrupted: {s.answers} of {counted(about['planned'], 'answer')} were measured.")
    for name, reason in list(about["skipped"].items())[:_MAX_NOTES]:
        lines.append(f"Left out: prompt {name}: {reason}.")
    if len(about["skipped"]) > _MAX_NOTES:
        lines.append(f"Left out: {counted(len(about['skipped']) - _MAX_NOTES, 'more prompt')}.")
    if s.too_short:
        lines.append(f"{counted(s.too_short, 'answer')} ended with the first token, which has no speed.")
    own = s.total.cells.get(LLAMA_CPP)
    if own is not None and own.speedup is not None:
        lines.append(
            f"With llama.cpp's own kernels plain decoding runs at {times(own.speedup)} of this speed."
        )
    if about["settings"]["text"] is not None:
        return [*lines, _FORCED]
    return lines + ([_text_note(s, about["exact"])] if s.compared else [])


def extent(settings: Mapping[str, Any]) -> str:
    """How much of an answer is measured: `up to 64 tokens each`."""
    n = settings["n_tokens"]
    if settings["text"] is None:
        return f"up to {counted(n, 'token')} each"
    return "each a given text" + ("" if n is None else f", up to {counted(n, 'token')} of it")


def times(e: Estimate) -> str:
    """`1.42 x (1.35 - 1.50)`; without the brackets if there is no interval."""
    interval = "" if e.low is None or e.high is None else f" ({e.low:.2f} - {e.high:.2f})"
    return f"{e.value:.2f} x{interval}"


def label(row: SummaryRow) -> str:
    """`edit at temperature 0.8`, `all`."""
    name = row.workload or "all"
    return name if row.temperature is None else f"{name} at temperature {row.temperature:g}"


def _certain(s: BenchSummary) -> bool:
    """Whether some configuration is faster than plain decoding with its whole interval."""
    return any(e.low is not None and e.low > 1 for e in _speedups(s))


def _speedups(s: BenchSummary) -> list[Estimate]:
    drafting = (c.speedup for name, c in s.total.cells.items() if name not in (PLAIN, LLAMA_CPP))
    return [speedup for speedup in drafting if speedup is not None]


def _loses(row: SummaryRow) -> bool:
    """Whether auto is slower than plain decoding with its whole interval."""
    auto = row.cells.get(AUTO)
    e = auto.speedup if auto else None
    return e is not None and e.value < 1 - _MIN_LOSS and e.high is not None and e.high < 1


def _fixed_is_faster(row: SummaryRow) -> bool:
    """Whether a fixed length is faster than auto with its whole interval."""
    e = row.auto_against_best
    return (
        row.best != PLAIN and e is not None and e.value < 1 - _MIN_LOSS and e.high is not None and e.high < 1
    )


def _copies_are_faster(row: SummaryRow) -> bool:
    """Whether auto is faster without the draft with its whole interval."""
    e = row.auto_over_copies
    return e is not None and e.value < 1 - _MIN_LOSS and e.high is not None and e.high < 1


def _listed(rows: list[SummaryRow], best: bool = False) -> str:
    shown = []
    for row in rows[:_MAX_ROWS]:
        cell = row.cells[row.best if best and row.best else AUTO]
        e = cell.speedup
        assert e is not None
        shown.append(f"{label(row)} ({f'length {row.best}: ' if best else ''}{e.value:.2f} x)")
    if len(rows) > _MAX_ROWS:
        shown.append(f"{len(rows) - _MAX_ROWS} more")
    return ", ".join(shown)


def _text_note(s: BenchSummary, exact: bool) -> str:
    n = len(s.differences)
    if not n:
        return f"Texts: all {s.compared} equal plain decoding's, token for token."
    shown = "; ".join(
        f"{d.case.workload} {d.case.number} at {d.case.temperature:g}, length {d.config}, token {d.token + 1}"
        for d in s.differences[:_MAX_NOTES]
    )
    more = f"; {n - _MAX_NOTES} more" if n > _MAX_NOTES else ""
    reason = (
        "although --exact was given: please report it."
        if exact
        else "Rows of a batch are rounded differently, and a near-tie can fall the other way; --exact "
        "decides those on rows decoded alone."
    )
    differ = f"{n} of {s.compared} differ from plain decoding's from some token on"
    return f"Texts: {differ} ({shown}{more}). {reason}"


def _change(factor: float) -> str:
    return f"{100 * (factor - 1):+.0f} %"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
