"""The body of /v1/chat/completions, and its messages in the form of chat templates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, PrivateAttr, model_validator

from specllama.calls.tools import Tools
from specllama.client import protocol
from specllama.server.dialects.conversation import MAX_MESSAGES, ReadConversation
from specllama.server.dialects.fields import AtMost, FieldError
from specllama.server.dialects.openai.messages import Message, conversation_of
from specllama.server.dialects.openai.sampling_fields import MAX_TOP, Count, SamplingFields, first
from specllama.server.dialects.openai.tools import ToolChoice, ToolList, requested_tools
from specllama.server.dialects.thinking import ThinkingFields
from specllama.server.dialects.tool_choice import ParallelFields


class TemplateInput(ThinkingFields, ParallelFields):
    """A conversation with its tools, and the variables of its chat template."""

    model: Annotated[str, Field(max_length=512)] | None = None
    messages: Annotated[list[Message], AtMost(MAX_MESSAGES, 1)]
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: ToolList | None = None
    tool_choice: ToolChoice | None = None
    _conversation: ReadConversation = PrivateAttr()
    _allowed: Tools | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _convert(self) -> Self:
        """Here, so that large bodies are converted in the thread that checks them."""
        self._check_continuation()
        self._conversation = conversation_of(self.messages).read(self._continues)
        self._allowed = requested_tools(self.tools or (), self.tool_choice, self.parallel)
        return self

    @property
    def allowed(self) -> Tools | None:
        """The tools, and which of them may be called; None without tools."""
        return self._allowed

    @property
    def turns(self) -> ReadConversation:
        """The conversation."""
        return self._conversation

    @property
    def _continues(self) -> bool:
        """Whether the answer continues the last message."""
        return self.messages[-1].role == "assistant" and self.continue_final_message is not False

    def _check_continuation(self) -> None:
        """Raises FieldError, for two answers at the end too, as llama-server does."""
        name, last = "continue_final_message", self.messages[-1]
        if self.add_generation_prompt and self.continue_final_message:
            raise FieldError(f"{name} and add_generation_prompt are both true; only one can be", name)
        if self.continue_final_message and last.role != "assistant":
            raise FieldError("messages: the last one is not the assistant's", "messages")
        if self._continues and len(self.messages) > 1 and self.messages[-2].role == "assistant":
            raise FieldError(
                "messages: of two messages of the assistant at the end, none is continued", "messages"
            )

    def variables(self) -> dict[str, Any]:
        """The variables of the chat template. Raises FieldError."""
        without = self.add_generation_prompt is False and not self._continues
        return self.thinking_variables() | ({"add_generation_prompt": False} if without else {})

    def chat_input(self, server: Mapping[str, Any]) -> protocol.ChatInput:
        """The prompt. server: the server's variables. Raises FieldError."""
        found, variables = self.turns, {**server, **self.variables()}
        return protocol.ChatInput(found.messages, variables, self.allowed, found.prefix, found.thought)


class ChatRequest(SamplingFields, TemplateInput):
    """The body of /v1/chat/completions."""

    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None

    def generation(self, defaults: Mapping[str, Any], variables: Mapping[str, Any]) -> protocol.Generate:
        """The engine's request. defaults, variables: of the server. Raises UsageError."""
        return protocol.Generate(
            -1,
            self.chat_input(variables),
            params={**defaults, **self._params()},
            strict_schema=self.limits.strict,
            show_prompt=bool(self.verbose),
            progress=self.shows_progress,
            **self.engine_fields(),
        )

    def _params(self) -> dict[str, Any]:
        if self.top_logprobs is not None and not self.logprobs:
            raise FieldError("top_logprobs needs logprobs: true", "top_logprobs")
        return self.sampling(
            max_tokens=first(self.max_completion_tokens, self.max_tokens, self.n_predict),
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            **self.limits.params,
        )

    @property
    def has_tools(self) -> bool:
        return self.allowed is not None
