"""The `options` of a request: sampling parameters, options without effect, unsupported ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from specllama.core.sampling.params import UNTIL_CONTEXT_FULL, UNTIL_STOP
from specllama.json_types import JsonObject
from specllama.server.dialects.shared.fields import supported
from specllama.server.dialects.shared.sampling_fields import ParameterReader, first

Size = Annotated[int, Field(ge=-1, lt=2**31)]
Limit = Annotated[int, Field(ge=UNTIL_CONTEXT_FULL, lt=2**31)]


class OllamaOptions(ParameterReader):
    """num_predict: 0 or less for no limit. top_k: 0 or -1 switch it off. seed: -1 for a random one. Load
    options (num_ctx and those after it) have no effect: they are set when the server is started.
    """

    num_predict: Limit | None = None
    max_tokens: Limit | None = None
    n_predict: Limit | None = None
    num_ctx: Size | None = None
    num_batch: Size | None = None
    num_gpu: Size | None = None
    main_gpu: Size | None = None
    num_thread: Size | None = None
    num_keep: Size | None = None
    numa: bool | None = None
    low_vram: bool | None = None
    f16_kv: bool | None = None
    logits_all: bool | None = None
    vocab_only: bool | None = None
    embedding_only: bool | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None
    penalize_newline: bool | None = None

    path: ClassVar[str] = "options."
    spelled: ClassVar[Mapping[str, str]] = {"json_schema": "format", "max_tokens": "options.num_predict"}

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        """Here, since `checked` only examines whole bodies."""
        if not isinstance(data, Mapping):
            return data
        return supported(cls.prepared(data), cls.model_fields, "options.")

    def sampling(self, **more: Any) -> JsonObject:
        """The sampling parameters that are set. more: from other fields. Raises FieldError."""
        limit = first(self.num_predict, self.max_tokens, self.n_predict)
        return super().sampling(max_tokens=UNTIL_STOP if limit is not None and limit <= 0 else limit, **more)
