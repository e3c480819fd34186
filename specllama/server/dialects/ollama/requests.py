"""The bodies of Ollama's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from specllama.client import protocol
from specllama.core.sampling.params import UNTIL_CONTEXT_FULL, UNTIL_STOP
from specllama.json_types import JsonObject
from specllama.server.dialects.shared.chat_messages import Message, conversation_of
from specllama.server.dialects.shared.conversation import MAX_MESSAGES, ReadConversation
from specllama.server.dialects.shared.fields import (
    SMALL,
    WHOLE_ITEMS,
    AtMost,
    CacheChoice,
    FieldError,
    RequestBody,
    as_options,
    supported,
)
from specllama.server.dialects.shared.generating_body import KeepAlive, Speculation
from specllama.server.dialects.shared.parts import MAX_IMAGES
from specllama.server.dialects.shared.sampling_fields import LogprobFields, ParameterReader, first
from specllama.server.dialects.shared.structured import Format, RestrictingField, StructuredFields
from specllama.server.dialects.shared.thinking import ThinkingFields
from specllama.server.dialects.shared.tools import ToolFields
from specllama.server.http.body import MAX_VALUES

# The `options` of a request: sampling parameters, options without effect, unsupported ones.


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


ModelName = Annotated[str, Field(max_length=512)]


class OllamaRequest(ThinkingFields, StructuredFields, LogprobFields):
    """Fields of both routes that generate text.

    think: whether to reason, or how much. format: "json", or the schema of the text. keep_alive: seconds, or
    a duration. truncate, shift: without effect; a prompt that does not fit is an error.
    """

    model: ModelName | None = None
    stream: bool = True
    format: Format | None = None
    options: OllamaOptions = OllamaOptions()
    keep_alive: KeepAlive = None
    truncate: bool | None = None
    shift: bool | None = None
    debug_render_only: Literal[False] = Field(False, alias="_debug_render_only")
    speculation: Speculation = Speculation()
    cache: CacheChoice = CacheChoice()

    own_form: ClassVar[str] = "format"

    @property
    def kept(self) -> bool:
        """Whether prompt and text may be written to disk."""
        return self.cache.store

    @classmethod
    def prepared(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """With the sampling fields moved to `options`, and other fields moved out."""
        return as_options(data, cls.model_fields, OllamaOptions.model_fields)

    @property
    def num_ctx(self) -> int | None:
        """Context size that the client expects, in tokens."""
        return self.options.num_ctx

    @property
    def ending(self) -> str:
        """The done_reason if nothing is generated: "unload" or "load"."""
        return "unload" if self.keep_alive == 0 else "load"

    def check(self) -> None:
        """Checks that also apply to a load. Raises FieldError."""
        if isinstance(self.format, str) and self.format not in ("", "json"):
            raise FieldError(
                f'format must be "", "json" or a JSON schema, not {self.format[:40]!r}', "format"
            )
        if self.speculation.trace:
            raise FieldError("speculation.trace is for the routes below /v1 only", "speculation.trace")

    def _parameters(self) -> list[RestrictingField]:
        return self.options.restricting_parameters()

    def generation(self, defaults: Mapping[str, Any], prompt: protocol.PromptInput) -> protocol.Generate:
        """The engine's request. defaults: sampling parameters of the server. Raises FieldError."""
        limits = self.limits
        return protocol.Generate(
            -1,
            prompt,
            params={**defaults, **self.options.sampling(logprobs=self.n_logprobs, **limits.params)},
            strict_schema=limits.strict,
            **self.options.engine_fields(),
            **self.speculation.engine_fields(),
        )

    def variables(self, defaults: Mapping[str, Any]) -> JsonObject:
        """The variables of the chat template. defaults: of the server. Raises FieldError."""
        return {**defaults, **self.thinking_variables()}


class OllamaChatRequest(OllamaRequest, ToolFields):
    """The body of /api/chat. Without messages, loads the model. tool_choice: Ollama's own API has none."""

    messages: Annotated[list[Message], AtMost(MAX_MESSAGES)] = Field([])
    any_form: ClassVar[bool] = True  # Ollama reads only names and descriptions
    _conversation: ReadConversation

    def model_post_init(self, _context: Any) -> None:
        """Raises FieldError."""
        self.check()
        self._conversation = conversation_of(self.messages).read(open_calls=True)

    @property
    def turns(self) -> ReadConversation:
        """The conversation."""
        return self._conversation

    @property
    def has_tools(self) -> bool:
        return self.request_tools.allowed is not None

    def request(self, sampling: Mapping[str, Any], variables: Mapping[str, Any]) -> protocol.Generate:
        """The engine's request. sampling, variables: of the server. Raises FieldError."""
        conversation = self._conversation
        chat = protocol.ChatInput(
            conversation.messages,
            self.variables(variables),
            self.request_tools.allowed,
            conversation.prefix,
            conversation.thought,
        )
        return self.generation(sampling, chat)


class OllamaGenerateRequest(OllamaRequest):
    """The body of /api/generate. raw: do not apply the chat template. suffix: the text after the gap to
    fill. Without prompt and suffix, loads the model.
    """

    prompt: str = ""
    system: str = ""
    suffix: str = ""
    raw: bool = False
    template: str = ""
    context: Annotated[list[int], AtMost(MAX_VALUES), WHOLE_ITEMS] = Field([])
    images: Annotated[list[Any], AtMost(MAX_IMAGES)] = Field([])

    def model_post_init(self, _context: Any) -> None:
        """Raises FieldError."""
        self.check()
        if self.images:
            message = "images: this model reads text only and could not process image input"
            raise FieldError(message, "images")
        if self.template:
            raise FieldError("template: the template is set where the server is started", "template")
        if self.context:
            raise FieldError("context is not supported: send the conversation to /api/chat", "context")
        off = "raw" if self.raw else "suffix" if self.suffix else ""
        if off and self.system:
            raise FieldError(f"system needs the chat template, which {off} switches off", "system")
        if off and self.think:
            raise FieldError(f"think needs the chat template, which {off} switches off", "think")

    def request(
        self, sampling: Mapping[str, Any], variables: Mapping[str, Any], templated: bool
    ) -> protocol.Generate:
        """The engine's request. sampling, variables: of the server. templated: whether the model has a chat
        template. Raises FieldError.
        """
        if self.suffix:
            return self.generation(sampling, protocol.Infill(self.prompt, self.suffix))
        if self.raw or not templated:
            if self.system:
                raise FieldError("system needs a chat template, which this model does not have", "system")
            return self.generation(sampling, protocol.TextInput(self.prompt))
        system = [{"role": "system", "content": self.system}] if self.system else []
        asked = [*system, {"role": "user", "content": self.prompt}]
        return self.generation(sampling, protocol.ChatInput(asked, self.variables(variables)))


class ShowRequest(RequestBody):
    """model, or name: which model. The other fields have no effect."""

    model: ModelName | None = None
    name: ModelName | None = None
    verbose: bool | None = None
    system: str | None = None
    template: str | None = None
    options: Annotated[JsonObject, SMALL] | None = None


class RefusedRequest(RequestBody):
    """The body of an unsupported operation: any JSON object."""

    asks = False
