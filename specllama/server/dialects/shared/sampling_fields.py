"""Fields of all bodies that generate text. The sampling fields are generated from PARAMETERS."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, create_model

from specllama.client import protocol
from specllama.core.sampling.params import (
    MAX_BIAS,
    MAX_BREAKERS,
    MAX_LOGPROBS,
    MAX_STEPS,
    PARAMETERS,
    SamplingParams,
    step_names,
    steps_of,
)
from specllama.errors import UsageError
from specllama.json_types import JsonObject
from specllama.server.dialects.shared.fields import (
    MAX_JSON,
    SMALL,
    WHOLE_ITEMS,
    AtMost,
    Body,
    CacheChoice,
    FieldError,
    RequestBody,
    as_sent,
    renamed,
    with_options,
)
from specllama.server.dialects.shared.structured import Restriction, StructuredFields
from specllama.server.dialects.shared.writer import AnswerOptions
from specllama.server.events import ReasoningFormat
from specllama.server.http.body import MAX_VALUES

_NOT_STEPS = ("tfs_z", "top_a", "mirostat", "tfsz", "topa")
"""Names that clients send among the samplers, which llama-server passes over."""


def steps_in(samplers: str | Sequence[str]) -> list[str]:
    """The steps of llama-server's field `samplers`: names, or letters in one string. Raises UsageError for
    unknown ones, and for `infill` without `top_k` before it.
    """
    if isinstance(samplers, str):
        steps = steps_of(samplers.replace("f", ""), "samplers")
    else:
        steps = step_names([name for name in samplers if name.lower().replace("-", "_") not in _NOT_STEPS])
    if "infill" in steps and "top_k" not in steps[: steps.index("infill")]:
        raise UsageError("has infill, which needs top_k before it", option="samplers")
    return list(steps)


def _texts(given: str) -> Any:
    """A list as other front ends send it: JSON, or its items alone."""
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(given if given.lstrip().startswith("[") else f"[{given}]")
    return given


MAX_N, MAX_STOPS, MAX_STOP_CHARS, MAX_BIASES, MAX_TOP = 8, 64, 4096, 1024, MAX_LOGPROBS
MAX_MESSAGE_CHARS = 4096
MAX_TEXT_BIASES, MAX_BIAS_CHARS = 128, 64  # of texts that are tokenised
SamplerName = Annotated[str, Field(max_length=64)]
Breaker = Annotated[str, Field(max_length=256)]
TopLogprobs = Annotated[int, Field(ge=0, le=MAX_TOP)]
Count = Annotated[int, Field(ge=-2, lt=2**31)]
Milliseconds = Annotated[int, Field(ge=-1, lt=2**53)]
ModelName = Annotated[str, Field(max_length=512)]
Size = Annotated[int, Field(ge=-1, lt=2**31)]
TokenIds = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], AtMost(MAX_STOPS), WHOLE_ITEMS]
_EMPTY_IS_ABSENT = ("grammar", "logit_bias")


def _given_stops(value: Any) -> Any:
    """Without empty strings, which would end every answer, if all are valid; None if none remains."""
    if isinstance(value, list) and all(isinstance(t, str) and len(t) <= MAX_STOP_CHARS for t in value):
        value = [text for text in value if text != ""]
    return value if value not in ("", []) else None


Stop = Annotated[str, Field(max_length=MAX_STOP_CHARS)]
Stops = Annotated[Stop | Annotated[list[Stop], AtMost(MAX_STOPS)] | None, BeforeValidator(_given_stops)]
StopList = Annotated[Annotated[list[Stop], AtMost(MAX_STOPS)] | None, BeforeValidator(_given_stops)]


MAX_PROMPTS, MAX_CHOICES, MAX_PARTS = 64, 64, 1024
Ids = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], AtMost(MAX_VALUES, 1), WHOLE_ITEMS]


_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST = 64  # characters
_PART = r"(\d{1,12}(?:\.\d{0,9})?|\.\d{1,9})"
_DURATION = re.compile(rf"[-+]?(?:{_PART}|(?:{_PART}(?:ns|us|µs|ms|s|m|h)){{1,8}})")
_UNIT = re.compile(_PART + r"(ns|us|µs|ms|s|m|h)")


def seconds(duration: str) -> float:
    """Seconds of a duration such as "5m", "1h30m" or "-1"; negative for ever. Raises ValueError."""
    text = duration.strip()
    if not _DURATION.fullmatch(text):
        raise ValueError(f'must be seconds or a duration such as "5m", not {text[:40]!r}')
    parts = _UNIT.findall(text)
    if not parts:
        return float(text)
    sign = -1.0 if text.startswith("-") else 1.0
    return sign * sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _duration(value: Any) -> Any:
    return seconds(value) if isinstance(value, str) and len(value) <= _LONGEST else value


KeepAlive = Annotated[float | None, BeforeValidator(_duration)]
"""The annotation of keep_alive, in the form of Ollama's clients; its value is seconds."""


