"""The bodies of llama-server's /tokenize, /detokenize and /apply-template."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from specllama.server.dialects.shared.fields import AtMost, RequestBody
from specllama.server.dialects.shared.template_input import TemplateInput
from specllama.server.http.body import MAX_VALUES

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
