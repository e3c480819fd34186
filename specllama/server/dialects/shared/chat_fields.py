"""The fields of all bodies that have a conversation: its messages, tools and reasoning.

Every API here accepts all fields that control reasoning, since clients keep their field names whatever the
API is. The messages are those of /v1/chat/completions, /apply-template and /api/chat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from specllama.calls.history import Role
from specllama.client import protocol
from specllama.errors import UsageError
from specllama.json_types import JsonObject
from specllama.server.dialects.shared.conversation import (
    MAX_MESSAGES,
    Content,
    ConversationReader,
    GivenCall,
    MessageFields,
    ReadConversation,
    as_result,
    read,
    with_images,
)
from specllama.server.dialects.shared.fields import SMALL, AtMost, Body, FieldError
from specllama.server.dialects.shared.image_parts import GivenImage
from specllama.server.dialects.shared.structured import NestedFields, Word
from specllama.server.dialects.shared.tools import MAX_CALLS, Name, ToolFields
from specllama.server.events import ReasoningFormat
from specllama.text.prompt_parts import effort_variables, template_variables

LEVELS = ("low", "medium", "high")
_EFFORTS = {"xhigh": "high", "max": "high"}  # of which templates know none
_ON = ("enabled", "adaptive", "auto")  # not "between_tools", which only writes notes on progress


class ThinkingConfig(Body):
    """Anthropic's form, also used by GLM's, DeepSeek's and Kimi's APIs. budget_tokens: of the reasoning,
    after which its end is written.
    """

    unnamed = frozenset({"display", "clear_thinking", "keep"})

    type: Literal["enabled", "disabled", "adaptive", "auto", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None


class ReasoningFields(Body):
    """OpenAI's form, and OpenRouter's with `enabled` and `max_tokens`."""

    unnamed = frozenset({"summary", "generate_summary", "context", "mode", "encrypted_content"})

    effort: Word | None = None
    enabled: bool | None = None
    max_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None


class ThinkingFields(NestedFields):
    """chat_template_kwargs: variables of the template, which take precedence. reasoning_format: see
    EventAssembler. own_effort: the API's own field of the effort, which counts first.
    """

    own_effort: ClassVar[str] = "reasoning_effort"

    chat_template_kwargs: Annotated[JsonObject, SMALL, Field(max_length=64, default_factory=dict)]
    enable_thinking: bool | None = None
    think: bool | Word | None = None
    thinking: bool | ThinkingConfig | None = None
    reasoning: ReasoningFields | None = None
    reasoning_effort: Word | None = None
    verbosity: Word | None = None
    reasoning_format: ReasoningFormat | None = None

    @property
    def shown_reasoning(self) -> ReasoningFormat:
        return self.reasoning_format or "auto"

    @field_validator("think")
    @classmethod
    def _check_level(cls, value: bool | str | None) -> bool | str | None:
        if isinstance(value, str) and value not in LEVELS:
            raise ValueError(f'must be true, false, "low", "medium" or "high", not {value[:40]!r}')
        return value

    @property
    def configured_budget(self) -> int | None:
        """The tokens of reasoning that `thinking` or `reasoning` allows, None where neither says."""
        if isinstance(self.thinking, ThinkingConfig) and self.thinking.type in _ON:
            return self.thinking.budget_tokens
        return self.reasoning.max_tokens if self.reasoning else None

    def template_variables(self, server: Mapping[str, Any]) -> JsonObject:
        """The variables of the chat template. server: those of the server. Raises FieldError."""
        return {**server, **self.thinking_variables()}

    def thinking_variables(self) -> JsonObject:
        """The variables set by the fields. Raises FieldError."""
        effort = self.output_config.effort if self.output_config else None
        efforts = {
            "reasoning_effort": self.reasoning_effort,
            "reasoning": self.reasoning.effort if self.reasoning else None,
            "output_config": _EFFORTS.get(effort, effort) if effort else None,
            "think": self.think if isinstance(self.think, str) else None,
        }
        variables = effort_variables(efforts[self.own_effort] or next(filter(None, efforts.values()), None))
        switch = self._switch
        if switch is not None:
            variables["enable_thinking"] = switch
        if verbosity := self.verbosity or (self.text and self.text.verbosity):
            variables["verbosity"] = verbosity
        try:
            return {**variables, **template_variables(self.chat_template_kwargs)}
        except UsageError as error:
            raise FieldError(error.message, "chat_template_kwargs") from None

    @property
    def _switch(self) -> bool | None:
        """Whether to reason, None if no field says."""
        if self.enable_thinking is not None:
            return self.enable_thinking
        if self.think is not None:
            return self.think is not False
        if isinstance(self.thinking, ThinkingConfig):
            return self.thinking.type in _ON
        if self.thinking is not None:
            return self.thinking
        return self.reasoning.enabled if self.reasoning else None


MAX_ARGUMENTS = 4096  # of a call whose arguments are an object
CallId = Annotated[str, Field(max_length=512)]
Arguments = str | Annotated[JsonObject, AtMost(MAX_ARGUMENTS)]
"""The annotation of arguments: JSON of an object, or the object itself."""


class CalledFunction(Body):
    """A function with its arguments."""

    unnamed = frozenset({"description", "index", "parsed_arguments"})

    name: Name
    arguments: Arguments | None = None


class CustomCall(Body):
    """A call with a text argument, made by another provider's model."""

    name: Name
    input: str = ""