def _trace_choice(value: Any) -> Any:
    if isinstance(value, bool) or value == "full":
        return value
    raise ValueError('must be a valid boolean or "full"')


TraceChoice = Annotated[bool | Literal["full"], BeforeValidator(_trace_choice)]


class PredictionPart(Body):
    """A part of a prediction."""

    type: Literal["text"] = "text"
    text: str


class PredictedContent(Body):
    """OpenAI's form of a prediction: a text, or its parts one after another."""

    type: Literal["content"] = "content"
    content: str | Annotated[list[PredictionPart], AtMost(MAX_PARTS)]


Prediction = str | PredictedContent
"""The annotation of a text that most of the answer is expected to be, to draft from."""
DraftLength = Annotated[int, Field(ge=0, le=512)]


class Speculation(Body):
    """enabled: False decodes plainly, to the same text. max: longest draft per round, in tokens. trace: the
    chunks of a stream name the drafters of their tokens; "full" includes rejected draft tokens. memory: False
    neither drafts from earlier requests nor lets later ones draft from this one. exact: the same text with
    and without drafts, on every device. prediction: a text that most of the answer is expected to be.
    """

    enabled: bool = True
    max: DraftLength | None = None
    trace: TraceChoice = False
    memory: bool = True
    exact: bool = False
    prediction: Prediction | None = None

    def engine_fields(self) -> JsonObject:
        """The fields of protocol.Generate that these set, besides the prediction."""
        full = self.trace == "full"
        length = {} if self.max is None else {"draft_max": self.max}
        return {"speculate": self.enabled, "exact": self.exact, "show_rejected": full, **length}


class StreamOptions(Body):
    """include_usage: send the usage in a last chunk. The other fields have no effect."""

    include_usage: bool = False
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


_TYPES: Mapping[str, Any] = {
    "max_tokens": Count,
    "seed": Annotated[int, Field(ge=-(2**63), lt=2**64)],
    "stop": Stops,
    "logit_bias": (
        Annotated[dict[str, float], AtMost(MAX_BIASES)]
        | Annotated[list[Annotated[list[Any], AtMost(2, 2)]], AtMost(MAX_BIASES)]
    ),
    "grammar": Annotated[str, Field(max_length=MAX_JSON)],
    "json_schema": Annotated[JsonObject, SMALL] | bool,
    "stop_token_ids": TokenIds,
    "reasoning_budget_message": Annotated[str, Field(max_length=MAX_MESSAGE_CHARS)],
    "samplers": (
        Annotated[str, Field(max_length=MAX_STEPS)] | Annotated[list[SamplerName], AtMost(MAX_STEPS)]
    ),
    "dry_sequence_breakers": Annotated[str, Field(max_length=MAX_BREAKERS * 16)]
    | Annotated[list[Breaker], AtMost(MAX_BREAKERS)],
}
"""Types of the parameters whose form in JSON differs from that on a command line."""

if TYPE_CHECKING:

    class ParameterFields(RequestBody):
        """A field for each name that a parameter of SamplingParams has in request bodies, None by default."""

        def __getattr__(self, name: str) -> Any: ...

