"""From samples to the figures of `bench --json`, under its keys: speed against plain decoding of the same
answers, regret, acceptance, times of decodes. The tables, the page and the sentences are made from them.

Times are in seconds unless a key ends in ms; None means unknown. Pure: no engine, no clock, no output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from specllama.bench.runner import AUTO, COPY, LLAMA_CPP, PLAIN, BenchCase, BenchSample
from specllama.core.replay.break_even import acceptance_needed
from specllama.core.stats import summed
from specllama.json_types import JsonObject

SCHEMA = "specllama.bench/1"
Key = tuple[BenchCase, int]  # a case and a run: answers with the same key are compared
_CELL = {  # key: attribute of RunStats
    "n_predict": "n_predict", "n_drafted": "n_drafted", "n_accept": "n_accept", "n_branch": "n_branch",
    "n_branch_accept": "n_branch_accept", "n_discarded": "n_discarded", "drafted_by": "drafted_by",
    "acceptance": "acceptance_rate", "accept_by_position": "accept_by_position",
    "accept_by_source": "accept_by_source", "rounds": "rounds", "decode_seconds": "decode_seconds",
    "time": "time_shares",
}  # fmt: skip
_COUNTS = ("n_prompt", "n_reused", "n_predict", "n_drafted", "n_accept")  # of a sample


def summarise(samples: Sequence[BenchSample], configs: Sequence[str]) -> JsonObject:
    """The figures of a bench that may have been interrupted. configs: the names, in the order to show."""
    answers = {name: {(s.step.case, s.step.run): s for s in samples if s.config == name} for name in configs}
    present = [name for name in configs if answers[name]]
    groups: dict[tuple[str, float], list[BenchCase]] = {}
    cases = {s.step.case for s in samples}
    for case in sorted(cases, key=lambda case: (case.workload, case.temperature, case.number)):
        groups.setdefault((case.workload, case.temperature), []).append(case)
    temperatures = sorted({t for _, t in groups})
    rows = [_row(answers, present, [group], *name) for name, group in groups.items()]
    if len(temperatures) > 1 and len(rows) > len(temperatures):
        for t in temperatures:
            rows.append(_row(answers, present, [g for (_, u), g in groups.items() if u == t], None, t))
    compared, different = _differences(answers)
    ours = [s for s in samples if s.config != LLAMA_CPP]
    known = [s for s in ours if s.ties_known]
    return {
        "configurations": present,
        "answers": len(samples),
        "too_short": sum(s.stats.decode_tps is None for s in samples),
        "near_ties": sum(s.stats.near_ties for s in known) if known else None,
        "total": _row(answers, present, list(groups.values()), None, None),
        "rows": rows,
        **costs_of(ours),
        "texts_compared": compared,
        "texts_different": different,
    }


def sample_figures(sample: BenchSample) -> JsonObject:
    """The figures of an answer; decode_tps: tokens/s after the first token."""
    stats = sample.stats
    return {
        **sample.place,
        **{name: getattr(stats, name) for name in _COUNTS},
        "ttft_ms": 1000 * stats.ttft_seconds,
        "decode_seconds": stats.decode_seconds,
        "decode_tps": stats.decode_tps,
    }


def speedup(row: JsonObject, name: str | None) -> Estimate | None:
    """The speed-up of a configuration in a row, None where it has none there."""
    e: Estimate | None = row["configurations"].get(name, {}).get("speedup")
    return e


def _row(
    answers: Mapping[str, Mapping[Key, BenchSample]],
    configs: Sequence[str],
    groups: Sequence[Sequence[BenchCase]],
    workload: str | None,
    temperature: float | None,
) -> JsonObject:
    """A workload at a temperature; None stands for all workloads or all temperatures.

    best_fixed: the best fixed length in hindsight, plain decoding included. auto_against_best: auto's
    speed-up over that length's; None without auto. The best of several noisy figures looks better than it
    is, so this errs against auto. auto_over_copies: the same over that of auto without draft models and
    heads; None where that was not measured. Both are None where nothing was drafted. regret: the share of
    the best fixed length's speed that auto misses; 0 if auto is faster. Of a configuration: speedup: over
    plain decoding of the same answer, None for plain decoding itself; counters and times are sums over all
    answers.
    """

    def grouped(values: Mapping[Key, float]) -> list[list[list[float]]]:
        runs = sorted({run for _, run in values})
        return [[[v for run in runs if (v := values.get((c, run)))] for c in cases] for cases in groups]

    rates = {
        name: {key: rate for key, s in answers[name].items() if (rate := s.stats.decode_tps)}
        for name in configs
    }
    plain = rates.get(PLAIN, {})
    speedups = {
        name: {key: rate / plain[key] for key, rate in own.items() if key in plain}
        for name, own in rates.items()
    }
    included = {case for cases in groups for case in cases}
    cells: JsonObject = {}
    for name in configs:
        total = summed(s.stats for (case, _), s in answers[name].items() if case in included)
        firsts = {key: 1000 * s.stats.ttft_seconds for key, s in answers[name].items()}
        cells[name] = {
            "answers": sum(case in included for case, _ in answers[name]),
            "decode_tps": estimate(grouped(rates[name])),
            "speedup": None if name == PLAIN else estimate(grouped(speedups[name])),
            "ttft_ms": estimate(grouped(firsts)),
            **{key: getattr(total, attribute) for key, attribute in _CELL.items()},
        }

    def auto_against(other: str | None) -> Estimate | None:
        """The quotient of the two speed-ups shown, with the interval of that of answers by both; None where
        neither drafted anything.
        """
        if other is None or AUTO not in cells or (auto := cells[AUTO]["speedup"]) is None:
            return None
        if not cells[AUTO]["n_drafted"] and not cells[other]["n_drafted"]:
            return None
        both = speedups[AUTO].keys() & speedups[other].keys()
        paired = quotient(*(grouped({key: speedups[name][key] for key in both}) for name in (AUTO, other)))
        if paired is None:
            return None
        shown = cells[other]["speedup"]
        value = auto.value / (shown.value if shown is not None else 1.0)
        low, high = (None if x is None else x * value / paired.value for x in (paired.low, paired.high))
        return Estimate(value, low, high, paired.n)

    best = best_fixed(cells)
    against = auto_against(best)
    return {
        "workload": workload,
        "temperature": temperature,
        "configurations": cells,
        "best_fixed": best,
        "auto_against_best": against,
        "auto_over_copies": auto_against(COPY if COPY in cells else None),
        "regret": None if against is None else max(0.0, 1 - against.value),
    }


def best_fixed(cells: JsonObject) -> str | None:
    """The fixed length with the highest speed, plain decoding included; None without plain answers. One that
    drafted nothing was plain decoding, too.
    """
    if PLAIN not in cells or cells[PLAIN]["decode_tps"] is None:
        return None
    speeds = {
        name: c["speedup"].value
        for name, c in cells.items()
        if name not in (AUTO, COPY, LLAMA_CPP) and c["speedup"] is not None and c["n_drafted"]
    }
    return max([PLAIN, *speeds], key=lambda name: speeds.get(name, 1.0))


def _differences(answers: Mapping[str, Mapping[Key, BenchSample]]) -> tuple[int, list[JsonObject]]:
    """Answers compared with plain decoding's, and those whose text differs; token: the first that does."""
    plain, compared, different = answers.get(PLAIN, {}), 0, list[JsonObject]()
    for name, own in answers.items():
        for key in own.keys() & plain.keys() if name not in (PLAIN, LLAMA_CPP) else ():
            compared += 1
            tokens, base = own[key].tokens, plain[key].tokens
            if tokens != base:
                shorter = min(len(base), len(tokens))
                token = next((i for i in range(shorter) if base[i] != tokens[i]), shorter)
                different.append({**own[key].place, "token": token})
    places = ("workload", "temperature", "prompt", "run")
    return compared, sorted(different, key=lambda d: [d[name] for name in places])


