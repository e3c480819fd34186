"""Vectors and scores in the shapes of OpenAI's and llama-server's APIs, which differ little: the bodies of
the requests and the answers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator
from starlette.responses import JSONResponse, Response

from specllama.client import protocol
from specllama.json_types import JsonObject
from specllama.server.dialects.shared.base import ApiRequest
from specllama.server.dialects.shared.fields import SMALL, WHOLE_ITEMS, AtMost, Body, FieldError, RequestBody
from specllama.server.dialects.shared.sampling_fields import ModelName
from specllama.server.http.body import MAX_VALUES

MAX_INPUTS = 2048  # texts of a request, as in OpenAI's API
TextIds = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], AtMost(MAX_VALUES), WHOLE_ITEMS]
TextList = Annotated[list[str | TextIds], AtMost(MAX_INPUTS)]
Dimensions = Annotated[int, Field(ge=1, lt=2**20)]


class EmbeddingsRequest(RequestBody):
    """input, or llama-server's content: a text, its token ids, or a list of these. dimensions: numbers of a
    vector, where the model was trained for fewer. embd_normalize: -1 for none, 0 for the largest number, 2
    for the Euclidean norm, others for the p-norm.
    """

    asks: ClassVar[bool] = False
    model: ModelName | None = None
    input: str | TextIds | TextList | None = None
    content: str | TextIds | TextList | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Dimensions | None = None
    embd_normalize: Annotated[int, Field(ge=-1, le=1000)] = 2

    def texts(self) -> list[str | list[int]]:
        return texts_of(self.input if self.input is not None else self.content, "input")


def texts_of(given: str | Sequence[Any] | None, name: str) -> list[str | list[int]]:
    """One text or several as a list. name: of the field. Raises FieldError."""
    if given is None or (not isinstance(given, str) and len(given) == 0):
        raise FieldError(f"{name}: {'is missing' if given is None else 'has no text'}", name)
    if isinstance(given, str):
        return [given]
    return [[*given]] if isinstance(given[0], int) else [*given]


async def embeddings(api: ApiRequest, own_shape: bool = False) -> Response:
    """own_shape: llama-server's: a list of vectors for each text, of its tokens where there is no pooling."""
    body = await api.body(EmbeddingsRequest)
    own_shape = own_shape or body.input is None
    order = protocol.Embed(
        0,
        body.texts(),
        norm=body.embd_normalize,
        n_values=body.dimensions or 0,
        pooled=not own_shape,
        as_text=body.encoding_format == "float" or own_shape,
    )
    made = await api.embed(body.model, order)
    parts = [_own_item(one) if own_shape else _item(one, body.encoding_format) for one in made]
    if own_shape:
        return Response("[" + ",".join(parts) + "]", media_type="application/json")
    usage = json.dumps({"model": api.service.name, "usage": _usage(made)})
    answer = f'{{"object": "list", "data": [{",".join(parts)}], {usage[1:]}'
    return Response(answer, media_type="application/json")


def _item(one: protocol.TextVectors, encoding: str) -> str:
    (vector,) = one.vectors
    shown = f'"{vector}", "encoding_format": "base64"' if encoding == "base64" else f"[{vector}]"
    return f'{{"object": "embedding", "index": {one.text_index}, "embedding": {shown}}}'


def _own_item(one: protocol.TextVectors) -> str:
    rows = ",".join(f"[{vector}]" for vector in one.vectors)
    return f'{{"index": {one.text_index}, "embedding": [{rows}]}}'


def _usage(made: Sequence[protocol.TextVectors]) -> JsonObject:
    n = sum(one.n_tokens for one in made)
    return {"prompt_tokens": n, "total_tokens": n}


class RankedDocument(Body):
    """A document as an object."""

    text: str


Documents = Annotated[list[str | RankedDocument], AtMost(MAX_INPUTS)]


class RerankRequest(RequestBody):
    """documents, or texts as in TEI's API: what is compared with the query. top_n: how many are shown.
    return_documents, return_text: with their texts. rid: an id of SGLang's API, whose list is the answer.
    """

    asks: ClassVar[bool] = False
    model: ModelName | None = None
    query: str
    documents: Documents | None = None
    texts: Documents | None = None
    top_n: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    return_documents: bool = False
    return_text: bool = False
    rid: Annotated[Any, SMALL] = None

    @model_validator(mode="after")
    def _has_documents(self) -> RerankRequest:
        if not (self.documents or self.texts):
            raise ValueError("documents must be a list of at least one text")
        return self

    def compared(self) -> list[str]:
        given = self.documents if self.documents is not None else self.texts or []
        return [one.text if isinstance(one, RankedDocument) else one for one in given]


async def rerank(api: ApiRequest) -> Response:
    """In the shape of llama-server (Jina), TEI or SGLang, best documents first."""
    body = await api.body(RerankRequest)
    texts = body.compared()
    made = await api.embed(body.model, protocol.Embed(0, [*texts], body.query))
    scores = [(one.numbers()[0][0], one.text_index) for one in made]
    ranked = sorted(scores, key=lambda one: -one[0])[: len(scores) if body.top_n is None else body.top_n]
    if body.rid is not None:
        return JSONResponse([{"score": s, "document": texts[i], "index": i} for s, i in ranked])
    label = "score" if body.documents is None else "relevance_score"
    shown: list[JsonObject] = [{"index": i, label: s} for s, i in ranked]
    for item in shown:
        if body.return_text and body.documents is None:
            item["text"] = texts[item["index"]]
        if body.return_documents:
            item["document"] = {"text": texts[item["index"]]}
    if body.documents is None:
        return JSONResponse(shown)
    answer = {"model": api.service.name, "object": "list", "usage": _usage(made), "results": shown}
    return JSONResponse(answer)
