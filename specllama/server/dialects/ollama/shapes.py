"""The JSON of /api/version, /api/tags, /api/show and /api/ps, as Ollama's clients read it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from specllama.client.model_info import LoadInfo
from specllama.core.sampling.params import PARAMETERS, SamplingParams
from specllama.json_types import JsonObject
from specllama.models.details import ModelDetails
from specllama.server.dialects.ollama.writer import timestamp

VERSION = "0.12.0"  # of Ollama, whose API this is; clients refuse versions that they think too old
_FOR_EVER = "9999-12-31T23:59:59Z"
_OPTIONS = tuple(
    name
    for name, parameter in PARAMETERS.items()
    if parameter.stored and parameter.is_number and name not in ("max_tokens", "seed")
)
"""The parameters of a model: those that say how tokens are chosen, not where an answer ends."""
_SIZES = ((1e9, 1, "B"), (1e6, 2, "M"), (1e3, 0, "K"), (1, 0, ""))  # unit, decimals, letter


def tag(name: str, facts: LoadInfo | ModelDetails | None, n_bytes: int, modified: float) -> JsonObject:
    """One model of /api/tags. n_bytes: of its file. modified: seconds since the epoch."""
    return {**_entry(name, facts, n_bytes), "modified_at": timestamp(modified)}


def running(name: str, info: LoadInfo, expires_at: float | None) -> JsonObject:
    """One model of /api/ps. expires_at: when it is unloaded, in seconds since the epoch, None for never."""
    return {
        **_entry(name, info, info.file_bytes),
        "expires_at": _FOR_EVER if expires_at is None else timestamp(expires_at),
        "size_vram": round(info.file_bytes * info.gpu_share),
        "context_length": info.n_ctx,
    }


def show(
    name: str, info: LoadInfo | ModelDetails, n_ctx: int, modified: float, sampling: Mapping[str, Any]
) -> JsonObject:
    """One model, loaded or not. modified: seconds since the epoch. sampling: the server's own defaults, which
    take precedence over the model's.

    n_ctx: of the server, not of the training: clients size their prompts by it.
    """
    family, n_params, _ = _facts(info)
    arch = family or "unknown"
    own = info.sampling if isinstance(info, LoadInfo) else SamplingParams()
    params = {name: sampling.get(name, getattr(own, name)) for name in _OPTIONS}
    return {
        "modified_at": timestamp(modified),
        "template": info.template,
        "parameters": "\n".join(f"{name} {value}" for name, value in params.items()),
        "details": details(info),
        "model_info": {
            "general.architecture": arch,
            "general.basename": info.target.name if isinstance(info, LoadInfo) else name,
            "general.parameter_count": n_params,
            f"{arch}.context_length": n_ctx,
            f"{arch}.vocab_size": info.n_vocab,
        },
        "capabilities": capabilities(info),
    }


def capabilities(info: LoadInfo | ModelDetails) -> list[str]:
    """Capabilities of a model. A chat template suffices for tools: without native support they are
    described in a system message. Infill support is known only after a load.
    """
    if isinstance(info, LoadInfo):
        works, reasons, fills = info.template_works, info.details.template_reasons, info.details.infill
    else:
        works, reasons, fills = bool(info.template), info.reasons, False
    more = {"tools": works, "insert": fills, "thinking": works and reasons}
    return ["completion", *(name for name, has in more.items() if has)]


def details(facts: LoadInfo | ModelDetails | None) -> JsonObject:
    """Short description of a model, loaded or not."""
    family, params, quant = _facts(facts)
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": _size(params) if params else "",
        "quantization_level": quant,
    }


def _facts(facts: LoadInfo | ModelDetails | None) -> tuple[str, int, str]:
    """(architecture, number of weights, quantisation)."""
    if isinstance(facts, LoadInfo):
        return facts.details.architecture, facts.target.params, facts.target.quant
    return (facts.architecture, facts.n_params, facts.quant) if facts is not None else ("", 0, "")


def _entry(name: str, facts: LoadInfo | ModelDetails | None, n_bytes: int) -> JsonObject:
    return {
        "name": name,
        "model": name,
        "size": n_bytes,
        "digest": hashlib.sha256(repr([name, n_bytes, *_facts(facts)]).encode()).hexdigest(),
        "details": details(facts),
    }


def _size(params: int) -> str:
    """A number of weights in Ollama's form: "134.52M"."""
    unit, decimals, letter = next(size for size in _SIZES if params >= size[0] or size[0] == 1)
    return f"{params / unit:.{decimals}f}{letter}"
