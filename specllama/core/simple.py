"""Deciding what to draft by measured time and learnt acceptance.

`Adaptive` keeps the mean time of a decode per width and the acceptance of the draft model, takes the length
with the best predicted rate and drafts nothing where none beats plain decoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from operator import mul

from specllama.core.drafting import Draft, Drafting, Round, Run, run_drafter
from specllama.core.ports import Drafter, Proposal

MOST = 16  # draft tokens of one sequence that are considered


class Adaptive(Drafting):
    """Drafts by measured time and acceptance; plain rounds first and then one in `every` tokens keep t(1)
    known.

    A width not yet seen is taken to cost what straight lines through the seen ones say, at first a tenth of
    t(1) per row. After a spell in which nothing seemed to pay, the best length is tried again, the spells
    doubling.
    """

    FIRST, EVERY, RETRY = 2, 128, 16

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        super().__init__(drafters)
        self.seconds: dict[int, float] = {}  # mean time of a round by rows
        self.step_seconds: float | None = None  # mean time of one drafted model token, catching up included
        self.acceptance, self.has_drafted = {"model": 0.6, "grammar": 0.95}, False
        self.plain_left, self.since_plain = self.FIRST, 0
        self.idle, self.wait = 0, self.RETRY

    def draft(self, rooms: Mapping[int, int]) -> dict[int, Draft]:
        if self.plain_left > 0 or not self.seconds:
            return {}
        drafts, active = {}, len(rooms)
        grammar, model = self.named("grammar"), self.named("model")
        runs = self._runs("grammar", rooms)
        sure = {seq for seq, run in runs.items() if run.proposals}
        runs |= self._runs("copy", {seq: room for seq, room in rooms.items() if seq not in sure})
        limits = {}
        for seq, room in rooms.items():
            run = runs.get(seq)
            given = run.proposals[: min(room, MOST)] if run else []
            likely = _cumulative(self._chance(p, seq in sure) for p in given)
            n_given, given_rate = self._best(likely, active, 0.0)
            n_model, model_rate = 0, 0.0
            if model is not None:
                chain = _cumulative([self.acceptance["model"]] * min(room, MOST))
                n_model, model_rate = self._best(chain, active, self._step_cost(active))
                if n_model == 0 and n_given == 0 and chain and self._retry():
                    n_model, model_rate = min(2, len(chain)), given_rate + 1
            if seq in sure and model is not None and n_given:
                limits[seq] = min(room, max(n_given, n_model))
            elif n_model and model_rate > given_rate:
                limits[seq] = n_model
            elif n_given and run is not None:
                drafts[seq] = Draft(run.tokens[:n_given], run.sources[:n_given])
        if model is not None and limits:
            for seq, run in run_drafter(model, limits, 0.0, forced=grammar).items():
                drafts[seq] = Draft(run.tokens, run.sources, run.n_discarded)
        return drafts

    def _runs(self, name: str, rooms: Mapping[int, int]) -> dict[int, Run]:
        """What a drafter that costs nothing offers."""
        drafter = self.named(name)
        limits = {seq: min(room, MOST) for seq, room in rooms.items()}
        return run_drafter(drafter, limits, 0.05) if drafter is not None else {}

    def _chance(self, proposal: Proposal, sure: bool) -> float:
        return self.acceptance["grammar"] if sure else proposal.confidence

    def _best(self, likely: Sequence[float], active: int, step: float) -> tuple[int, float]:
        """(length, tokens per second) of the prefix with the best predicted rate; length 0 where plain is
        best.
        """
        best, rate = 0, active / self._predict(active)
        total = 0.0
        for k, s in enumerate(likely, 1):
            total += s
            now = (active + total) / (self._predict(active + k) + k * step)
            if now > rate * 1.01:
                best, rate = k, now
        return best, rate

    def _predict(self, n: int) -> float:
        """Seconds of a round of n rows."""
        if n in self.seconds:
            return self.seconds[n]
        below = max((w for w in self.seconds if w < n), default=None)
        above = min((w for w in self.seconds if w > n), default=None)
        if below is not None and above is not None:
            part = (n - below) / (above - below)
            return self.seconds[below] + part * (self.seconds[above] - self.seconds[below])
        nearest = below if below is not None else above
        assert nearest is not None
        return self.seconds[nearest] * max(0.1, 1 + 0.1 * (n - nearest))

    def _step_cost(self, active: int) -> float:
        return self.step_seconds if self.step_seconds is not None else 0.1 * self._predict(active)

    def _retry(self) -> bool:
        self.idle += 1
        if self.idle < self.wait:
            return False
        self.idle, self.wait = 0, min(2 * self.wait, 256)
        return True

    def observe(self, done: Round) -> None:
        mean = self.seconds.get(done.n_rows)
        took = done.seconds - done.draft_seconds
        # A round far above its mean was disturbed from outside; it moves the mean no further than a slow one.
        # The very first rounds also pay for what is prepared only once, so that the quickest of them counts.
        if mean is None or (self.plain_left > 0 and took < mean):
            self.seconds[done.n_rows] = took
        elif self.plain_left == 0:
            self.seconds[done.n_rows] = mean + 0.2 * (min(took, 3 * mean) - mean)
        emitted = sum(o.n_emitted for o in done.outcomes)
        self.plain_left = max(0, self.plain_left - 1)
        self.since_plain = 0 if done.plain else self.since_plain + emitted
        if self.since_plain >= self.EVERY:
            self.plain_left = 1
        steps = max((len(o.draft.tokens) for o in done.outcomes if "model" in o.draft.sources), default=0)
        if steps:
            cost, mean = done.draft_seconds / steps, self.step_seconds
            if mean is not None:
                self.step_seconds = mean + 0.2 * (cost - mean)
            elif self.has_drafted:  # the first draft catches up with the prompt, which says nothing
                self.step_seconds = cost
            self.has_drafted = True
        for o in done.outcomes:
            for j, source in enumerate(o.draft.sources[: o.n_accept + 1]):
                if source in self.acceptance:
                    self.acceptance[source] += 0.05 * ((j < o.n_accept) - self.acceptance[source])
        active = len(done.outcomes)
        if steps and emitted * self._predict(active) > active * done.seconds:  # that paid: try again soon
            self.wait = self.RETRY


def _cumulative(chances: Iterable[float]) -> list[float]:
    return list(accumulate(chances, mul))
