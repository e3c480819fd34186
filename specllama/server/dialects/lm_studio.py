"""LM Studio's list of models, from which its clients learn what a model is and can do."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from specllama.client.model_info import LoadInfo
from specllama.json_types import JsonObject
from specllama.server.dialects.shared.base import ApiRequest, ApiRoute, Dialect
from specllama.server.dialects.shared.writer import error_body
from specllama.server.models import ListedModel, listed


async def models(api: ApiRequest) -> Response:
    entries = [await _entry(api, one) for one in await api.models.listed() if one.on_disk]
    return JSONResponse({"object": "list", "data": entries})


async def model(api: ApiRequest) -> Response:
    name = api.path_params["name"]
    await api.find_model(name)
    return JSONResponse(await _entry(api, listed(api.service, name)))


async def _entry(api: ApiRequest, listing: ListedModel) -> JsonObject:
    facts = listing.info or await api.models.details(listing.model)
    quant = facts.target.quant if isinstance(facts, LoadInfo) else facts.quant
    chats = facts.template_works if isinstance(facts, LoadInfo) else bool(facts.template)
    kind = "vlm" if api.models.sees(listing.model, listing.info) else "llm"
    shown: JsonObject = {
        "id": listing.name,
        "object": "model",
        "type": "embeddings" if listing.embeds or getattr(facts, "embeds", False) else kind,
        "publisher": listing.model.id.partition("/")[0] if "/" in listing.model.id else "",
        "arch": facts.architecture,
        "compatibility_type": "gguf",
        "quantization": quant,
        "state": "loaded" if listing.loaded else "not-loaded",
        "max_context_length": facts.n_ctx_train,
        "capabilities": ["tool_use"] if chats else [],
    }
    if listing.loaded and isinstance(facts, LoadInfo):
        shown["loaded_context_length"] = facts.n_ctx
    return shown


DIALECT = Dialect(
    error_body,
    (
        ApiRoute("GET", "/api/v0/models", models, "The models on disk, as LM Studio lists them"),
        ApiRoute("GET", "/api/v0/models/{name:path}", model),
    ),
    prefixes=("/api/v0",),
)
