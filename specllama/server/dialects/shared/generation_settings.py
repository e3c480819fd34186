"""The settings of a generation as llama-server shows them: in answers of /completion, in /props."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from specllama.core.sampling.params import SamplingParams
from specllama.server.dialects.shared.samplers import STEPS

NOT_SUPPORTED: Mapping[str, Any] = {
    "dynatemp_range": 0.0, "dynatemp_exponent": 1.0, "top_n_sigma": -1.0, "xtc_probability": 0.0,
    "xtc_threshold": 0.1, "typical_p": 1.0, "dry_multiplier": 0.0, "dry_base": 1.75, "dry_allowed_length": 2,
    "dry_penalty_last_n": 0, "mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "adaptive_target": -1.0,
    "adaptive_decay": 0.9, "n_keep": 0, "n_discard": 0, "min_keep": 0, "backend_sampling": False, "lora": [],
}  # fmt: skip
"""Settings of llama-server that are always off here."""
_RANDOM = -1  # as a seed


def generation_settings(
    params: SamplingParams, end_ids: Collection[int] = (), drafters: Collection[str] = (), **shown: Any
) -> dict[str, Any]:
    """params: as used. end_ids: tokens that end a text. drafters: names. shown: further fields, as the
    request has them.
    """
    biases = dict(params.logit_bias)
    if params.ignore_eos:
        biases |= dict.fromkeys(end_ids, -math.inf)
    return {
        "seed": _RANDOM if params.seed is None else params.seed,
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "repeat_last_n": params.repeat_last_n,
        "repeat_penalty": params.repeat_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "stop": list(params.stop),
        "max_tokens": params.max_tokens,
        "n_predict": params.max_tokens,
        "ignore_eos": params.ignore_eos,
        "logit_bias": [{"token": token, "bias": _number(bias)} for token, bias in biases.items()],
        "n_probs": params.logprobs or 0,
        "grammar": params.grammar or "",
        "json_schema": params.json_schema,
        "samplers": [name for name in STEPS if name != "infill" or params.infill_sampling],
        "speculative.types": ",".join(drafters) or "none",
        **NOT_SUPPORTED,
        **shown,
    }


def _number(bias: float) -> float | None:
    """JSON has no minus infinity."""
    return None if bias == -math.inf else bias
