"""Bodies of /v1/messages and /v1/messages/count_tokens, converted to engine requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from specllama.client import protocol
from specllama.json_types import JsonObject
from specllama.server.dialects.anthropic.blocks import MessageTurn, Texts, system_text
from specllama.server.dialects.shared.conversation import MAX_MESSAGES, ConversationReader, ReadConversation
from specllama.server.dialects.shared.fields import SMALL, AtMost, FieldError
from specllama.server.dialects.shared.sampling_fields import SamplingFields, StopList
from specllama.server.dialects.shared.structured import OutputConfig
from specllama.server.dialects.shared.thinking import ThinkingFields
from specllama.server.dialects.shared.tools import ToolFields
from specllama.text.template_variables import reasoning_variables

_SYSTEM_BETA = "mid-conversation-"  # system, tool-changes: betas of which a message of the system is a part


class ThreadError(FieldError):
    """For a conversation that the server should store: this code makes SDKs send all of it."""

    def __init__(self) -> None:
        super().__init__("thread: no conversation is kept here; send all of its messages", "thread")
        self.details |= {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


class PromptRequest(ThinkingFields, ToolFields):
    """The input of a prompt. Unknown fields have no effect."""

    unnamed = frozenset({"context_management"})

    model: Annotated[str, Field(max_length=512)] | None = None
    messages: Annotated[list[MessageTurn], AtMost(MAX_MESSAGES, 1)]
    system: Texts | None = None
    output_config: OutputConfig | None = None
    thread: Annotated[JsonObject, SMALL] | None = None
    _conversation: ReadConversation = PrivateAttr()

    @model_validator(mode="after")
    def _read(self) -> Self:
        """In a validator, because large bodies are validated in a thread."""
        if self.thread is not None:
            raise ThreadError()
        self._conversation = self._turns()
        return self

    @property
    def turns(self) -> ReadConversation:
        """The conversation."""
        return self._conversation

    def check_roles(self, betas: str) -> None:
        """Raises FieldError if the first message has the role system without a beta that allows it.

        Later system messages need no beta, whose name has changed over time.
        """
        if self.messages[0].role == "system" and _SYSTEM_BETA not in betas:
            field = "messages[0].role"
            raise FieldError(f"{field} must be 'user' or 'assistant': instructions are in system", field)

    def chat_input(self, variables: Mapping[str, Any]) -> protocol.ChatInput:
        """The prompt. variables: of the server. Raises FieldError."""
        conversation = self._conversation
        return protocol.ChatInput(
            conversation.messages,
            self._variables(variables),
            self.request_tools.allowed,
            conversation.prefix,
            conversation.thought,
        )

    def _turns(self) -> ReadConversation:
        reader = ConversationReader()
        if system := system_text(self.system):
            reader.say("system", system, "system")
        for i, message in enumerate(self.messages):
            message.add_to(reader, f"messages[{i}]")
        return reader.read()

    def _variables(self, server: Mapping[str, Any]) -> JsonObject:
        """Variables of the template. If the request sets none, those of the server apply, and reasoning
        is off by default as in Anthropic's API; it is always off in a continued answer.
        """
        variables = self.thinking_variables(self.configured_effort)
        off = reasoning_variables("off")
        if self._conversation.prefix and "enable_thinking" not in self.chat_template_kwargs:
            variables |= off
        return {**off, **server, **variables}


class CountRequest(PromptRequest):
    """The body of /v1/messages/count_tokens."""


class MessagesRequest(SamplingFields, PromptRequest):
    """The body of /v1/messages. All sampling parameters of the program may be given, too."""

    model: Annotated[str, Field(max_length=512)] | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)]
    n: Literal[1] = 1
    output_config: OutputConfig | None = None
    own_form: ClassVar[str] = "output_config.format"
    aliases: ClassVar[Mapping[str, str]] = {"n_predict": "max_tokens"}
    stop_sequences: StopList = None

    def generation(self, defaults: Mapping[str, Any], variables: Mapping[str, Any]) -> protocol.Generate:
        """The engine's request. defaults, variables: of the server. Raises UsageError."""
        return protocol.Generate(
            -1,
            self.chat_input(variables),
            params={**defaults, **self._params()},
            strict_schema=self.limits.strict,
            **self.engine_fields(),
            progress=self.stream,
        )

    @property
    def has_tools(self) -> bool:
        return self.request_tools.allowed is not None

    def _params(self) -> JsonObject:
        if self.n_logprobs is not None:
            raise FieldError("logprobs: answers of this API have none; /v1/chat/completions has", "logprobs")
        more: JsonObject = {"stop": self.stop_sequences, **self.limits.params}
        return self.sampling(**{name: value for name, value in more.items() if value is not None})
