"""Measured costs: t(n), the seconds of a decode of n rows, and the seconds of a draft token. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from specllama.bench.runner import BenchSample
from specllama.core.replay.break_even import acceptance_needed

_MATTERS = 1.1  # decodes after a change that take longer by this factor are shown apart
_MIN_ROUNDS = 3  # widths with fewer rounds are not shown


@dataclass(frozen=True, slots=True)
class DecodeCost:
    """The time of a decode of `rows` rows, measured in so many rounds. changing: of the first two after a
    decode of other rows, where these take longer; None where they do not, or there were none.
    """

    rows: float
    seconds: float
    rounds: int
    changing: float | None = None


@dataclass(frozen=True, slots=True)
class BenchCosts:
    """Costs of decodes and of drafts.

    points: t(n), by rows. exact: whether the rows are those of single decodes; else each point is a
    configuration, with mean rows and mean seconds. draft_token: seconds of a token of the draft model,
    reading the prompt included; None without a draft model. first_accepted: share of first draft tokens that
    were accepted; drafted: share of rounds with a draft; both over the fixed lengths, None without any.
    """

    points: Sequence[DecodeCost]
    exact: bool
    draft_token: float | None
    first_accepted: float | None
    drafted: float | None

    @property
    def t1(self) -> float | None:
        return next((p.seconds for p in self.points if p.rows == 1), None)

    def relative(self, point: DecodeCost) -> float | None:
        """The point's time over t(1)."""
        return point.seconds / self.t1 if self.t1 else None

    @property
    def second(self) -> DecodeCost | None:
        """The point nearest to two rows, among those with drafts."""
        near = [p for p in self.points if p.rows >= 1.25]
        return min(near, key=lambda p: abs(p.rows - 2), default=None)

    @property
    def break_even(self) -> float | None:
        """The acceptance from which drafts of the length of `second` pay, if each token is equally likely;
        1 if they never pay.
        """
        second = self.second
        if second is None or not self.t1:
            return None
        k = second.rows - 1
        return acceptance_needed(k, (second.seconds + k * (self.draft_token or 0.0)) / self.t1)


def costs_of(samples: Sequence[BenchSample]) -> BenchCosts:
    """The costs measured by the samples."""
    by_rows, steady = _by_rows(samples, False), _by_rows(samples, True)
    exact = 1 in by_rows
    points = _points(by_rows, steady) if exact else _means(samples)
    fixed = [s for s in samples if s.step.config.draft_max]
    n_model = sum(s.stats.n_modelled + s.stats.n_discarded for s in fixed)
    reached = sum(s.stats.reached[0] for s in fixed if s.stats.reached)
    accepted = sum(s.stats.accepted_at[0] for s in fixed if s.stats.accepted_at)
    rounds = sum(s.stats.rounds for s in fixed)
    return BenchCosts(
        points=points,
        exact=exact,
        draft_token=sum(s.stats.draft_seconds for s in fixed) / n_model
        if any(s.stats.n_modelled for s in fixed)
        else None,
        first_accepted=accepted / reached if reached else None,
        drafted=reached / rounds if rounds else None,
    )


def _by_rows(samples: Iterable[BenchSample], steady: bool) -> dict[int, list[tuple[int, float]]]:
    """(rounds, seconds) of each answer by rows; steady: of decodes that followed two of as many rows."""
    by_rows: dict[int, list[tuple[int, float]]] = {}
    for sample in samples:
        for n, timing in (sample.steady_seconds if steady else sample.round_seconds).items():
            by_rows.setdefault(n, []).append(timing)
    return by_rows


def _points(
    by_rows: Mapping[int, list[tuple[int, float]]], steady: Mapping[int, list[tuple[int, float]]]
) -> list[DecodeCost]:
    """t(n): of all decodes, or of the steady ones where the others take longer in the mean of all widths."""
    changing = {n: changed for n in steady if (changed := _changing(by_rows[n], steady[n])) is not None}
    pairs = [(changing[n], p.seconds) for p in _measured(steady) if (n := int(p.rows)) in changing]
    if not pairs or sum(more for more, _ in pairs) < _MATTERS * sum(seconds for _, seconds in pairs):
        return _measured(by_rows)
    return [replace(p, changing=changing.get(int(p.rows))) for p in _measured(steady)]


def _changing(every: Iterable[tuple[int, float]], steady: Iterable[tuple[int, float]]) -> float | None:
    """Mean seconds of the decodes that were not steady; None without any."""
    (n, seconds), (n_steady, of_steady) = (tuple(map(sum, zip(*t, strict=True))) for t in (every, steady))
    return (seconds - of_steady) / (n - n_steady) if n > n_steady else None


def _measured(by_rows: Mapping[int, Iterable[tuple[int, float]]]) -> list[DecodeCost]:
    """For each width the median of the answers' means, so that a disturbed answer counts little."""
    points = []
    for n, times in sorted(by_rows.items()):
        times = [(c, s) for c, s in times if c > 0]
        rounds = sum(c for c, _ in times)
        if rounds >= _MIN_ROUNDS or (n == 1 and rounds):
            points.append(DecodeCost(n, median(s / c for c, s in times), rounds))
    return points


def _means(samples: Iterable[BenchSample]) -> list[DecodeCost]:
    """For each configuration the mean rows and mean seconds of a decode."""
    sums: dict[str, list[float]] = {}
    for sample in samples:
        stats = sample.stats
        if stats.rounds and sample.step.config.draft_max is not None:
            total = sums.setdefault(sample.config, [0, 0, 0.0])
            total[0] += stats.rounds
            total[1] += stats.n_drafted + stats.n_forced
            total[2] += stats.verify_seconds
    means = [
        DecodeCost(1 + n / rounds, seconds / rounds, int(rounds)) for rounds, n, seconds in sums.values()
    ]
    return sorted(means, key=lambda p: p.rows)