class MessageToolCall(Body):
    """A call in an earlier answer."""

    unnamed = frozenset({"index", "extra_content", "provider_specific_fields", "cache_control"})

    id: CallId | None = None
    type: Literal["function", "custom"] = "function"
    function: CalledFunction | None = None
    custom: CustomCall | None = None

    def given(self, path: str) -> GivenCall:
        """The call. path: its field. Raises FieldError."""
        id_, custom = self.id or None, self.custom
        if self.type == "custom" and custom is not None:
            return GivenCall(id_, custom.name, {"input": custom.input}, f"{path}.custom.input")
        if self.type == "custom" or self.function is None:
            raise FieldError(f"{path}.{self.type} is missing", f"{path}.{self.type}")
        function = self.function
        return GivenCall(id_, function.name, function.arguments, f"{path}.function.arguments")


class Message(MessageFields):
    """One message. reasoning_content: the reasoning of an answer, for templates that show it.
    tool_call_id, tool_name, name: of the call that a tool's message answers; without them, the next one.
    """

    unnamed = frozenset(
        {
            "annotations", "audio", "parsed", "id", "object", "type", "status", "index", "finish_reason",
            "created", "created_at", "timestamp", "model", "usage", "metadata", "cache_control",
            "provider_specific_fields", "extra_content", "encrypted_content", "phase", "done", "done_reason",
        }
    )  # fmt: skip

    role: Role
    content: Content | None = None
    name: Annotated[str, Field(max_length=256)] | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[MessageToolCall], AtMost(MAX_CALLS)] | None = None
    tool_call_id: CallId | None = None
    tool_name: Annotated[str, Field(max_length=256)] | None = None
    function_call: None = None

    @model_validator(mode="before")
    @classmethod
    def _read_result(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or data.get("role") != "tool":
            return data
        return {**data, "content": as_result(data.get("content"))}

    def add_to(self, conversation: ConversationReader, path: str) -> None:
        """Add the message to a conversation. path: its field. Raises FieldError."""
        called, here = f"{path}.tool_calls", f"{path}.content"
        if self.tool_calls and self.role != "assistant":
            raise FieldError(f"{called}: only an assistant message has calls", called)
        content = with_images(read(self.content or self.refusal, here), self.images, path)
        if self.role == "tool":
            id_, name = self.tool_call_id or None, self.tool_name or self.name or None
            id_path = f"{path}.tool_call_id" if id_ else path
            conversation.result(id_, content, here, name, id_path=id_path)
        elif self.role == "assistant":
            calls = [call.given(f"{called}[{j}]") for j, call in enumerate(self.tool_calls or [])]
            conversation.answer(content, here, self.reasoning_content or "", calls, self.name)
        else:
            conversation.say("system" if self.role == "developer" else self.role, content, here, self.name)


def conversation_of(messages: Sequence[Message]) -> ConversationReader:
    """The conversation of these messages. Raises FieldError."""
    reader = ConversationReader()
    for i, message in enumerate(messages):
        message.add_to(reader, f"messages[{i}]")
    return reader


class ConversationFields(ThinkingFields, ToolFields):
    """A conversation with its tools, and the variables of its chat template."""

    _turns: ReadConversation = PrivateAttr()

    @model_validator(mode="after")
    def _read(self) -> Self:
        """In a validator, so that large bodies are converted in the thread that validates them."""
        self._turns = self.read_turns()
        return self

    def read_turns(self) -> ReadConversation:
        """Convert the conversation. Raises FieldError."""
        raise NotImplementedError

    @property
    def turns(self) -> ReadConversation:
        return self._turns

    @property
    def given_images(self) -> Sequence[GivenImage]:
        return self._turns.images

    def place_images(self, texts: Mapping[int, str], images: Sequence[protocol.Image]) -> None:
        self._turns, self._images = self._turns.placed(texts), images

    def refuse_images(self, how: str) -> None:
        self._turns = self._turns.without_images(how)

    @property
    def logged(self) -> Any:
        return self._turns.messages

    @property
    def has_tools(self) -> bool:
        return self.request_tools.allowed is not None

    def chat_input(self, server: Mapping[str, Any]) -> protocol.ChatInput:
        """The prompt. server: the server's variables. Raises FieldError."""
        turns, variables = self._turns, self.template_variables(server)
        tools = self.request_tools.allowed
        images = list(self._images)
        return protocol.ChatInput(
            turns.messages, variables, tools, turns.prefix, turns.thought, images=images
        )

    def prompts(self, server: Mapping[str, Any]) -> Sequence[protocol.PromptInput]:
        return [self.chat_input(server)]


class TemplateInput(ConversationFields):
    """The conversation of /v1/chat/completions and /apply-template."""

    model: Annotated[str, Field(max_length=512)] | None = None
    messages: Annotated[list[Message], AtMost(MAX_MESSAGES, 1)]
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    def read_turns(self) -> ReadConversation:
        self._check_continuation()
        return conversation_of(self.messages).read(self._continues)

    @property
    def _continues(self) -> bool:
        return self.messages[-1].role == "assistant" and self.continue_final_message is not False

    def _check_continuation(self) -> None:
        """Raises FieldError; also for two final answers, as llama-server does."""
        name, last = "continue_final_message", self.messages[-1]
        if self.add_generation_prompt and self.continue_final_message:
            raise FieldError(f"{name} and add_generation_prompt are both true; only one can be", name)
        if self.continue_final_message and last.role != "assistant":
            raise FieldError("messages: the last one is not the assistant's", "messages")
        if self._continues and len(self.messages) > 1 and self.messages[-2].role == "assistant":
            raise FieldError(
                "messages: of two messages of the assistant at the end, none is continued", "messages"
            )

    def template_variables(self, server: Mapping[str, Any]) -> JsonObject:
        without = self.add_generation_prompt is False and not self._continues
        more = {"add_generation_prompt": False} if without else {}
        return super().template_variables(server) | more