_MATTERS = 1.1  # decodes after a change that take longer by this factor are shown apart
_MIN_ROUNDS = 3  # widths with fewer rounds are not shown
Timings = Mapping[int, Sequence[tuple[int, float]]]  # by rows: (rounds, seconds) of each answer


def costs_of(samples: Sequence[BenchSample]) -> JsonObject:
    """The costs measured by the samples.

    t_n: t(n) by rows, each over t(1) as `relative`; changing_seconds: of the first two decodes after one of
    other rows, where these take longer; None where they do not, or there were none. t_n_exact: whether the
    rows are those of single decodes; else each point is a configuration, with mean rows and mean seconds.
    draft_token_seconds: of a token of the draft model, reading the prompt included; None without a draft
    model. first_accepted: share of first draft tokens that were accepted; rounds_drafted: share of rounds
    with a draft; both over the fixed lengths, None without any.
    """
    by_rows, steady = _by_rows(samples, "round_seconds"), _by_rows(samples, "steady_by_rows")
    exact = 1 in by_rows
    points = _points(by_rows, steady) if exact else _means(samples)
    t1 = next((seconds for rows, seconds, _, _ in points if rows == 1), None)
    fixed = [s.stats for s in samples if s.step.config.draft_max]
    total = summed(fixed)
    reached, accepted = sum(total.reached[:1]), sum(total.accepted_at[:1])
    n_model = total.n_modelled + total.n_discarded
    return {
        "t_n": [
            {
                "rows": rows,
                "seconds": seconds,
                "relative": seconds / t1 if t1 else None,
                "rounds": rounds,
                "changing_seconds": changing,
            }
            for rows, seconds, rounds, changing in points
        ],
        "t_n_exact": exact,
        "draft_token_seconds": total.draft_seconds / n_model if total.n_modelled else None,
        "first_accepted": accepted / reached if reached else None,
        "rounds_drafted": reached / total.rounds if total.rounds else None,
    }


