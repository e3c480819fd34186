"""The input of a chat template, in the bodies of /v1/chat/completions and /apply-template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, PrivateAttr, model_validator

from specllama.client import protocol
from specllama.json_types import JsonObject
from specllama.server.dialects.shared.chat_messages import Message, conversation_of
from specllama.server.dialects.shared.conversation import MAX_MESSAGES, ReadConversation
from specllama.server.dialects.shared.fields import AtMost, FieldError
from specllama.server.dialects.shared.thinking import ThinkingFields
from specllama.server.dialects.shared.tools import ToolFields


class TemplateInput(ThinkingFields, ToolFields):
    """A conversation with its tools, and the variables of its chat template."""

    model: Annotated[str, Field(max_length=512)] | None = None
    messages: Annotated[list[Message], AtMost(MAX_MESSAGES, 1)]
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    _conversation: ReadConversation = PrivateAttr()

    @model_validator(mode="after")
    def _convert(self) -> Self:
        """In a validator, so that large bodies are converted in the thread that validates them."""
        self._check_continuation()
        self._conversation = conversation_of(self.messages).read(self._continues)
        return self

    @property
    def turns(self) -> ReadConversation:
        """The conversation."""
        return self._conversation

    @property
    def _continues(self) -> bool:
        """Whether the answer continues the last message."""
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

    def variables(self) -> JsonObject:
        """The variables of the chat template. Raises FieldError."""
        without = self.add_generation_prompt is False and not self._continues
        return self.thinking_variables() | ({"add_generation_prompt": False} if without else {})

    def chat_input(self, server: Mapping[str, Any]) -> protocol.ChatInput:
        """The prompt. server: the server's variables. Raises FieldError."""
        turns, tools, variables = self.turns, self.request_tools.allowed, {**server, **self.variables()}
        return protocol.ChatInput(turns.messages, variables, tools, turns.prefix, turns.thought)
