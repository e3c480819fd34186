"""The bodies of llama-server's /tokenize, /detokenize and /apply-template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field
from starlette.responses import Response

from specllama.server.dialects.shared.base import ApiRequest, ApiRoute, Endpoint
from specllama.server.dialects.shared.fields import AtMost, RequestBody
from specllama.server.dialects.shared.template_input import TemplateInput
from specllama.server.http.body import MAX_VALUES
from specllama.server.http.errors import UnsupportedError

ModelName = Annotated[str, Field(max_length=512)]


class TokenizeRequest(RequestBody):
    """with_pieces: each token's text next to its id."""

    model: ModelName | None = None
    content: str
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(RequestBody):
    """tokens: ids of the model's vocabulary."""

    model: ModelName | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], AtMost(MAX_VALUES)]


class TemplateRequest(TemplateInput):
    """The conversation of /apply-template."""


# Routes that llama-server has and this server does not: clients get an error that says so.


_NO_EMBEDDINGS = "this server generates text; it makes no embeddings"
_NO_RANKING = "this server generates text; it ranks no documents"
_NO_SOUND = "this server transcribes no sound"
_NO_ADAPTERS = "LoRA adapters are loaded at the start (--lora), and are the same for all requests"
_REASONS: Mapping[tuple[str, str], str] = {
    ("POST", "/embedding"): _NO_EMBEDDINGS,
    ("POST", "/embeddings"): _NO_EMBEDDINGS,
    ("POST", "/v1/embeddings"): _NO_EMBEDDINGS,
    ("POST", "/rerank"): _NO_RANKING,
    ("POST", "/reranking"): _NO_RANKING,
    ("POST", "/v1/rerank"): _NO_RANKING,
    ("POST", "/v1/reranking"): _NO_RANKING,
    ("POST", "/audio/transcriptions"): _NO_SOUND,
    ("POST", "/v1/audio/transcriptions"): _NO_SOUND,
    ("POST", "/props"): "settings cannot be changed while the server runs; its flags set them",
    ("GET", "/lora-adapters"): _NO_ADAPTERS,
    ("POST", "/lora-adapters"): _NO_ADAPTERS,
    ("POST", "/v1/chat/completions/control"): "an answer cannot be changed while it is written",
}


def _refusing(error: UnsupportedError) -> Endpoint:
    async def refuse(_api: ApiRequest) -> Response:
        raise error

    return refuse


ROUTES = tuple(
    ApiRoute(method, path, _refusing(UnsupportedError(reason))) for (method, path), reason in _REASONS.items()
)
