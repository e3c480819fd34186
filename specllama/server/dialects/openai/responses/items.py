"""The input of /v1/responses: its items, and the messages for chat templates that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from specllama.server.dialects.fields import AtMost, FieldError, OpenBody
from specllama.server.dialects.instructions import between_turns
from specllama.server.dialects.openai.responses.tools import flat_name
from specllama.server.dialects.tool_choice import CallArguments, Name, name_results

MAX_ITEMS = 4096
_ITEMS = ("message", "function_call", "function_call_output", "reasoning")
_TEXTS = ("input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text")
_NO_TEXT = ("input_image", "input_file", "input_audio", "image_url")
CallId = Annotated[str, Field(max_length=512)]


class InputPart(OpenBody):
    """A part of a content, which can only be text."""

    type: str
    text: str | None = None
    refusal: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_type(cls, data: Any) -> Any:
        kind = data.get("type") if isinstance(data, Mapping) else _TEXTS[0]
        if kind in _NO_TEXT:
            raise ValueError(f"{kind} cannot be read, the model reads text only")
        if kind not in _TEXTS:
            raise ValueError(f"the type must be one of {', '.join(_TEXTS)}, not {_shown(kind)}")
        return data


Parts = Annotated[list[InputPart], AtMost(MAX_ITEMS)]


class InputItem(OpenBody):
    """One item, of any type; a message may leave its type out. Fields that are not here have no effect."""

    type: str | None = None
    role: Literal["user", "system", "developer", "assistant"] | None = None
    content: str | Parts | None = None
    call_id: CallId | None = None
    name: Name | None = None
    namespace: Name | None = None
    arguments: str | None = None
    output: str | Parts | None = None
    summary: Parts | None = None
    status: Annotated[str, Field(max_length=64)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_type(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        kind = data.get("type")
        if kind == "item_reference" or (kind is None and "role" not in data and "id" in data):
            raise ValueError("an item_reference cannot be resolved, nothing is stored: send the item itself")
        if kind is not None and kind not in _ITEMS:
            raise ValueError(f"the type must be one of {', '.join(_ITEMS)}, not {_shown(kind)}")
        return data

    @property
    def kind(self) -> str:
        return self.type or "message"


def messages_of(instructions: str | None, items: str | Sequence[InputItem]) -> list[dict[str, Any]]:
    """The messages for the chat template. Raises FieldError."""
    read = _Conversation()
    if instructions:
        read.add("system", instructions)
    if isinstance(items, str):
        read.add("user", items)
    else:
        for i, item in enumerate(items):
            read.add_item(item, f"input[{i}]")
    if not read.turns:
        raise FieldError("input: there is nothing to answer", "input")
    messages = [turn.message() for turn in read.turns]
    name_results(messages)
    return messages


@dataclass(slots=True)
class _Turn:
    """A message in parts. more: its other fields."""

    role: str
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)

    def message(self) -> dict[str, Any]:
        """The message as chat templates read it."""
        found = {"role": self.role, "content": ("\n\n" if self.role == "system" else "\n").join(self.texts)}
        fields = {"reasoning_content": "\n".join(self.thoughts), "tool_calls": self.calls}
        return found | {name: value for name, value in fields.items() if value} | self.more


class _Conversation:
    """Makes messages of items. Reasoning, text and calls of the assistant that follow each other are one
    message, as are the system's at the beginning.
    """

    def __init__(self) -> None:
        self.turns: list[_Turn] = []
        self._arguments = CallArguments()
        self._cut_off = set[str]()  # ids of calls that are left out

    def add(self, role: str, text: str) -> None:
        if role == "system" and len(self.turns) == 1 and self.turns[0].role == "system":
            self.turns[0].texts.append(text)
        elif role == "system" and self.turns:
            message = between_turns(text)
            self.turns.append(_Turn(message["role"], [message["content"]]))
        else:
            self.turns.append(_Turn(role, [text]))

    def add_item(self, item: InputItem, path: str) -> None:
        """Add an item. path: its field. Raises FieldError."""
        if item.kind == "message":
            self._message(item, path)
        elif item.kind == "reasoning":
            self._reasoning(item)
        elif item.kind == "function_call":
            self._call(item, path)
        else:
            self._result(item, path)

    def _message(self, item: InputItem, path: str) -> None:
        if item.role is None:
            raise FieldError(f"{path}.role is missing", f"{path}.role")
        text = _text(item.content)
        if item.role != "assistant":
            self.add("user" if item.role == "user" else "system", text)
            return
        last = self._last
        turn = self._turn(new=last is not None and bool(last.texts) and not last.calls)
        turn.texts += [text] if text else []

    def _reasoning(self, item: InputItem) -> None:
        text = _text(item.content) or _text(item.summary)
        if text:
            last = self._last
            turn = self._turn(new=last is not None and bool(last.texts or last.calls))
            turn.thoughts.append(text)

    def _call(self, item: InputItem, path: str) -> None:
        call_id, name = _needed(item.call_id, f"{path}.call_id"), _needed(item.name, f"{path}.name")
        try:
            arguments = self._arguments.parse(item.arguments, f"{path}.arguments")
        except FieldError:
            if item.status != "incomplete":
                raise
            self._cut_off.add(call_id)  # as this server has sent it
            return
        function = {"name": flat_name(item.namespace, name), "arguments": arguments}
        self._turn().calls.append({"id": call_id, "type": "function", "function": function})

    def _result(self, item: InputItem, path: str) -> None:
        call_id = _needed(item.call_id, f"{path}.call_id")
        if item.output is None:
            raise FieldError(f"{path}.output is missing", f"{path}.output")
        if call_id not in self._cut_off:
            self.turns.append(_Turn("tool", [_text(item.output)], more={"tool_call_id": call_id}))

    @property
    def _last(self) -> _Turn | None:
        """The assistant's turn that may go on, None if the last one is of somebody else."""
        return self.turns[-1] if self.turns and self.turns[-1].role == "assistant" else None

    def _turn(self, new: bool = False) -> _Turn:
        """The assistant's turn that goes on. new: whether to begin another one."""
        last = self._last
        if new or last is None:
            last = _Turn("assistant")
            self.turns.append(last)
        return last


def _text(content: str | Sequence[InputPart] | None) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.text or part.refusal or "" for part in content or ())


def _needed(value: str | None, path: str) -> str:
    if not value:
        raise FieldError(f"{path} is missing", path)
    return value


def _shown(kind: Any) -> str:
    return repr(kind)[:80]
