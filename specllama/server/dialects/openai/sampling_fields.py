"""The fields that chat completions and completions share; the sampling fields are made of PARAMETERS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, create_model

from specllama.core.sampling.params import MAX_LOGPROBS, PARAMETERS, SamplingParams
from specllama.errors import UsageError
from specllama.server.dialects.fields import MAX_JSON, SMALL, AtMost, Body, FieldError

MAX_N, MAX_STOPS, MAX_STOP_CHARS, MAX_BIASES, MAX_TOP = 8, 16, 256, 1024, MAX_LOGPROBS
Count = Annotated[int, Field(ge=-2, lt=2**31)]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]


class StreamOptions(Body):
    """include_usage: a last chunk with the usage. The other fields have no effect."""

    include_usage: bool = False
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class Speculation(Body):
    """enabled: False decodes plainly, to the same text. max: most draft tokens per round. trace: each chunk
    of a stream names the drafters of its tokens. memory: False neither drafts from earlier requests nor lets
    later ones draft from this one.
    """

    enabled: bool = True
    max: Annotated[int, Field(ge=0, le=512)] | None = None
    trace: bool = False
    memory: bool = True


_TYPES: Mapping[str, Any] = {
    "max_tokens": Count,
    "seed": Annotated[int, Field(ge=-(2**63), lt=2**64)],
    "stop": Stop | Annotated[list[Stop], AtMost(MAX_STOPS)],
    "logit_bias": (
        Annotated[dict[str, float], AtMost(MAX_BIASES)]
        | Annotated[list[Annotated[list[Any], AtMost(2, 2)]], AtMost(MAX_BIASES)]
    ),
    "grammar": Annotated[str, Field(max_length=MAX_JSON)],
    "json_schema": Annotated[dict[str, Any], SMALL] | bool,
}
"""Types of the parameters whose form in JSON differs from that on a command line."""

if TYPE_CHECKING:

    class ParameterFields(Body):
        """A field for each name that a parameter of SamplingParams has in request bodies, None by default."""

        def __getattr__(self, name: str) -> Any: ...

else:
    ParameterFields = create_model(
        "ParameterFields",
        __base__=Body,
        __module__=__name__,
        **{
            field: (_TYPES.get(name, parameter.kind) | None, None)
            for name, parameter in PARAMETERS.items()
            for field in parameter.api_fields
        },
    )


class SamplingFields(ParameterFields):
    """How to generate, without the prompt. Of several names of a parameter, the first one given counts."""

    model: Annotated[str, Field(max_length=512)] | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    n: Annotated[int, Field(ge=1, le=MAX_N)] = 1
    speculation: Speculation = Speculation()

    def sampling(self, **more: Any) -> dict[str, Any]:
        """The parameters of SamplingParams that are set. more: those whose fields are special to the route.

        Raises FieldError.
        """
        params: dict[str, Any] = {}
        sent: dict[str, str] = {}
        for name, parameter in PARAMETERS.items():
            field = next((f for f in parameter.api_fields if getattr(self, f) is not None), None)
            if field is not None:
                params[name], sent[name] = _read(name, getattr(self, field)), field
        params = {name: value for name, value in (params | more).items() if value is not None}
        try:
            SamplingParams.merge(params)
        except UsageError as error:
            message = error.spelled(lambda name, _: sent.get(name, name)).message
            field = sent.get(error.option, error.option)
            raise FieldError(message, field if error.option in params else None) from None
        return params


def _read(name: str, value: Any) -> Any:
    """A field's value as SamplingParams takes it, None where it stands for the default."""
    if name == "top_k" and value == -1:  # vLLM's value for off
        return 0
    if name == "seed":
        return None if value == -1 else value % 2**64
    return _biases(value) if name == "logit_bias" else value


def first(*values: Any) -> Any:
    """The first value that is not None, None where there is none."""
    return next((value for value in values if value is not None), None)


def _biases(given: dict[str, float] | list[list[Any]]) -> dict[Any, float]:
    """JSON has no minus infinity: llama-server's clients write false."""
    if not isinstance(given, list):
        return given
    found = {}
    for i, (token, bias) in enumerate(given):
        number = isinstance(bias, (int, float)) and (not isinstance(bias, bool) or bias is False)
        if isinstance(token, bool) or not isinstance(token, int) or not number:
            raise FieldError(f"logit_bias[{i}] must be a token id and a number or false", "logit_bias")
        found[token] = float("-inf") if bias is False else bias
    return found