else:
    ParameterFields = create_model(
        "ParameterFields",
        __base__=RequestBody,
        __module__=__name__,
        **{
            field: (_TYPES.get(name, parameter.kind) | None, None)
            for name, parameter in PARAMETERS.items()
            for field in parameter.api_fields
        },
    )


def _as_field(error: UsageError, sent: Mapping[str, str], field: str | None) -> FieldError:
    """The error of a field, in which parameters have the names with which they were sent."""
    return FieldError(error.with_option_names(lambda name, _: sent.get(name, name)).message, field)


class ParameterReader(ParameterFields):
    """Sampling parameters and limits of the text. Of several names of a parameter, the first counts.

    n_indent: indentation of the lines after the first, in blanks and tabs; the text ends before a line with
    less. t_max_prompt_ms, t_max_predict_ms: time limits of prompt and text, 0 or less for none.
    draft_num_predict: Ollama's name of speculation.max. path: prefix
    of field names in errors; field_names: names in errors of parameters that other fields set.
    """

    n_indent: Annotated[int, Field(ge=0, le=1024)] = 0
    t_max_prompt_ms: Milliseconds = 0
    t_max_predict_ms: Milliseconds = 0
    draft_num_predict: DraftLength | None = None

    path: ClassVar[str] = ""
    field_names: ClassVar[Mapping[str, str]] = {}
    aliases: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def prepared(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Fields of other APIs and aliases under this model's names, which take precedence."""
        fields = renamed(data, cls.aliases, cls.model_fields)
        for name in _EMPTY_IS_ABSENT:
            if fields.get(name) in ("", [], {}):
                del fields[name]
        return fields

    @property
    def warms(self) -> bool:
        """Whether the request only evaluates its prompt."""
        return False

    def engine_limits(self) -> JsonObject:
        """Fields of protocol.Generate that are no parameters. Raises FieldError."""
        return {
            "text_biases": self._text_biases(),
            "n_indent": self.n_indent,
            "draft_max": self.draft_num_predict,
            "prompt_seconds": self.t_max_prompt_ms / 1000 if self.t_max_prompt_ms > 0 else None,
            "predict_seconds": self.t_max_predict_ms / 1000 if self.t_max_predict_ms > 0 else None,
        }

    def sampling(self, **more: Any) -> JsonObject:
        """The sampling parameters that are set. more: parameters that the route sets by fields of its own.

        Raises FieldError.
        """
        params: JsonObject = {}
        sent: dict[str, str] = dict(self.field_names)
        for name, parameter in PARAMETERS.items():
            field = next((f for f in parameter.api_fields if getattr(self, f) is not None), None)
            if field is not None:
                sent[name] = f"{self.path}{field}"
                try:
                    params[name] = _read(name, getattr(self, field), sent[name])
                except FieldError:
                    raise
                except UsageError as error:
                    raise _as_field(error, sent, sent[name]) from None
        if "samplers" in params:
            params.setdefault("infill_sampling", "infill" in params["samplers"])
        if params.get("reasoning_budget") is None and self.configured_budget is not None:
            params["reasoning_budget"] = self.configured_budget
        params = {name: value for name, value in (params | more).items() if value is not None}
        if self.warms:
            params.pop("max_tokens", None)
        try:
            SamplingParams.merge(params)
        except UsageError as error:
            field = sent.get(error.option, error.option) if error.option in params else None
            raise _as_field(error, sent, field) from None
        return params

    @property
    def configured_budget(self) -> int | None:
        """The budget of reasoning by fields of other APIs, None without one."""
        return None

    def parameters(self) -> list[Restriction]:
        values = ((name, getattr(self, name)) for name in ("json_schema", "grammar"))
        return [Restriction(name, {name: value}) for name, value in values if value is not None]

    def _text_biases(self) -> dict[str, float]:
        """Biases of `logit_bias` keyed by text, as in protocol.Generate. Raises FieldError."""
        path = f"{self.path}logit_bias"
        biases = {t: bias for t, bias in _biases(self.logit_bias or {}, path).items() if _is_text(t)}
        if len(biases) > MAX_TEXT_BIASES or any(len(t) > MAX_BIAS_CHARS for t in biases):
            most = f"at most {MAX_TEXT_BIASES} texts of {MAX_BIAS_CHARS} characters"
            raise FieldError(f"{path}: {most}", path)
        for text, bias in biases.items():
            if not -MAX_BIAS <= bias <= MAX_BIAS and bias != -math.inf:
                raise FieldError(f"{path}: the bias of {text!r} must be within ±{MAX_BIAS:g}", path)
        return biases


class GenerationFields(StructuredFields):
    """Fields of all bodies that request texts, besides the prompt and the sampling parameters.

    keep_alive: seconds, negative for ever. prediction: as in `speculation`. reasoning_control: the reasoning
    can be ended by /v1/chat/completions/control. logprobs: whether tokens are sent with their log
    probabilities; or, as top_logprobs and n_probs, how many of the likeliest tokens are sent with each.
    zero_logprobs: what the number 0 in `logprobs` means, None for nothing.
    """

    logprobs: bool | TopLogprobs | None = None
    top_logprobs: TopLogprobs | None = None
    n_probs: TopLogprobs | None = None
    zero_logprobs: ClassVar[int | None] = None
    model: ModelName | None = None
    stream: bool = False
    speculation: Speculation = Speculation()
    cache: CacheChoice = CacheChoice()
    keep_alive: KeepAlive = None
    prediction: Prediction | None = None
    reasoning_control: bool = False

    @property
    def n_logprobs(self) -> int | None:
        """Number of the likeliest tokens to send, None for no log probabilities. Raises FieldError."""
        most = self.top_logprobs or self.n_probs or 0
        if self.logprobs is True:
            return most
        if self.logprobs is False:
            if most:
                name = "top_logprobs" if self.top_logprobs else "n_probs"
                raise FieldError(f"{name} is {most}, but logprobs is false", name)
            return None
        given = None if self.logprobs is None else self.logprobs or self.zero_logprobs
        return given if not most else max(most, given or 0)

    def prompts(self, server: Mapping[str, Any]) -> Sequence[protocol.PromptInput]:
        """The prompts. server: the server's variables of chat templates. Raises FieldError."""
        raise NotImplementedError

    def params(self) -> JsonObject:
        """The sampling parameters that are set. Raises FieldError."""
        raise NotImplementedError

    def engine_fields(self) -> JsonObject:
        """Fields of protocol.Generate besides its prompt and parameters. Raises FieldError."""
        return {
            "strict_schema": self.limits.strict,
            "reasoning_control": self.reasoning_control,
            "prediction": self._predicted_text(),
            **self.speculation.engine_fields(),
        }

    def _predicted_text(self) -> str:
        """The text of the prediction, "" without one. Raises FieldError for two."""
        given, own = self.prediction, self.speculation.prediction
        if given is not None and own is not None:
            raise FieldError("prediction and speculation.prediction are both given", "prediction")
        text = first(given, own, "")
        if isinstance(text, PredictedContent):
            text = text.content
        return text if isinstance(text, str) else "".join(part.text for part in text)

    def generations(
        self, defaults: Mapping[str, Any], server: Mapping[str, Any], **more: Any
    ) -> list[protocol.Generate]:
        """The engine's request for each prompt. defaults: sampling parameters of the server. server: its
        variables of chat templates. more: further fields. Raises FieldError.
        """
        try:
            prompts, params = self.prompts(server), {**defaults, **self.params()}
            fields = {**self.engine_fields(), **more}
        except FieldError as error:
            raise as_sent(error, type(self), self._sent) from None
        return [protocol.Generate(-1, prompt, params=params, **fields) for prompt in prompts]

    def answer_options(self, model: str, **more: Any) -> AnswerOptions:
        """The form of the answer. model: shown if the request names none. more: further options."""
        return AnswerOptions(
            model=self.model or model,
            logprobs=self.n_logprobs is not None,
            trace=bool(self.speculation.trace),
            speculate=self.speculation.enabled,
            ignored=self.ignored_fields,
            **more,
        )

    @property
    def kept(self) -> bool:
        """Whether prompt and text may be written to disk."""
        return self.cache.store

    @property
    def logged(self) -> Any:
        return getattr(self, "prompt", None)

    @property
    def n_choices(self) -> int:
        """Answers to each prompt."""
        return 1

    @property
    def supersedes(self) -> str:
        """See RequestStream."""
        return ""

    @property
    def shown_reasoning(self) -> ReasoningFormat:
        return "auto"

    @property
    def expected_context(self) -> int:
        """Context size that the client expects, in tokens; 0 for none."""
        return 0


class IgnoredLoadOptions(Body):
    """Ollama's options of loads, without effect: they are set when the server is started."""

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


class SamplingFields(ParameterReader, GenerationFields):
    """The parameters of a generation. n_predict: 0 only evaluates the prompt, for later requests. options:
    Ollama's place for them; those of loads stay there. limit_fields: those with the limit of the text, that
    of the API itself first.
    """

    limit_fields: ClassVar[Sequence[str]] = ("max_tokens", "n_predict")
    stream_options: StreamOptions = StreamOptions()
    n: Annotated[int, Field(ge=1, le=MAX_N)] = 1
    timings_per_token: bool = False
    return_progress: bool = False
    verbose: bool | None = None
    num_ctx: Size | None = None
    options: IgnoredLoadOptions = IgnoredLoadOptions()

    @classmethod
    def prepared(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Also reads the fields in `options`, Ollama's place for them."""
        return super().prepared(with_options(data, _OPTIONS))

    def params(self) -> JsonObject:
        limit = first(*(getattr(self, name) for name in self.limit_fields))
        return self.sampling(max_tokens=limit, logprobs=self.n_logprobs, **self.limits.params)

    def engine_fields(self) -> JsonObject:
        return {
            **self.engine_limits(),
            **super().engine_fields(),
            "warm": self.warms,
            "progress": self.shows_progress,
            "show_prompt": bool(self.verbose),
        }

    def answer_options(self, model: str, **more: Any) -> AnswerOptions:
        return super().answer_options(
            model,
            usage_chunk=self.stream_options.include_usage,
            timings=self.timings_per_token,
            progress=self.return_progress,
            verbose=bool(self.verbose),
            **more,
        )

    @property
    def warms(self) -> bool:
        return self.n_predict == 0 and self.max_tokens is None

    @property
    def shows_progress(self) -> bool:
        """Whether the engine is to report the whole prefill."""
        return self.stream and (self.return_progress or self.timings_per_token)

    @property
    def n_choices(self) -> int:
        return self.n

    @property
    def expected_context(self) -> int:
        return self.num_ctx or 0


_OPTIONS = (
    *ParameterReader.model_fields, "speculation", "cache", "keep_alive", "num_ctx",
)  # fmt: skip
"""Fields that may stand in `options`, as in Ollama's API."""


def _read(name: str, value: Any, path: str) -> Any:
    """A field's value in the form of SamplingParams, None for the default. Raises FieldError."""
    if name == "seed":
        return PARAMETERS[name].checked(value)
    if name == "reasoning_budget":
        return None if value == -1 else value  # as in llama-server: the server's own
    if name == "samplers":
        return steps_in(value)
    if name == "dry_sequence_breakers" and isinstance(value, str):
        return _texts(value)
    if name == "logit_bias":
        return {token: bias for token, bias in _biases(value, path).items() if not _is_text(token)}
    return value


def first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _biases(given: dict[str, float] | list[list[Any]], path: str) -> dict[Any, float]:
    """logit_bias as a mapping; false is minus infinity, as in llama-server. Raises FieldError for `path`."""
    if not isinstance(given, list):
        return given
    biases = {}
    for i, (token, bias) in enumerate(given):
        number = isinstance(bias, (int, float)) and (not isinstance(bias, bool) or bias is False)
        if isinstance(token, bool) or not isinstance(token, (int, str)) or not number:
            at = f"{path}[{i}]"
            raise FieldError(f"{at} must be a token id or text, and a number or false", at)
        biases[token] = -math.inf if bias is False else float(bias)
    return biases


def _is_text(token: int | str) -> bool:
    return isinstance(token, str) and not (token.isascii() and token.removeprefix("-").isdigit())
