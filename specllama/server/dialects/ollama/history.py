"""Messages of Ollama's API, and the conversation that they make for chat templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from specllama.server.dialects.shared.conversation import ConversationReader, GivenCall
from specllama.server.dialects.shared.fields import AtMost, Body, FieldError
from specllama.server.dialects.shared.given_calls import CalledFunction, CallId
from specllama.server.dialects.shared.parts import Content, MessageFields, read, with_images
from specllama.server.dialects.shared.tool_choice import MAX_CALLS, Name


class OllamaCall(Body):
    """A call in an earlier answer."""

    unnamed = frozenset({"index", "extra_content", "provider_specific_fields"})

    function: CalledFunction
    id: CallId | None = None
    type: Literal["function"] | None = None


class OllamaMessage(MessageFields):
    """thinking: reasoning of an answer. tool_name, tool_call_id: of a tool's result, both optional."""

    unnamed = frozenset(
        {
            "id", "created_at", "timestamp", "model", "done", "done_reason", "metadata", "annotations",
            "cache_control", "provider_specific_fields", "finish_reason", "refusal",
        }
    )  # fmt: skip

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    tool_calls: Annotated[list[OllamaCall], AtMost(MAX_CALLS)] | None = None
    tool_name: Name | None = None
    tool_call_id: CallId | None = None
    name: Annotated[str, Field(max_length=256)] | None = None

    def add_to(self, conversation: ConversationReader, path: str) -> None:
        """Add the message to a conversation. path: its field. Raises FieldError."""
        called, here = f"{path}.tool_calls", f"{path}.content"
        if self.tool_calls and self.role != "assistant":
            raise FieldError(f"{called}: only the assistant calls tools", called)
        content = with_images(read(self.content, here), self.images, path)
        if self.role == "tool":
            id_, name = self.tool_call_id or None, self.tool_name or self.name
            id_path = path if id_ is None else f"{path}.tool_call_id"
            conversation.result(id_, content, here, name or None, id_path=id_path)
        elif self.role == "assistant":
            calls = [
                GivenCall(
                    c.id or None, c.function.name, c.function.arguments, f"{called}[{j}].function.arguments"
                )
                for j, c in enumerate(self.tool_calls or ())
            ]
            conversation.answer(content, here, self.reasoning_content or "", calls, self.name)
        else:
            conversation.say("system" if self.role == "developer" else self.role, content, here, self.name)


def conversation_of(messages: Sequence[OllamaMessage]) -> ConversationReader:
    """The conversation of these messages. Raises FieldError."""
    reader = ConversationReader()
    for i, message in enumerate(messages):
        message.add_to(reader, f"messages[{i}]")
    return reader


def no_images(images: Sequence[Any] | None, field: str) -> None:
    """Raises FieldError if there are images."""
    if images:
        raise FieldError(f"{field}: this model reads text only and could not process image input", field)
