"""What a profile has stored: the times of decodes and of a drafter's steps as it has read them, before a load
measured what they take now, and whether t(1) is still the one that was measured.
"""

from __future__ import annotations

from math import log

from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve
from specllama.worker.profile import CostCurves, ModelProfile, pairs_of


def costs_read(profile: ModelProfile) -> CostCurve:
    """Of the target's decodes at the start of a text."""
    return CostCurves.from_dict(profile.store.read(profile.key)["curves"]).at(0)


def steps_read(profile: ModelProfile, name: str) -> CostCurve:
    """Of the drafter of this name in the loaded pair."""
    (learnt,) = (p["learnt"] for p in pairs_of(profile.store.read(profile.key)) if p["pair"] == profile.pair)
    return CostCurve.from_dict(learnt["priced"][name]["steps"])  # type: ignore[index, call-overload]


def is_kept(now: float, before: float) -> bool:
    """Whether a stored t(1) was measured once: a later load corrects only what it shows to be impossible, as
    after a time at which the machine was busy.
    """
    return now == before or abs(log(now / before)) > DEFAULT.most_off
