"""From samples to figures: speed against plain decoding of the same answers, regret, acceptance, times.

Pure: knows no engine, no clock and no output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from specllama.bench.costs import BenchCosts, costs_of
from specllama.bench.intervals import Estimate, estimate
from specllama.bench.samples import AUTO, PLAIN, Sample, Unit
from specllama.core.stats import RunStats

Key = tuple[Unit, int]  # what is compared: an answer of a unit in a run


@dataclass(frozen=True, slots=True)
class SummaryCell:
    """A configuration in a row. rate: tokens/s behind the first; speedup: over plain decoding of the same
    answer, None for plain itself; ttft: seconds to the first token. total: counters of all answers together.
    """

    answers: int
    rate: Estimate | None
    speedup: Estimate | None
    ttft: Estimate | None
    total: RunStats


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """A workload at a temperature; None stands for all of them.

    best: the best fixed length in hindsight, plain decoding among them. auto_against_best: rate of auto over
    that one's, answer by answer; None where there is no auto. The best of several noisy figures looks better
    than it is, so that this errs against auto.
    """

    workload: str | None
    temperature: float | None
    cells: Mapping[str, SummaryCell]
    best: str | None
    auto_against_best: Estimate | None

    @property
    def regret(self) -> float | None:
        """The share of the best fixed length's speed that auto leaves; 0 where auto is the faster one."""
        against = self.auto_against_best
        return None if against is None else max(0.0, 1 - against.value)


class RateDifference(NamedTuple):
    """An answer whose text is not plain decoding's. token: the first other one, from 0."""

    unit: Unit
    run: int
    config: str
    token: int


@dataclass(frozen=True, slots=True)
class BenchSummary:
    """All figures of a bench. compared: answers that were compared with plain decoding's; too_short: answers
    of one token, which have no speed; near_ties: None where they were not looked for.
    """

    configs: Sequence[str]
    rows: Sequence[SummaryRow]
    total: SummaryRow
    costs: BenchCosts
    differences: Sequence[RateDifference]
    compared: int
    too_short: int
    near_ties: int | None
    answers: int


def summarise(samples: Sequence[Sample], configs: Sequence[str]) -> BenchSummary:
    """The figures of what was measured, which may have been interrupted anywhere. configs: in their order."""
    by_config: dict[str, dict[Key, Sample]] = {name: {} for name in configs}
    for sample in samples:
        by_config[sample.config][sample.step.unit, sample.step.run] = sample
    present = [name for name in configs if by_config[name]]
    groups = _groups(samples)
    temperatures = sorted({t for _, t in groups})
    rows = [_row(by_config, present, [group], *name) for name, group in groups.items()]
    if len(temperatures) > 1 and len(rows) > len(temperatures):
        for t in temperatures:
            rows.append(_row(by_config, present, [g for (_, u), g in groups.items() if u == t], None, t))
    differences, compared = _differences(by_config)
    known = [s for s in samples if s.ties_known]
    return BenchSummary(
        configs=present,
        rows=rows,
        total=_row(by_config, present, list(groups.values()), None, None),
        costs=costs_of(samples),
        differences=differences,
        compared=compared,
        too_short=sum(s.stats.decode_tps is None for s in samples),
        near_ties=sum(s.stats.near_ties for s in known) if known else None,
        answers=len(samples),
    )


def _groups(samples: Iterable[Sample]) -> dict[tuple[str, float], list[Unit]]:
    """The units of each workload at each temperature, sorted."""
    units = dict.fromkeys(s.step.unit for s in samples)
    found: dict[tuple[str, float], list[Unit]] = {}
    for unit in sorted(units, key=lambda u: (u.workload, u.temperature, u.number)):
        found.setdefault((unit.workload, unit.temperature), []).append(unit)
    return found


def _row(
    by_config: Mapping[str, Mapping[Key, Sample]],
    configs: Sequence[str],
    groups: Sequence[Sequence[Unit]],
    workload: str | None,
    temperature: float | None,
) -> SummaryRow:
    def figure(of: Mapping[Key, Sample], value: Callable[[Key, Sample], float | None]) -> Estimate | None:
        runs = sorted({run for _, run in of})
        return estimate(
            [
                [
                    [v for run in runs if (s := of.get((unit, run))) and (v := value((unit, run), s))]
                    for unit in units
                ]
                for units in groups
            ]
        )

    def against(other: str) -> Callable[[Key, Sample], float | None]:
        def ratio(key: Key, sample: Sample) -> float | None:
            base = by_config.get(other, {}).get(key)
            mine, theirs = sample.stats.decode_tps, base.stats.decode_tps if base else None
            return mine / theirs if mine and theirs else None

        return ratio

    inside = {unit for units in groups for unit in units}
    cells = {}
    for name in configs:
        of = by_config[name]
        mine = [s.stats for (unit, _), s in of.items() if unit in inside]
        cells[name] = SummaryCell(
            answers=len(mine),
            rate=figure(of, lambda _, s: s.stats.decode_tps),
            speedup=None if name == PLAIN else figure(of, against(PLAIN)),
            ttft=figure(of, lambda _, s: s.stats.ttft_seconds),
            total=with_sums(mine),
        )
    best = best_fixed(cells)
    regret = figure(by_config[AUTO], against(best)) if best is not None and AUTO in cells else None
    return SummaryRow(workload, temperature, cells, best, regret)


def best_fixed(cells: Mapping[str, SummaryCell]) -> str | None:
    """The fixed length, plain decoding among them, with the highest speed; None without plain answers."""
    if PLAIN not in cells or cells[PLAIN].rate is None:
        return None
    speeds = {name: c.speedup.value for name, c in cells.items() if name != AUTO and c.speedup is not None}
    return max([PLAIN, *speeds], key=lambda name: speeds.get(name, 1.0))


def with_sums(many: Iterable[RunStats]) -> RunStats:
    """The counters and times of several answers together."""
    total = RunStats()
    for one in many:
        for name in RunStats.__slots__:
            value = getattr(one, name)
            if isinstance(value, (int, float)):
                setattr(total, name, getattr(total, name) + value)
        total.drafted_by.update(one.drafted_by)
        for mine, theirs in ((total.reached, one.reached), (total.accepted_at, one.accepted_at)):
            mine += [0] * (len(theirs) - len(mine))
            for j, n in enumerate(theirs):
                mine[j] += n
    return total


def _differences(by_config: Mapping[str, Mapping[Key, Sample]]) -> tuple[list[RateDifference], int]:
    plain, found, compared = by_config.get(PLAIN, {}), [], 0
    for name, samples in by_config.items():
        for key, sample in samples.items():
            base = plain.get(key)
            if base is None or name == PLAIN:
                continue
            compared += 1
            if base.tokens != sample.tokens:
                same = zip(base.tokens, sample.tokens, strict=False)
                shorter = min(len(base.tokens), len(sample.tokens))
                token = next((i for i, (a, b) in enumerate(same) if a != b), shorter)
                found.append(RateDifference(*key, name, token))
    return sorted(found, key=lambda d: (d.unit.workload, d.unit.temperature, d.unit.number, d.run)), compared
