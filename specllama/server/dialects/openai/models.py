"""/v1/models: a list that both OpenAI's and Anthropic's clients read, with llama-server's `meta` and
`status`, and the context size under the names used by vLLM's and OpenRouter's clients.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from specllama.server.models import ListedModel


def model_list(models: Sequence[ListedModel]) -> dict[str, Any]:
    """All models, at least one."""
    listed = [model_entry(model) for model in models]
    ends = {"first_id": models[0].name, "last_id": models[-1].name}
    return {"object": "list", "data": listed, "has_more": False, **ends}


def model_entry(model: ListedModel) -> dict[str, Any]:
    """One model. `status`: whether it is in memory; during a load, the part being loaded and its
    progress; for a model not on disk, the command that downloads it, and the progress of a download.
    """
    info, created = model.info, model.created
    meta: dict[str, Any] = {}
    if info is not None:
        meta = {
            "n_vocab": info.n_vocab,
            "n_ctx": info.n_ctx,
            "n_ctx_train": info.n_ctx_train,
            "n_params": info.target.params,
            "size": info.file_bytes,
        }
    elif model.on_disk:
        meta = {"size": model.model.n_bytes}
    status: dict[str, Any] = {"value": model.state or "not downloaded"}
    if model.loading is not None:
        status["loading"], status["progress"] = model.loading[0], round(model.loading[1], 4)
    if not model.on_disk:
        status["pull"] = f"specllama pull {model.model.pull}"
    if model.pull is not None:
        status["download"] = asdict(model.pull)
    context = {} if info is None else {"max_model_len": info.n_ctx, "context_length": info.n_ctx}
    return {
        "id": model.name,
        "object": "model",
        "created": created,
        "owned_by": "specllama",
        "type": "model",
        "display_name": info.target.name if info is not None else model.name,
        "created_at": datetime.datetime.fromtimestamp(created, datetime.UTC).isoformat(),
        "status": status,
        "meta": meta,
        **context,
    }
