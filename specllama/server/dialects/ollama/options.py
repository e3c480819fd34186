"""The `options` of a request: those that are sampling parameters, those without effect, those refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from specllama.core.sampling.params import UNTIL_CONTEXT_FULL, UNTIL_STOP, SamplingParams
from specllama.errors import UsageError
from specllama.server.dialects.fields import Body, FieldError, supported
from specllama.server.dialects.openai.sampling_fields import Stops, seed_of

Size = Annotated[int, Field(ge=-1, lt=2**31)]
_MAPPED: Mapping[str, str] = {
    "num_predict": "max_tokens",
    **{
        name: name
        for name in (
            "temperature", "top_k", "top_p", "min_p", "seed", "stop", "repeat_penalty", "presence_penalty",
            "frequency_penalty", "repeat_last_n",
        )
    },
}  # fmt: skip
"""Names of options to those of sampling parameters."""


class OllamaOptions(Body):
    """num_predict: 0 or less for no limit. top_k: 0 or -1 switch it off. seed: -1 for a random one. The
    options of loading, num_ctx and those after it, have no effect: they are set where the server is started.
    """

    num_predict: Annotated[int, Field(ge=UNTIL_CONTEXT_FULL, lt=2**31)] | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: Stops = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_last_n: int | None = None
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

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        return supported(data, cls.model_fields, "options.") if isinstance(data, Mapping) else data

    def sampling(self, **more: Any) -> dict[str, Any]:
        """The parameters of SamplingParams that are set. more: those from other fields. Raises FieldError."""
        set_ = {name: getattr(self, option) for option, name in _MAPPED.items()} | more
        params = {name: _read(name, value) for name, value in set_.items() if value is not None}
        try:
            SamplingParams.merge(params)
        except UsageError as error:
            message = error.spelled(lambda name, _: _sent(name)).message
            raise FieldError(message, _sent(error.option)) from None
        return params


def _sent(name: str) -> str:
    """A sampling parameter's name in requests."""
    option = next((option for option, mapped in _MAPPED.items() if mapped == name), None)
    return f"options.{option}" if option else {"json_schema": "format"}.get(name, name)


def _read(name: str, value: Any) -> Any:
    """An option's value as SamplingParams takes it, None where it stands for the default."""
    if name == "max_tokens" and value <= 0:
        return UNTIL_STOP
    if name == "top_k" and value == -1:
        return 0
    if name == "seed":
        return None if value == -1 else seed_of(value)
    return value
