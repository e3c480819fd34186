"""The drafters whose tokens cost decodes, draft models and heads: what they have to evaluate first, and which
of several drafts for a sequence in a round.

They are compared by the speed that their earlier rounds gave. One that is not expected to be the best is
tried now and then, since what is known about it may be out of date; what trials may lose is limited, and
grows with the time of decoding. Without trials, replays with two drafters are 13 % slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from specllama.core.interfaces import CachingDrafter, Drafter
from specllama.core.policy.acceptance import PricedState
from specllama.core.policy.config import DEFAULT, PolicyConfig
from specllama.core.policy.cost_curve import StepCosts
from specllama.core.policy.model_draft import DraftGate


class CatchUp(NamedTuple):
    """What a drafter evaluates for its first token. n_pending: ids, 0 where it must not be used. seconds:
    their cost beyond one step. restart: number of last ids to restart the cache with; None: no restart.
    """

    n_pending: int
    seconds: float = 0.0
    restart: int | None = None


NO_CATCH_UP = CatchUp(1)


class PricedDrafter:
    """A drafter whose tokens cost decodes. caching: the same drafter if it has a cache, else None. is_head:
    whether it reads the target's hidden states.
    """

    __slots__ = ("caching", "drafter", "is_head", "name")

    def __init__(self, drafter: Drafter) -> None:
        self.drafter, self.name = drafter, drafter.name
        self.caching = drafter if isinstance(drafter, CachingDrafter) else None
        self.is_head = drafter.reads_features

    def catch_up(
        self,
        seq: int,
        steps: StepCosts,
        t1: float,
        credit: float,
        seconds: float,
        config: PolicyConfig = DEFAULT,
        *,
        alone: bool = True,
    ) -> CatchUp:
        """What it evaluates first. t1: seconds of a plain decode. credit: what may be lost, in t1. seconds:
        what this round can spend on drafting. alone: whether no other sequence waits for this round.

        Of a prompt that is missing from its cache, only as much of the end as half of the credit and this
        round's budget can pay for; all of it once the gains of drafting do. A head evaluates less, as it
        needs less.
        """
        if self.caching is None:
            return NO_CATCH_UP
        state, step, c = self.caching.cache_state(seq), steps.predict, config
        one, credit, n = step(1, t1), credit * t1, sum(state)
        stall = inf if alone else c.max_stall
        if state.n_skipped and step(n, t1) < min(credit - c.allowance * t1, stall):
            return CatchUp(n, 0.0, n)
        most = min(credit / 2, seconds, stall)
        n, least = state.n_pending, c.min_tail
        if self.is_head:
            most, least = one + c.head_catch_up * t1, c.head_min_tail
        if (state.n_held and step(n, t1) <= stall) or n <= least or step(n, t1) <= most:
            return CatchUp(n, step(n, t1) - one)
        while n >= least and step(n, t1) > most:
            n //= 2
        if self.is_head:
            n = max(n, least)
        return CatchUp(n, step(n, t1) - one, n) if n >= least else CatchUp(0)

    def restart(self, seq: int, catch_up: CatchUp) -> None:
        """Restart the sequence's cache if catching up requires it."""
        if catch_up.restart is not None and self.caching is not None:
            self.caching.restart_from_tail(seq, catch_up.restart)


class DraftOption(NamedTuple):
    """A priced drafter that could draft for a sequence. affordable: whether this round can pay for it."""

    priced: PricedDrafter
    gate: DraftGate
    state: PricedState
    catch_up: CatchUp
    affordable: bool


def choose_drafter(options: Sequence[DraftOption], kind: int, t1: float, plain: float) -> DraftOption | None:
    """Which drafter to use for a sequence in this round; None: none of them. kind: see `gate_kind`. t1:
    seconds of a plain decode. plain: time of the round without them, by sequence, in t(1).
    """
    if len(options) == 1:
        (option,) = options
        return option if option.gate.should_draft(kind, option.catch_up.seconds / t1) else None
    # The best drafter gives the most tokens per second, not the most gain per round: time that a draft adds
    # has to give as much as the best one's rounds do.
    added = [option.gate.times[kind] or 0.0 for option in options]
    pace = max(0.0, *(o.gate.gains[kind] / (plain + t) for o, t in zip(options, added, strict=True)))
    values = {o.priced.name: o.gate.gains[kind] - pace * t for o, t in zip(options, added, strict=True)}
    best = max(options, key=lambda o: values[o.priced.name])
    pays = values[best.priced.name] > 0
    chosen, value = None, -inf
    usable = sorted((o for o in options if o.affordable), key=lambda o: o.catch_up.seconds)
    for option in usable:
        own = values[option.priced.name]
        if own <= value or (pays and own <= 0):
            continue
        other = option.gate.gains[kind] - own + max(0.0, value)
        if option.gate.should_draft(kind, option.catch_up.seconds / t1, other):
            chosen, value = option, max(0.0, own)
    if chosen is None:
        return None
    for option in usable:
        loss = value - values[option.priced.name]
        if option is not chosen and value > 0 and option.state.try_again(option.catch_up.seconds / t1, loss):
            chosen = option
            break
    else:
        chosen.state.n_trial = 0
    for option in options:
        option.state.n_waited = 0 if option is chosen else option.state.n_waited + 1
    return chosen