def t1_of(costs: JsonObject) -> float | None:
    """t(1), None where it is unknown."""
    return next((p["seconds"] for p in costs["t_n"] if p["rows"] == 1), None)


def second_point(costs: JsonObject) -> JsonObject | None:
    """The point nearest to two rows, among those with drafts."""
    near = [p for p in costs["t_n"] if p["rows"] >= 1.25]
    return min(near, key=lambda p: abs(p["rows"] - 2), default=None)


def break_even(costs: JsonObject) -> float | None:
    """The acceptance from which drafts as long as `second_point` pay, tokens being alike; 1 for never."""
    second, t1 = second_point(costs), t1_of(costs)
    if second is None or not t1:
        return None
    k = second["rows"] - 1
    return acceptance_needed(k, (second["seconds"] + k * (costs["draft_token_seconds"] or 0.0)) / t1)


_Point = tuple[float, float, int, float | None]  # rows, seconds, rounds, seconds after a change


def _by_rows(samples: Iterable[BenchSample], name: str) -> Timings:
    by_rows: dict[int, list[tuple[int, float]]] = {}
    for sample in samples:
        for n, timing in getattr(sample.stats, name).items():
            by_rows.setdefault(n, []).append(timing)
    return by_rows


def _points(by_rows: Timings, steady: Timings) -> list[_Point]:
    """t(n): of all decodes, or of the steady ones where the others take longer in the mean of all widths."""
    changing: dict[float, float] = {}
    for rows, times in steady.items():
        (n, seconds), (n_steady, of_steady) = (
            tuple(map(sum, zip(*t, strict=True))) for t in (by_rows[rows], times)
        )
        if n > n_steady:
            changing[rows] = (seconds - of_steady) / (n - n_steady)
    pairs = [(changing[p[0]], p[1]) for p in _measured(steady) if p[0] in changing]
    if not pairs or sum(more for more, _ in pairs) < _MATTERS * sum(seconds for _, seconds in pairs):
        return _measured(by_rows)
    return [(*p[:3], changing.get(p[0])) for p in _measured(steady)]


def _measured(by_rows: Timings) -> list[_Point]:
    """For each width the median of the answers' means, so that a disturbed answer counts little."""
    points: list[_Point] = []
    for n, times in sorted(by_rows.items()):
        rounds = sum(count for count, _ in times)
        if rounds >= _MIN_ROUNDS or (n == 1 and rounds):
            points.append((n, median(s / count for count, s in times if count > 0), rounds, None))
    return points


