"""What decodes cost beyond a steady decode of their width: after loading, and after a change of the width.

llama.cpp keeps the graph of the last decode. On a GPU the first decode of another width builds it again, the
second one captures it, and later ones are steady; the first two of a width after loading cost still more.
Elsewhere a change costs nothing, and all decodes are alike. Which of the two it is, is measured. Knows no
clock and no curves.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum
from math import inf
from statistics import median

from specllama.core.policy.config import DEFAULT, PolicyConfig, is_number


class Phase(IntEnum):
    """The phase of a decode: one of the first two of its width since loading, else first, second or steady in
    a run of decodes of one width.
    """

    LOADING, FIRST, SECOND, STEADY = 0, 1, 2, 3


UNSTEADY = (Phase.LOADING, Phase.FIRST, Phase.SECOND)


class WidthChanges:
    """The runs of decodes of one width in a context, and the seconds that changes and loading cost.

    What they cost is the difference between the first two decodes of a run and the third one, so that the
    machine's speed at the moment plays no part. last: width of the last decode, 0 before the first one and
    after other decodes. phase: of the last decode. n_kept: decodes of one width in a row, averaged over the
    last runs; with a constant the worst replayed text on a device is 5 % slower. change: whether a change
    costs anything that counts, False while that is not known; loading: the same of the first decodes of a
    width. version: changes whenever the next decode may cost something else.
    """

    def __init__(self, config: PolicyConfig = DEFAULT) -> None:
        self.config = config
        self.last, self.phase, self.n_kept, self.version = 0, Phase.STEADY, config.kept_prior, 0
        self._n_after = 0  # decodes since the last interruption
        self.change = self.loading = False
        self._run: list[float] = []  # seconds of the first decodes of the last width, NaN for disturbed ones
        self._n_run = 0  # decodes of the last width in a row
        self._changed = False  # whether the run followed a decode of another width at once
        self._fresh = False  # whether the run began with the first decode of its width since loading
        self._seen: Counter[int] = Counter()  # decodes by width since loading
        self._excess = {phase: deque[float](maxlen=config.change_samples) for phase in UNSTEADY}
        self._more = dict.fromkeys(Phase, 0.0)  # seconds by phase
        self._t1 = inf  # seconds of the shortest third decode of a run

    def record(self, width: int, seconds: float) -> Phase:
        """Record a decode of so many rows; returns its phase."""
        if width != self.last or self._n_run <= Phase.STEADY or self._seen[width] <= Phase.STEADY:
            self.version += 1
        if width != self.last:
            if self._n_run:
                self.n_kept += self.config.kept_rate * (self._n_run - self.n_kept)
            self._changed = self.last > 0
            self.last, self._n_run, self._run, self._fresh = width, 0, [], not self._seen[width]
        self._n_run += 1
        self._n_after += 1
        self._seen[width] += 1
        if self._n_run < Phase.STEADY:
            self._run.append(seconds)
        elif self._n_run == Phase.STEADY:
            self._compare(seconds)
        seldom = self._seen[width] <= Phase.SECOND
        self.phase = Phase.LOADING if seldom else Phase(min(self._n_run, Phase.STEADY))
        return self.phase

    def _compare(self, steady: float) -> None:
        """Compare the first decodes of a run with its third one."""
        self._t1 = min(self._t1, steady)
        first, second = (took - steady for took in self._run)
        if self._fresh:
            self._observe(Phase.LOADING, first)
        elif self._changed and self._seen[self.last] > 2 * Phase.SECOND:  # loading took others
            self._observe(Phase.FIRST, first)
            self._observe(Phase.SECOND, second)

    def _observe(self, phase: Phase, excess: float) -> None:
        """The shortest of the first measurements counts, then their median."""
        c, samples = self.config, self._excess[phase]
        samples.append(excess)
        self._more[phase] = max(0.0, min(samples) if len(samples) < c.min_samples else median(samples))
        if len(samples) < c.min_changes:
            return
        if phase == Phase.LOADING:
            self.loading = self._counts(self.more(phase) - self.more(Phase.FIRST), self._t1)
        else:
            clear = all(self._is_clear(self._excess[p]) for p in (Phase.FIRST, Phase.SECOND) if self.more(p))
            self.change = clear and self._counts(self.whole, self._t1)

    def _counts(self, seconds: float, t1: float) -> bool:
        """Whether so many seconds count next to a decode of one row."""
        return seconds > max(self.config.change_share * t1, self.config.change_seconds)

    def _is_clear(self, samples: Collection[float]) -> bool:
        """Whether nearly all of the measurements have one sign, unlike noise, which would be taken for a cost
        of changes without this.
        """
        return sum(excess <= 0 for excess in samples) <= len(samples) // self.config.min_samples // 2

    def interrupt(self) -> None:
        """Other decodes were made in the context: the next one is the first of its run."""
        self.last, self._n_run, self._run, self._n_after = 0, 0, [], 0
        self.version += 1

    @property
    def unavoidable(self) -> float:
        """Seconds that the last decode took longer than a steady one whatever its width: as one of the first
        two after an interruption, which decoding without drafts has too.
        """
        if not self.change or self._n_after > Phase.SECOND:
            return 0.0
        return self.more(Phase(self._n_after)) if self._n_after else 0.0

    def alike(self, phase: Phase) -> bool:
        """Whether a decode of this phase takes as long as a steady one, as far as is known."""
        return phase == Phase.STEADY or not (self.loading if phase == Phase.LOADING else self.change)

    def more(self, phase: Phase) -> float:
        """Seconds that a decode of this phase takes longer than a steady one."""
        return self._more[phase]

    @property
    def whole(self) -> float:
        """Seconds that a change costs: its first and its second decode."""
        return self.more(Phase.FIRST) + self.more(Phase.SECOND)

    def next_cost(self, width: int) -> float:
        """Seconds that the next decode takes longer than a steady one if it has this width."""
        if not self.change:
            return 0.0
        if width != self.last:
            return self.more(Phase.FIRST)
        return self.more(Phase.SECOND) if self._n_run == 1 else 0.0

    @property
    def loading_known(self) -> bool:
        """Whether the cost of loading a width was measured."""
        return len(self._excess[Phase.LOADING]) >= self.config.min_changes

    @property
    def may_cost(self) -> bool:
        """Whether the first two decodes of the last run of three suggest that a change costs something."""
        if len(self._run) < Phase.SECOND or self._n_run < Phase.STEADY:
            return False
        return self._counts(sum(self._run) - Phase.SECOND * self._t1, self._t1)

    def plan(self, table: Sequence[float]) -> tuple[list[float], list[int]]:
        """By number of rows, the seconds of the next decode and its width, the cheapest one that is at least
        as wide. table: seconds of a steady decode by rows, from 0 on.

        What a change costs is spread over the decodes of a run, what loading a width costs over more.
        """
        c, last, seen = self.config, self.last, self._seen
        spread = max(2.0, self.n_kept)
        change, stay = self.whole / spread, self.more(Phase.SECOND) / spread if self._n_run == 1 else 0.0
        load = self.more(Phase.LOADING) / c.loading_spread if self.loading else 0.0
        best, width = inf, 0
        seconds, widths = [0.0] * len(table), [0] * len(table)
        for n in range(len(table) - 1, 0, -1):
            took = table[n] + (stay if n == last else change)
            if load and seen[n] < Phase.SECOND:
                took += load
            if took <= best:
                best, width = took, n
            seconds[n], widths[n] = best, width
        return seconds, widths

    def forget_runs(self) -> None:
        """The runs so far were made to measure, and say nothing about those to come."""
        self.n_kept = self.config.kept_prior

    def to_dict(self) -> dict[str, dict[str, float]]:
        """Plain data to be stored; empty where nothing costs anything."""
        if not (self.change or self.loading):
            return {}
        return {"changes": {phase.name.lower(): self.more(phase) for phase in UNSTEADY}}

    def restore(self, data: object, t1: float) -> bool:
        """Continue from what `to_dict` wrote in an earlier process; False, and nothing changes, where `data`
        is something else. t1: seconds of a decode of one row then.
        """
        stored = data.get("changes") if isinstance(data, Mapping) else None
        names = {phase: phase.name.lower() for phase in UNSTEADY}
        if not t1 or not isinstance(stored, Mapping):
            return False
        values = {phase: stored.get(name) for phase, name in names.items()}
        if not all(is_number(x, 0, self.config.decode_seconds[1]) for x in values.values()):
            return False
        self._more.update({phase: float(x) for phase, x in values.items() if x is not None})
        self.change = self._counts(self.whole, t1)
        self.loading = self._counts(self.more(Phase.LOADING) - self.more(Phase.FIRST), t1)
        return True
