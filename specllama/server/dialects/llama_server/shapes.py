"""The JSON of /props, /slots and /tokenize, as llama-server's clients read it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import specllama
from specllama.client.model_info import LoadInfo, ModelInfo
from specllama.client.protocol import Slots, Tokenized
from specllama.core.sampling.params import PARAMETERS, Parameter, SamplingParams
from specllama.json_types import JsonObject
from specllama.server.dialects.shared.figures import generation_settings

_MODALITIES = {"vision": False, "audio": False}
_STORED = tuple(p for p in PARAMETERS.values() if p.has_plain_value)
_PARAMS = tuple(p.name for p in _STORED)
_KINDS = {int: "integer", float: "number", bool: "boolean", str: "text"}


def props(
    info: LoadInfo,
    names: Sequence[str],
    sampling: Mapping[str, Any],
    decode_seconds: Sequence[tuple[int, float]] = (),
    sleeps: bool = False,
) -> JsonObject:
    """info: of the loaded models. names: of the model for clients. sampling: the server's own defaults, which
    take precedence over the model's. decode_seconds: see protocol.Slots. sleeps: the model is unloaded.
    """
    defaults = {name: sampling.get(name, getattr(info.sampling, name)) for name in _PARAMS}
    params = generation_settings(SamplingParams.merge(defaults), info.end_ids, info.drafters)
    return {
        "default_generation_settings": {"n_ctx": info.n_ctx, "params": params},
        "sampling_parameters": [_described(entry, defaults[entry.name]) for entry in _STORED],
        "total_slots": info.n_slots,
        "model_alias": ",".join(names),
        "model_path": os.path.abspath(info.target.path),
        "draft_model_path": os.path.abspath(info.draft.path) if info.draft else None,
        "modalities": _MODALITIES,
        "chat_template": info.template,
        "chat_template_caps": _capabilities(info),
        "model_ftype": info.target.quant,
        "endpoint_slots": True,
        "endpoint_props": False,
        "endpoint_metrics": True,
        "bos_token": info.bos_token,
        "eos_token": info.eos_token,
        "build_info": f"specllama {specllama.__version__}",
        "speculation": _speculation(info, decode_seconds),
        "machine": _machine(info),
        "target": _model(info.target),
        "notes": [str(note) for note in info.notes],
        "is_sleeping": sleeps,
    }


def _speculation(info: LoadInfo, decode_seconds: Sequence[tuple[int, float]]) -> JsonObject:
    return {
        "speculation": info.speculation,
        "reason": info.off_reason,
        "drafters": list(info.drafters),
        "draft_max": info.draft_max,
        "longest_draft": info.longest_draft,
        "draft": _model(info.draft) if info.draft else None,
        "head": info.head,
        "head_in_target": info.head_in_target,
        "vocabulary": info.verdict,
        "memory": info.memory,
        "decode_seconds": [list(time) for time in decode_seconds],
    }


def _machine(info: LoadInfo) -> JsonObject:
    details = info.details
    return {
        "n_threads": info.n_threads,
        "n_gpu_layers": info.target.n_gpu_layers,
        "n_layer": details.n_layer,
        "host_bytes": details.host_bytes,
        "device_bytes": details.device_bytes,
        "gpus": [
            {"name": gpu.description or gpu.name, "free": gpu.free, "total": gpu.total}
            for gpu in details.gpus
        ],
    }


def _described(entry: Parameter, default: Any) -> JsonObject:
    described: JsonObject = {
        "name": entry.name,
        "type": _KINDS[entry.kind],
        "many": entry.many,
        "description": entry.help.format(default=default),
    }
    if entry.is_number:
        described["minimum"], described["maximum"] = entry.low, entry.high
    return described


def _model(model: ModelInfo) -> JsonObject:
    return {"name": model.name, "quant": model.quant, "n_params": model.params}


def _capabilities(info: LoadInfo) -> dict[str, bool]:
    """Features of conversations. Templates without tool support get tools and calls as text, so a working
    template suffices.
    """
    works = info.template_works
    return {
        "supports_string_content": works,
        "supports_typed_content": works,
        "supports_system_role": works,
        "supports_tools": works,
        "supports_tool_calls": works,
        "supports_parallel_tool_calls": works,
        "supports_object_arguments": works,
        "supports_preserve_reasoning": works and info.details.template_reasons,
        "supports_reasoning_effort": "reasoning_effort" in info.template,
    }


def slots(state: Slots, info: LoadInfo, owner: str) -> list[JsonObject]:
    """The slots, without their prompts. state: the engine's answer to GetSlots. owner: of the request;
    for a slot last used by another owner, only whether it is busy is shown.
    """
    shown = []
    for slot in state.slots:
        busy, own = slot.id is not None, slot.owner == owner
        one: JsonObject = {
            "id": slot.slot,
            "id_task": slot.id if slot.id is not None and own else -1,
            "n_ctx": info.n_ctx,
            "speculative": not info.off_reason and (slot.speculate or not busy or not own),
            "is_processing": busy,
            "n_past": slot.n_past if own else 0,
        }
        if busy and own:
            one["n_prompt_tokens"] = slot.n_prompt
            one["n_prompt_tokens_processed"] = min(slot.n_past, slot.n_prompt)
            one["next_token"] = [{"has_next_token": True, "n_decoded": slot.n_decoded}]
            one["draft_n"], one["draft_n_accepted"] = slot.n_drafted, slot.n_accept
        shown.append(one)
    return shown


def tokens(part: Tokenized, with_pieces: bool) -> bytes:
    """Items of a JSON array: ids, with their texts if with_pieces; a text that is not valid UTF-8 becomes a
    list of bytes.

    part: a part of the engine's answer to Tokenize.
    """
    shown: list[Any] = part.ids
    if with_pieces:
        pieces = (_piece(piece.encode("latin-1")) for piece in part.pieces)
        shown = [{"id": i, "piece": p} for i, p in zip(part.ids, pieces, strict=True)]
    return _json(shown)[1:-1]


def inside_string(text: str) -> bytes:
    """A part of a JSON string."""
    return _json(text)[1:-1]


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