def _means(samples: Iterable[BenchSample]) -> list[_Point]:
    """For each configuration the mean rows and mean seconds of a decode."""
    by_config: dict[str, list[BenchSample]] = {}
    for sample in samples:
        if sample.stats.rounds and sample.step.config.draft_max is not None:
            by_config.setdefault(sample.config, []).append(sample)
    points: list[_Point] = []
    for some in by_config.values():
        total = summed(sample.stats for sample in some)
        n = total.n_drafted + total.n_forced
        points.append((1 + n / total.rounds, total.verify_seconds / total.rounds, total.rounds, None))
    return sorted(points)


MAX_DRAWS, MIN_DRAWS = 2000, 100
_MAX_NUMBERS = 500_000  # drawn for an interval; medians of many values vary little and need fewer draws
_BATCH = 1 << 20  # numbers drawn at once
Units = Sequence[Sequence[float]]  # values of each unit, at least one


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure from n values and its 95 % interval, None for fewer than 3 values."""

    value: float
    low: float | None
    high: float | None
    n: int


def estimate(groups: Sequence[Units]) -> Estimate | None:
    """The typical value of positive numbers that come in groups (workloads) of units (prompts).

    The geometric mean over groups of the median over units of the median over values: a workload does not
    count more for having more prompts. The interval is the percentile bootstrap (Efron, "Bootstrap methods",
    Annals of Statistics 1979): units are resampled in each group, values in each unit. None without any.
    """
    kept = _without_empty(groups)
    if not kept:
        return None
    n = sum(len(unit) for units in kept for unit in units)
    if n < 3:
        return Estimate(_typical(kept), None, None, n)
    low, high = np.exp(np.quantile(_resampled_logs(kept, n), (0.025, 0.975)))
    return Estimate(_typical(kept), float(low), float(high), n)


def quotient(groups: Sequence[Units], others: Sequence[Units]) -> Estimate | None:
    """The typical value of `groups` over that of `others`, which have the same form: values of the same
    answers. Its interval is that of the quotient over the same resamples of both, so that what makes a unit
    slow for both does not widen it. None without any value.
    """
    above, below = _without_empty(groups), _without_empty(others)
    if not above or not below:
        return None
    value, n = _typical(above) / _typical(below), sum(len(unit) for units in above for unit in units)
    if n < 3:
        return Estimate(value, None, None, n)
    logs = _resampled_logs(above, n) - _resampled_logs(below, n)
    low, high = np.exp(np.quantile(logs, (0.025, 0.975)))
    return Estimate(value, min(float(low), value), max(float(high), value), n)


def _without_empty(groups: Sequence[Units]) -> list[Units]:
    kept = [[unit for unit in units if unit] for units in groups]
    return [units for units in kept if units]


def _typical(groups: Sequence[Units]) -> float:
    return float(np.exp(np.mean([np.log(np.median([np.median(u) for u in units])) for units in groups])))


def _resampled_logs(groups: Sequence[Units], n: int) -> NDArray[np.float64]:
    """Logarithms of the typical value of resamples, shape (draws,); n: values in all groups."""
    rng, draws = np.random.default_rng(0), max(MIN_DRAWS, min(MAX_DRAWS, _MAX_NUMBERS // n))
    logs: NDArray[np.float64] = np.mean([np.log(_resampled_medians(g, draws, rng)) for g in groups], axis=0)
    return logs


def _resampled_medians(units: Units, draws: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Medians of resampled groups, shape (draws,)."""
    counts = np.array([len(unit) for unit in units])
    starts = np.cumsum(counts) - counts
    flat = np.concatenate([np.asarray(unit, dtype=np.float64) for unit in units])
    most, medians = int(counts.max()), np.empty(draws)
    step = max(1, _BATCH // (len(units) * most))
    for begin in range(0, draws, step):
        n = min(step, draws - begin)
        chosen = rng.integers(0, len(units), (n, len(units), 1))
        inside = rng.random((n, len(units), most)) * counts[chosen]
        values = flat[starts[chosen] + inside.astype(np.int64)]
        values = np.where(np.arange(most) < counts[chosen], values, np.nan)
        medians[begin : begin + n] = np.median(np.nanmedian(values, axis=2), axis=1)
    return medians
