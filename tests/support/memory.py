"""Settings of memory plans from keywords."""

from __future__ import annotations

from typing import Any

from specllama.config.load import ALL_LAYERS, AUTO, ModelSettings
from specllama.models.memory.cost import CostSettings
from specllama.models.memory.plan import PlanSettings

_OWN = ("n_slots", "n_outputs_max", "n_rs_seq", "n_spare", "swa_full", "devices")
_SHARED = ("n_slots", "n_outputs_max", "n_rs_seq", "devices", "n_batch", "n_ubatch", "flash_attn")


def cost_settings(**given: Any) -> CostSettings:
    """The settings with fields of CostSettings and of ModelSettings. n_gpu_layers: None for automatic, -1 for
    all.
    """
    own = {name: given.pop(name) for name in _OWN if name in given}
    layers = given.pop("n_gpu_layers", None)
    given["n_gpu_layers"] = {None: AUTO, -1: ALL_LAYERS}.get(layers, layers)
    return CostSettings(ModelSettings(path="", **given), **own)


def plan_settings(available: int, **given: Any) -> PlanSettings:
    """The settings with fields of both models; those that end with _draft are of the draft alone."""
    names = [name for name in given if name.endswith("_draft")]
    of_draft = {name.removesuffix("_draft"): given.pop(name) for name in names}
    shared = {name: given[name] for name in _SHARED if name in given}
    return PlanSettings(available, cost_settings(**given), cost_settings(**{**shared, **of_draft}))
