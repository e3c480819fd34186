"""The messages of /v1/chat/completions, /apply-template and /api/chat, and the conversation that they make
for chat templates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from specllama.json_types import JsonObject
from specllama.server.dialects.shared.conversation import ConversationReader, GivenCall
from specllama.server.dialects.shared.fields import AtMost, Body, FieldError
from specllama.server.dialects.shared.parts import Content, MessageFields, as_result, read, with_images
from specllama.server.dialects.shared.tools import MAX_CALLS, Name

# Calls of earlier answers in requests: the parts that they have in common in all APIs.


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

    role: Literal["system", "developer", "user", "assistant", "tool"]
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
