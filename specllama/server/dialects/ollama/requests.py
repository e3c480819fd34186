"""The bodies of Ollama's API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from specllama.client import protocol
from specllama.core.sampling.params import UNTIL_CONTEXT_FULL, UNTIL_STOP
from specllama.json_types import JsonObject
from specllama.server.dialects.shared.chat_fields import (
    ConversationFields,
    Message,
    ThinkingFields,
    conversation_of,
)
from specllama.server.dialects.shared.conversation import MAX_IMAGES, MAX_MESSAGES, ReadConversation
from specllama.server.dialects.shared.embedding import TextList
from specllama.server.dialects.shared.fields import (
    SMALL,
    WHOLE_ITEMS,
    AtMost,
    FieldError,
    RequestBody,
    as_options,
    supported,
)
from specllama.server.dialects.shared.image_parts import images_of_field
from specllama.server.dialects.shared.sampling_fields import (
    GenerationFields,
    KeepAlive,
    ModelName,
    ParameterReader,
    first,
)
from specllama.server.dialects.shared.structured import Format, Restriction
from specllama.server.http.body import MAX_VALUES

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
    field_names: ClassVar[Mapping[str, str]] = {"json_schema": "format", "max_tokens": "options.num_predict"}

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        """Here, since `checked` only examines whole bodies."""
        if not isinstance(data, Mapping):
            return data
        return supported(cls.prepared(data), cls.model_fields, "options.")

    def sampling(self, **more: Any) -> JsonObject:
        limit = first(self.num_predict, self.max_tokens, self.n_predict)
        return super().sampling(max_tokens=UNTIL_STOP if limit is not None and limit <= 0 else limit, **more)


class OllamaRequest(ThinkingFields, GenerationFields):
    """Fields of both routes that generate text.

    think: whether to reason, or how much. format: "json", or the schema of the text. keep_alive: seconds, or
    a duration. truncate, shift: without effect; a prompt that does not fit is an error.
    """

    stream: bool = True
    format: Format | None = None
    options: OllamaOptions = OllamaOptions()
    truncate: bool | None = None
    shift: bool | None = None
    debug_render_only: Literal[False] = Field(False, alias="_debug_render_only")

    own_form: ClassVar[str] = "format"

    @classmethod
    def prepared(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """With the sampling fields moved to `options`, and other fields moved out."""
        return as_options(data, cls.model_fields, OllamaOptions.model_fields)

    @property
    def expected_context(self) -> int:
        return self.options.num_ctx or 0

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
        _ = self.n_logprobs

    def _parameters(self) -> list[Restriction]:
        return self.options.restricting_parameters()

    def params(self) -> JsonObject:
        params = self.options.sampling(logprobs=self.n_logprobs, **self.limits.params)
        budget = {} if self.configured_budget is None else {"reasoning_budget": self.configured_budget}
        return budget | params

    def engine_fields(self) -> JsonObject:
        return {**self.options.engine_limits(), **super().engine_fields()}


class OllamaChatRequest(ConversationFields, OllamaRequest):
    """The body of /api/chat. Without messages, loads the model. tool_choice: Ollama's own API has none."""

    messages: Annotated[list[Message], AtMost(MAX_MESSAGES)] = Field([])
    any_form: ClassVar[bool] = True  # Ollama reads only names and descriptions

    def read_turns(self) -> ReadConversation:
        self.check()
        return conversation_of(self.messages).read(open_calls=True)


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

    def place_images(self, texts: Mapping[int, str], images: Sequence[protocol.Image]) -> None:
        self.prompt = "".join(texts[image.number] for image in self._sent_images) + self.prompt
        self._sent_images, self._images = [], images

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        self.check()
        self._sent_images = images_of_field(self.images, "images")
        if self.images and self.suffix:
            raise FieldError("images: a gap in a text is filled without any", "images")
        if self.template:
            raise FieldError("template: the template is set where the server is started", "template")
        if self.context:
            raise FieldError("context is not supported: send the conversation to /api/chat", "context")
        off = "raw" if self.raw else "suffix" if self.suffix else ""
        if off and self.system:
            raise FieldError(f"system needs the chat template, which {off} switches off", "system")
        if off and self.think:
            raise FieldError(f"think needs the chat template, which {off} switches off", "think")

    def without_template(self) -> None:
        """The model has no chat template. Raises FieldError."""
        if self.system and not self.suffix:
            raise FieldError("system needs a chat template, which this model does not have", "system")
        self.raw = True

    def prompts(self, server: Mapping[str, Any]) -> Sequence[protocol.PromptInput]:
        if self.suffix:
            return [protocol.Infill(self.prompt, self.suffix)]
        if self.raw:
            return [protocol.TextInput(self.prompt, list(self._images))]
        system = [{"role": "system", "content": self.system}] if self.system else []
        asked = [*system, {"role": "user", "content": self.prompt}]
        return [protocol.ChatInput(asked, self.template_variables(server), images=list(self._images))]


class EmbedRequest(RequestBody):
    """input, or prompt of /api/embeddings: a text or a list of texts. truncate: cut those that are too long.
    options have no effect.
    """

    asks: ClassVar[bool] = False
    model: ModelName | None = None
    input: str | TextList | None = None
    prompt: str | None = None
    truncate: bool = True
    dimensions: Annotated[int, Field(ge=0, lt=2**20)] = 0
    keep_alive: KeepAlive = None
    options: Annotated[JsonObject, SMALL] | None = None


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
