"""What is learnt about a loaded pair over all requests: how often drafted tokens are right, what using each
priced drafter costs and gains, what drafting may still lose.

Knows drafters by their attributes only; no models, no clock and no files.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from specllama.core.interfaces import Alternative
from specllama.core.policy.acceptance_table import AcceptanceTable
from specllama.core.policy.budget import SpeculationBudget
from specllama.core.policy.candidates import CandidateDraft
from specllama.core.policy.config import DEFAULT, PolicyConfig, is_number
from specllama.core.policy.cost_curve import CostCurve, StepCosts

ALONE, UNLIKELY_COPY, LIKELY_COPY = 0, 1, 2  # what a priced drafter competes with: no draft, or a copy
_MAX_KEPT_BINS = 64  # most bins of a stored table whose drafter is not loaded


@dataclass(slots=True)
class PairGain:
    """The average gain from using a priced drafter over all requests, and the average time that it adds to a
    round, in t(1), by what it competed with (ALONE, UNLIKELY_COPY, LIKELY_COPY); None: not used yet. limits:
    range of stored gains. max_time: largest stored time. n_unused: rounds of all requests since it was used,
    counted while it cannot gain.
    """

    limits: tuple[float, float] = DEFAULT.stored_gain
    max_time: float = DEFAULT.stored_added_time
    gains: list[float | None] = field(default_factory=lambda: [None, None, None])
    times: list[float | None] = field(default_factory=lambda: [None, None, None])
    n_unused: int = 0

    def restore(self, gains: object, times: object = None) -> None:
        """Continue from stored lists; what is something else is ignored."""
        self.gains = _averages(gains, *self.limits) or self.gains
        self.times = _averages(times, 0.0, self.max_time) or self.times


def _averages(data: object, low: float, high: float) -> list[float | None] | None:
    """The stored averages, limited to the range; None where the data is something else."""
    if not isinstance(data, list) or len(data) != LIKELY_COPY + 1:
        return None
    if not all(x is None or is_number(x) for x in data):
        return None
    return [None if x is None else max(low, min(high, float(x))) for x in data]


class PricedState:
    """What is learnt about a drafter whose tokens cost decodes. steps: times of its steps. gain: the gain
    from using it. next_token: acceptance of its token after an accepted one, by the bin of that one. trial:
    what trying it in place of a drafter that is expected to be better may lose, in t(1), at most
    `trial_allowance`. n_waited: rounds with another drafter since it was used. n_trial: rounds that are left
    of a trial.
    """

    __slots__ = ("config", "gain", "n_trial", "n_waited", "next_token", "steps", "trial")

    def __init__(self, config: PolicyConfig = DEFAULT) -> None:
        c = self.config = config
        self.steps, self.gain = StepCosts(c), PairGain(c.stored_gain, c.stored_added_time)
        self.next_token = AcceptanceTable(c.next_chances, c.prior_weight, c.forget)
        self.trial, self.n_trial, self.n_waited = c.trial_allowance, 0, 0

    def next_chance(self, bin_: int) -> float:
        """The chance of a token after an accepted one of this bin."""
        return self.next_token.chances[bin_ % len(self.config.chances)]

    @property
    def out_of_date(self) -> bool:
        """Whether it was not used for some time, or never."""
        return self.n_waited >= self.config.trial_wait or self.gain.times == [None] * len(self.gain.times)

    def refill_trial(self, seconds: float, t1: float) -> None:
        """A round took so long: trials may lose a share of it. t1: seconds of a plain decode."""
        c = self.config
        self.trial = min(c.trial_allowance, self.trial + c.trial_share * seconds / t1)

    def try_again(self, catch_up: float, loss: float) -> bool:
        """Whether a trial goes on or begins with this round, which may then lose so much. catch_up: its cost,
        loss: of one round, in t(1).
        """
        c = self.config
        if self.n_trial <= 0 or self.trial <= 0:
            needed = min(catch_up + c.trial_rounds * max(0.0, loss), c.trial_allowance)
            self.n_trial = c.trial_rounds if self.out_of_date and self.trial >= needed else 0
        if not self.n_trial:
            return False
        self.n_trial -= 1
        self.trial -= catch_up + loss
        return True

    def to_dict(self) -> dict[str, object]:
        """Plain data to be stored."""
        return {
            "after": self.next_token.to_dict(),
            "steps": self.steps.curve.to_dict(),
            "gains": list(self.gain.gains),
            "times": list(self.gain.times),
            "trial": self.trial,
            "unused": self.gain.n_unused,
        }

    def restore(self, data: object) -> None:
        """Continue from what `to_dict` wrote; invalid parts are ignored."""
        if not isinstance(data, Mapping):
            return
        self.next_token.restore(data.get("after"))
        self.steps.curve = CostCurve.from_dict(data.get("steps"), self.config)
        self.gain.restore(data.get("gains"), data.get("times"))
        if is_number(trial := data.get("trial")):
            self.trial = max(-self.config.trial_allowance, min(self.config.trial_allowance, float(trial)))
        if is_number(unused := data.get("unused"), 0, self.config.no_gain_wait):
            self.gain.n_unused = int(unused)


class LearntFrom(Protocol):
    """The attributes of a drafter that decide how its acceptance is learnt; see `interfaces.Drafter`."""

    @property
    def name(self) -> str: ...
    @property
    def priced(self) -> bool: ...
    @property
    def forces(self) -> bool: ...
    @property
    def prior(self) -> Sequence[float] | None: ...
    @property
    def n_positions(self) -> int: ...


class PairState:
    """The state of a loaded pair. tables: acceptance by drafter name, in bins of its confidence, repeated for
    each position in a draft that is learnt apart. seconds: the same of second candidates, and in the last bin
    of the tokens that follow them. priced: by name, what else is learnt about a drafter whose tokens cost
    decodes. budget: what drafting may lose. What is stored about drafters that are not loaded is kept.
    """

    def __init__(self, drafters: Iterable[LearntFrom] = (), config: PolicyConfig = DEFAULT) -> None:
        self.config = config
        drafters = list(drafters)
        self.tables = {d.name: self._table(d) for d in drafters}
        self.seconds = {d.name: self._seconds_table(d) for d in drafters if not d.forces}
        self._last_position = {d.name: d.n_positions - 1 for d in drafters}
        self.priced = {d.name: PricedState(config) for d in drafters if d.priced}
        self.budget = SpeculationBudget(config)
        self._kept: dict[str, object] = {}
        self._kept_seconds: dict[str, object] = {}

    def _table(self, drafter: LearntFrom) -> AcceptanceTable:
        c = self.config
        if drafter.prior is not None:
            return self._weighted(drafter.prior)
        if drafter.priced:
            return self._weighted(c.chances * drafter.n_positions)
        return AcceptanceTable(c.chances, c.free_prior_weight, c.free_forget)

    def _seconds_table(self, drafter: LearntFrom) -> AcceptanceTable:
        c = self.config
        priors = (*(min(p, c.max_second_chance) for p in c.chances), c.chance_after_second)
        if drafter.priced:
            return self._weighted(priors)
        return AcceptanceTable(priors, c.free_prior_weight, c.free_forget)

    def _weighted(self, priors: Sequence[float]) -> AcceptanceTable:
        c = self.config
        return AcceptanceTable(priors, c.prior_weight, c.forget)

    def bin_of(self, name: str, confidence: float, n_before: int) -> int:
        """The bin of a token in the drafter's table. n_before: tokens before it in the draft."""
        position = min(n_before, self._last_position[name])
        return position * len(self.config.chances) + bisect(self.config.confidence_edges, confidence)

    def add_branch(self, draft: CandidateDraft, at: int, name: str, other: Alternative) -> None:
        """Add a second candidate in place of token `at` of the draft, which the drafter so named knows."""
        bin_, chances = bisect(self.config.confidence_edges, other.confidence), self.seconds[name].chances
        after = [chances[-1]] * (len(other.tokens) - 1)
        draft.add_branch(at, other.tokens, name, bin_, [chances[bin_], *after])

    def observe_seconds(self, draft: CandidateDraft, tokens: Sequence[int]) -> None:
        """Compare the second candidates of a draft, verified or not, with the committed tokens."""
        n_right = common_length(draft.tokens, tokens)
        for branch in draft.branches:
            if branch.at > n_right or branch.at >= len(tokens):
                continue
            table = self.seconds[branch.source]
            right = common_length(branch.tokens, tokens[branch.at :])
            table.observe(branch.bin, right > 0)
            if right:
                n_known = min(right + 1, len(branch.tokens), len(tokens) - branch.at)
                for i in range(1, n_known):
                    table.observe(len(table.chances) - 1, i < right)

    def observe_model_free(self, draft: CandidateDraft, tokens: Sequence[int]) -> None:
        """Compare a model-free draft, verified or not, with the committed tokens."""
        n, right = 0, True
        for drafted, token in zip(draft.tokens, tokens, strict=False):
            n += 1
            if drafted != token:
                right = False
                break
        if n:
            self.tables[draft.sources[0]].observe_run(draft.bins[:n], right)

    def observe_model(self, draft: CandidateDraft, tokens: Sequence[int], model: str) -> None:
        """Compare the draft of the priced drafter named `model`, which may contain forced tokens, with the
        committed tokens.
        """
        before, next_token = None, self.priced[model].next_token
        for drafted, token, source, bin_ in zip(
            draft.tokens, tokens, draft.sources, draft.bins, strict=False
        ):
            if source == model:
                self.tables[source].observe(bin_, drafted == token)
                if before is not None:
                    next_token.observe(before % len(self.config.chances), drafted == token)
            if drafted != token:
                return
            before = bin_ if source == model else None

    def to_dict(self) -> dict[str, object]:
        """Plain data to be stored."""
        return {
            "tables": self._kept | {name: table.to_dict() for name, table in self.tables.items()},
            "seconds": self._kept_seconds | {name: table.to_dict() for name, table in self.seconds.items()},
            "priced": {name: state.to_dict() for name, state in self.priced.items()},
            "credit": self.budget.stored_credit,
        }

    def restore(self, data: object) -> None:
        """Continue from what `to_dict` wrote; invalid parts are ignored."""
        if not isinstance(data, Mapping):
            return
        self._kept = _restored(self.tables, data.get("tables"))
        self._kept_seconds = _restored(self.seconds, data.get("seconds"))
        states = data.get("priced")
        for name, state in states.items() if isinstance(states, Mapping) else ():
            if name in self.priced or isinstance(state, Mapping):
                self.priced.setdefault(name, PricedState(self.config)).restore(state)
        self.budget.restore(data.get("credit"))


def _restored(tables: Mapping[str, AcceptanceTable], stored: object) -> dict[str, object]:
    """Restore the tables from stored ones; returns those of drafters that are not loaded."""
    known = stored if isinstance(stored, Mapping) else {}
    for name, table in tables.items():
        table.restore(known.get(name))
    return {name: table for name, table in known.items() if name not in tables and _is_table(table)}


def common_length(draft: Sequence[int], tokens: Sequence[int]) -> int:
    """How many of the drafted tokens, from the first on, are the committed ones."""
    n = 0
    for drafted, token in zip(draft, tokens, strict=False):
        if drafted != token:
            break
        n += 1
    return n


def _is_table(data: object) -> bool:
    """Whether this is a stored acceptance table."""
    right = data.get("right") if isinstance(data, Mapping) else None
    n = len(right) if isinstance(right, list) else 0
    return 0 < n <= _MAX_KEPT_BINS and AcceptanceTable([0.5] * n, forget=DEFAULT.free_forget).restore(data)
