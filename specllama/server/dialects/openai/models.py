"""/v1/models: a list that OpenAI's and Anthropic's clients both read, with llama-server's `meta`."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from specllama.client.model_info import LoadInfo


def model_list(info: LoadInfo | None, names: Sequence[str], created: int) -> dict[str, Any]:
    """All models. info: of the loaded model, None before that. created: seconds since the epoch."""
    listed = [model_entry(info, name, created) for name in names]
    ends = {"first_id": names[0], "last_id": names[-1]}
    return {"object": "list", "data": listed, "has_more": False, **ends}


def model_entry(info: LoadInfo | None, name: str, created: int) -> dict[str, Any]:
    """One model."""
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
        "created_at": datetime.datetime.fromtimestamp(created, datetime.UTC).isoformat(),
        "meta": meta,
    }
