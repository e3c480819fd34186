"""From samples to figures: speed against plain decoding of the same answers, regret, acceptance, times.

Pure: knows no engine, no clock and no output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from specllama.bench.costs import BenchCosts, costs_of
from specllama.bench.intervals import Estimate, estimate, quotient
from specllama.bench.plan import AUTO, COPY, LLAMA_CPP, PLAIN, BenchCase, BenchSample
from specllama.core.stats import RunStats

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
