"""The times of a drafter's steps as a profile has read them, before a load measured what they take now."""

from __future__ import annotations

from specllama.core.policy.cost_curve import CostCurve
from specllama.worker.profile import ModelProfile, pairs_of


def steps_read(profile: ModelProfile, name: str) -> CostCurve:
    """Of the drafter of this name in the loaded pair."""
    (learnt,) = (p["learnt"] for p in pairs_of(profile.store.read(profile.key)) if p["pair"] == profile.pair)
    return CostCurve.from_dict(learnt["priced"][name]["steps"])  # type: ignore[index, call-overload]
