"""The fields that chat completions and completions share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator

from specllama.core.sampling.params import SamplingParams
from specllama.errors import UsageError
from specllama.server.dialects.fields import Body, FieldError

MAX_N, MAX_STOPS, MAX_STOP_CHARS, MAX_BIASES, MAX_TOP = 8, 16, 256, 1024, 20
Count = Annotated[int, Field(ge=-2, lt=2**31)]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]


class StreamOptions(Body):
    """include_usage: a last chunk carries the figures. The others change nothing."""

    include_usage: bool = False
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class Speculation(Body):
    """enabled: False decodes plainly, the text is the same. max: most draft tokens of a round. trace: each
    chunk of a stream says whose tokens it came from. memory: False drafts from no earlier request, and lets
    no later one draft from this.
    """

    enabled: bool = True
    max: Annotated[int, Field(ge=0, le=512)] | None = None
    trace: bool = False
    memory: bool = True


class SamplingFields(Body):
    """What a generation is asked with, whatever it goes on from."""

    model: Annotated[str, Field(max_length=512)] | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    n: Annotated[int, Field(ge=1, le=MAX_N)] = 1
    max_tokens: Count | None = None
    n_predict: Count | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_penalty: float | None = None
    repetition_penalty: float | None = None
    repeat_last_n: int | None = None
    logit_bias: (
        Annotated[dict[str, float], Field(max_length=MAX_BIASES)]
        | Annotated[
            list[Annotated[list[Any], Field(min_length=2, max_length=2)]], Field(max_length=MAX_BIASES)
        ]
        | None
    ) = None
    ignore_eos: bool | None = None
    grammar: Annotated[str, Field(max_length=64 * 1024)] | None = None
    json_schema: dict[str, Any] | bool | None = None
    speculation: Speculation = Speculation()

    @field_validator("top_k", "repeat_last_n")
    @classmethod
    def _small(cls, value: int | None) -> int | None:
        if value is not None and not -1 <= value < 2**31:
            raise ValueError("must be from -1 to 2147483647")
        return value

    def sampling(self, **more: Any) -> dict[str, Any]:
        """What was set of SamplingParams. Raises FieldError."""
        given = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": max(0, self.top_k) if self.top_k is not None else None,  # -1 is vLLM's word for off
            "min_p": self.min_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repeat_penalty": first(self.repeat_penalty, self.repetition_penalty),
            "repeat_last_n": self.repeat_last_n,
            "logit_bias": _biases(self.logit_bias),
            "seed": None if self.seed is None or self.seed == -1 else self.seed % 2**64,
            "max_tokens": first(self.max_tokens, self.n_predict),
            "stop": [self.stop] if isinstance(self.stop, str) else self.stop,
            "ignore_eos": self.ignore_eos,
            "grammar": self.grammar,
            "json_schema": self.json_schema,
            **more,
        }
        params = {name: value for name, value in given.items() if value is not None}
        try:
            SamplingParams.merge(params)
        except UsageError as error:
            name = error.message.partition(" ")[0].rstrip(":")
            raise FieldError(error.message, name if name in params else None) from None
        return params


def first(*values: Any) -> Any:
    """The first that was given."""
    return next((value for value in values if value is not None), None)


def _biases(given: dict[str, float] | list[list[Any]] | None) -> dict[Any, float] | None:
    """JSON has no minus infinity: llama-server's clients say false."""
    if not isinstance(given, list):
        return given
    found = {}
    for i, (token, bias) in enumerate(given):
        number = isinstance(bias, (int, float)) and (not isinstance(bias, bool) or bias is False)
        if isinstance(token, bool) or not isinstance(token, int) or not number:
            raise FieldError(f"logit_bias[{i}] must be a token id and a number or false", "logit_bias")
        found[token] = float("-inf") if bias is False else bias
    return found
