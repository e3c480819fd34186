"""/v1/models: a list that both OpenAI's and Anthropic's clients read, with llama-server's `meta` and
`status`, and the context size under the names used by vLLM's and OpenRouter's clients.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence

from specllama.json_types import JsonObject
from specllama.server.models import ListedModel

Fits = Callable[[ListedModel], bool | None]


def model_list(models: Sequence[ListedModel], fits: Fits = lambda _: None) -> JsonObject:
    """All models, at least one. fits: ModelPool's."""
    entries = [model_entry(model) for model in models]
    for model, entry in zip(models, entries, strict=True):
        if (room := fits(model)) is not None:
            entry["fits"] = room
    return {
        "object": "list",
        "data": entries,
        "has_more": False,
        "first_id": models[0].name,
        "last_id": models[-1].name,
    }


def model_entry(model: ListedModel) -> JsonObject:
    """One model. `status`: whether it is in memory; during a load, the part being loaded and its
    progress; for a model not on disk, the command that downloads it, and the progress of a download.
    """
    info, created = model.info, model.created
    entry: JsonObject = {
        "id": model.name,
        "object": "model",
        "created": created,
        "owned_by": "specllama",
        "type": "model",
        "display_name": info.target.name if info is not None else model.name,
        "created_at": datetime.datetime.fromtimestamp(created, datetime.UTC).isoformat(),
        "status": _status(model),
        "meta": _meta(model),
    }
    if info is not None:
        entry["max_model_len"] = entry["context_length"] = info.n_ctx
    return entry


def _status(model: ListedModel) -> JsonObject:
    status: JsonObject = {"value": model.state or "not downloaded"}
    if model.loading is not None:
        status["loading"], status["progress"] = model.loading[0], round(model.loading[1], 4)
    if not model.on_disk:
        status["pull"] = f"specllama pull {model.model.pull}"
    if (pull := model.pull) is not None:
        status["download"] = {
            "done": pull.done, "total": pull.total, "error": pull.error, "running": pull.running,
        }  # fmt: skip
    return status


def _meta(model: ListedModel) -> JsonObject:
    info = model.info
    if info is None:
        if model.on_disk:
            return {"size": model.model.n_bytes}
        about: JsonObject = {"about_size": model.model.guessed_bytes} if model.model.guessed_bytes else {}
        return about | {"is_head": True} if model.model.is_head else about
    return {
        "n_vocab": info.n_vocab,
        "n_ctx": info.n_ctx,
        "n_ctx_train": info.n_ctx_train,
        "n_params": info.target.params,
        "size": info.file_bytes,
    }
