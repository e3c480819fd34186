"""What llama-server's clients read beside the OpenAI routes: /props, /slots, /tokenize, /detokenize."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import specllama
from specllama.client import protocol as m

_MODALITIES = {"vision": False, "audio": False}
_NAMES = {
    "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "seed": "seed",
    "repeat_penalty": "repeat_penalty", "repeat_last_n": "repeat_last_n", "ignore_eos": "ignore_eos",
    "presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty",
    "max_tokens": "max_tokens", "stop": "stop",
}  # fmt: skip


def props(info: m.LoadInfo, names: Sequence[str], sampling: Mapping[str, Any]) -> dict[str, Any]:
    """info: what the engine says of the models. sampling: the server's own defaults over the model's."""
    params: dict[str, Any] = {name: getattr(info.sampling, ours) for name, ours in _NAMES.items()}
    params |= {name: sampling[ours] for name, ours in _NAMES.items() if ours in sampling}
    params["n_predict"] = params["max_tokens"]
    params["seed"] = -1 if params["seed"] is None else params["seed"]
    return {
        "default_generation_settings": {"n_ctx": info.n_ctx, "params": params},
        "total_slots": info.n_slots,
        "model_alias": ",".join(names),
        "model_path": info.target.path,
        "draft_model_path": info.draft.path if info.draft else None,
        "modalities": _MODALITIES,
        "chat_template": info.template,
        "bos_token": info.bos_token,
        "eos_token": info.eos_token,
        "build_info": f"specllama {specllama.__version__}",
        "speculation": {
            "speculation": info.speculation,
            "reason": info.off_reason,
            "drafters": list(info.drafters),
            "draft_max": info.draft_max,
        },
    }


def slots(found: m.Slots, info: m.LoadInfo) -> list[dict[str, Any]]:
    """A list of slots without prompts. found: what the engine says of them."""
    shown = []
    for slot in found.slots:
        busy = slot.id is not None
        one: dict[str, Any] = {
            "id": slot.slot,
            "id_task": slot.id if busy else -1,
            "n_ctx": info.n_ctx,
            "speculative": not info.off_reason and (not busy or slot.speculate),
            "is_processing": busy,
            "n_past": slot.n_past,
        }
        if busy:
            one["n_prompt_tokens"] = slot.n_prompt
            one["next_token"] = {"has_next_token": True, "n_decoded": slot.n_decoded}
            one["draft_n"], one["draft_n_accepted"] = slot.n_drafted, slot.n_accept
        shown.append(one)
    return shown


def tokens(found: m.Tokenized, with_pieces: bool) -> dict[str, Any]:
    """A piece that is no whole character is a list of its bytes."""
    if not with_pieces:
        return {"tokens": found.ids}
    pieces = (_piece(bytes(data)) for data in found.pieces)
    return {"tokens": [{"id": i, "piece": p} for i, p in zip(found.ids, pieces, strict=True)]}


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


def models(info: m.LoadInfo | None, names: Sequence[str], created: int, created_at: str) -> dict[str, Any]:
    """What both OpenAI's and Anthropic's clients take for a list of models, with llama-server's `meta`."""
    listed = [model(info, name, created, created_at) for name in names]
    ends = {"first_id": names[0], "last_id": names[-1]}
    return {"object": "list", "data": listed, "has_more": False, **ends}


def model(info: m.LoadInfo | None, name: str, created: int, created_at: str) -> dict[str, Any]:
    """One of them."""
    meta = {}
    if info is not None:
        meta = {
            "n_vocab": info.n_vocab,
            "n_ctx": info.n_ctx,
            "n_ctx_train": info.n_ctx_train,
            "n_params": info.target.params,
            "size": info.file_bytes,
        }
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "specllama",
        "type": "model",
        "display_name": info.target.name if info is not None else name,
        "created_at": created_at,
        "meta": meta,
    }
