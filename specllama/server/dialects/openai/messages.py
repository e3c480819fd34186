"""The messages of /v1/chat/completions, and the conversation that they make for chat templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from specllama.server.dialects.fields import SMALL, AtMost, Body, FieldError, OpenBody
from specllama.server.dialects.tool_choice import MAX_CALLS, CallArguments, Name, name_results

MAX_MESSAGES = 4096
_MAX_FIELDS = 1024  # of arguments that are an object
CallId = Annotated[str, Field(max_length=256)]


class TextPart(Body):
    """A part of a message's content, which can only be text."""

    type: Literal["text", "input_text", "output_text", "refusal"]
    text: str | None = None
    refusal: str | None = None

    @property
    def shown(self) -> str:
        return self.text or self.refusal or ""


class CalledFunction(OpenBody):
    """arguments: JSON of an object, or the object itself."""

    name: Name
    arguments: str | Annotated[dict[str, Any], AtMost(_MAX_FIELDS)] | None = None


class MessageToolCall(OpenBody):
    """A call that an earlier answer made. Fields that are not named here come from streams and other servers,
    and have no effect.
    """

    id: CallId
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Body):
    """One message. reasoning_content: the reasoning before it, for templates that show it. tool_call_id: the
    call of which a tool's message is the result.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], AtMost(MAX_MESSAGES)] | None = None
    name: Annotated[str, Field(max_length=256)] | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[MessageToolCall], AtMost(MAX_CALLS)] | None = None
    tool_call_id: CallId | None = None
    function_call: None = None
    annotations: Annotated[list[Any], AtMost(MAX_MESSAGES)] | None = None
    audio: None = None
    parsed: Annotated[Any, SMALL] = None  # of openai's own message objects, without effect

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.shown for part in self.content)
        return self.content or self.refusal or ""

    def for_template(self, field: str, arguments: CallArguments) -> dict[str, Any]:
        """The message as chat templates read it. field: its path. Raises FieldError."""
        called, result_of = f"{field}.tool_calls", f"{field}.tool_call_id"
        if self.tool_calls and self.role != "assistant":
            raise FieldError(f"{called}: only an assistant message has calls", called)
        if self.role == "tool" and self.tool_call_id is None:
            raise FieldError(f"{result_of} is missing: the id of the call that has this result", result_of)
        calls = [_call(call, f"{called}[{j}]", arguments) for j, call in enumerate(self.tool_calls or [])]
        role = "system" if self.role == "developer" else self.role
        more = {
            "name": self.name,
            "reasoning_content": self.reasoning_content,
            "tool_calls": calls,
            "tool_call_id": self.tool_call_id if role == "tool" else None,
        }
        return {"role": role, "content": self.text} | {k: v for k, v in more.items() if v}


def _call(call: MessageToolCall, field: str, arguments: CallArguments) -> dict[str, Any]:
    parsed = arguments.parse(call.function.arguments, f"{field}.function.arguments")
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": parsed}}


def conversation(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as chat templates read them; arguments of calls are objects. Raises FieldError."""
    arguments = CallArguments()
    found = [message.for_template(f"messages[{i}]", arguments) for i, message in enumerate(messages)]
    name_results(found)
    return found
