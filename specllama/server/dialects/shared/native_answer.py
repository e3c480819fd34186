"""One answer in the form of llama-server's native API; other APIs show it on request (`verbose`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from specllama.core.sampling.params import DEFAULT_STEPS, PARAMETERS, STEP_NAMES, SamplingParams
from specllama.json_types import JsonObject
from specllama.server.dialects.shared.figures import timings
from specllama.server.events import AccumulatedChoice, End

# The settings of a generation as llama-server shows them: in answers of /completion and in /props.


NOT_SUPPORTED: Mapping[str, Any] = {
    "dynatemp_range": 0.0, "dynatemp_exponent": 1.0, "top_n_sigma": -1.0, "xtc_probability": 0.0,
    "xtc_threshold": 0.1, "typical_p": 1.0, "dry_multiplier": 0.0, "dry_base": 1.75, "dry_allowed_length": 2,
    "dry_penalty_last_n": 0, "mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "adaptive_target": -1.0,
    "adaptive_decay": 0.9, "n_keep": 0, "n_discard": 0, "min_keep": 0, "backend_sampling": False, "lora": [],
}  # fmt: skip
"""Settings of llama-server that are always off here."""
_FORMS: Mapping[str, Callable[[SamplingParams], Mapping[str, Any]]] = {
    "seed": lambda p: {"seed": -1 if p.seed is None else p.seed},
    "max_tokens": lambda p: {"max_tokens": p.max_tokens, "n_predict": p.max_tokens},
    "stop": lambda p: {"stop": list(p.stop)},
    "logit_bias": lambda p: {"logit_bias": _shown_biases(p.logit_bias)},
    "infill_sampling": lambda p: {"samplers": _samplers(p.infill_sampling)},
    "logprobs": lambda p: {"n_probs": p.logprobs or 0},
    "grammar": lambda p: {"grammar": p.grammar or ""},
}
"""Parameters that llama-server shows under another name or in another form than ours."""


def generation_settings(
    params: SamplingParams, end_ids: Collection[int] = (), drafters: Collection[str] = (), **shown: Any
) -> JsonObject:
    """params: as used. end_ids: tokens that end a text. drafters: names. shown: further fields, as in the
    request.
    """
    settings: JsonObject = {**NOT_SUPPORTED}
    for name in (name for name in PARAMETERS if name != "n"):
        settings |= _FORMS[name](params) if name in _FORMS else {name: getattr(params, name)}
    if params.ignore_eos:
        settings["logit_bias"] = _shown_biases({**params.logit_bias, **dict.fromkeys(end_ids, -math.inf)})
    return settings | {"speculative.types": ",".join(drafters) or "none", **shown}


def _shown_biases(biases: Mapping[int, float]) -> list[JsonObject]:
    return [{"token": token, "bias": None if bias == -math.inf else bias} for token, bias in biases.items()]


def _samplers(infill: bool) -> list[str]:
    """The names of the steps. infill: whether that step is among them."""
    return [name for letter, name in STEP_NAMES.items() if letter in DEFAULT_STEPS or infill]


def native_answer(
    choice: AccumulatedChoice,
    model: str,
    end_ids: Collection[int] = (),
    drafters: Collection[str] = (),
    **shown: Any,
) -> JsonObject:
    """A finished choice as one object, without probabilities. end_ids, drafters, shown: for its
    `generation_settings`.
    """
    end = choice.end
    assert end is not None
    stats = end.stats
    return {
        "index": choice.start.index,
        "content": choice.text,
        "tokens": list(choice.ids),
        "id_slot": end.slot,
        "stop": True,
        "model": model,
        "tokens_predicted": stats.n_predict,
        "tokens_evaluated": choice.start.n_prompt,
        "generation_settings": generation_settings(choice.start.params, end_ids, drafters, **shown),
        "prompt": end.prompt,
        "has_new_line": "\n" in choice.text,
        "truncated": end.reason == "context",
        "stop_type": _stop_type(end),
        "stopping_word": end.stop_string or "",
        "tokens_cached": max(0, choice.start.n_prompt + stats.n_predict - 1),
        "timings": timings([stats]),
    }


def _stop_type(end: End) -> str:
    if end.reason != "stop":
        return "limit"
    return "eos" if end.stop_string is None else "word"
