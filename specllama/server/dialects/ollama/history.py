"""Messages of Ollama's API in the form of chat templates; results are paired with calls that have no ids."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from specllama.server.dialects.fields import AtMost, Body, FieldError
from specllama.server.dialects.tool_choice import MAX_CALLS, CallArguments, Name

MAX_IMAGES = 64


class OllamaCallFunction(Body):
    """arguments: an object; JSON text of one is accepted too. index: has no effect."""

    name: Name
    arguments: str | Annotated[dict[str, Any], AtMost(MAX_CALLS)] | None = None
    index: int | None = None
    description: str | None = None


class OllamaCall(Body):
    """A call of an earlier answer."""

    function: OllamaCallFunction
    id: Name | None = None
    type: Literal["function"] | None = None


class OllamaMessage(Body):
    """thinking: the reasoning before an answer. tool_name, tool_call_id: of a tool's result, either or
    none.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: Annotated[list[Any], AtMost(MAX_IMAGES)] | None = None
    tool_calls: Annotated[list[OllamaCall], AtMost(MAX_CALLS)] | None = None
    tool_name: Name | None = None
    tool_call_id: Name | None = None
    name: Annotated[str, Field(max_length=256)] | None = None


class _OpenCalls:
    """The calls without a result so far. Ids that are missing are numbered: 9 letters and digits."""

    def __init__(self) -> None:
        self._n = 0
        self._open: dict[int, tuple[str, str]] = {}  # by number: id and name
        self._in_order = deque[int]()
        self._by_id: defaultdict[str | None, deque[int]] = defaultdict(deque)
        self._by_name: defaultdict[str | None, deque[int]] = defaultdict(deque)

    def add(self, id_: str | None, name: str) -> str:
        """Add a call; returns its id."""
        found = self._new_id(id_)
        self._open[self._n] = found, name
        for numbers in (self._in_order, self._by_id[found], self._by_name[name]):
            numbers.append(self._n)
        return found

    def answer(self, id_: str | None, name: str | None) -> tuple[str, str]:
        """The id and name of the call that a result belongs to: the first with that id, else with that name,
        else, for a result without a name, the first.
        """
        places = [self._by_id[id_], self._by_name[name], *([self._in_order] if name is None else [])]
        for numbers in places:
            while numbers:
                if call := self._open.pop(numbers.popleft(), None):
                    return call
        return self._new_id(id_), name or ""

    def _new_id(self, id_: str | None) -> str:
        self._n += 1
        return id_ or f"call{self._n:05d}"


def conversation(messages: Sequence[OllamaMessage]) -> list[dict[str, Any]]:
    """The messages as chat templates read them. Raises FieldError."""
    arguments, open_, found = CallArguments(), _OpenCalls(), []
    for i, message in enumerate(messages):
        field = f"messages[{i}]"
        no_images(message.images, f"{field}.images")
        one: dict[str, Any] = {"role": message.role, "content": message.content or ""}
        if message.role == "tool":
            id_, name = open_.answer(message.tool_call_id, message.tool_name or message.name)
            one |= {"tool_call_id": id_} | ({"name": name} if name else {})
        elif message.name:
            one["name"] = message.name
        if message.thinking:
            one["reasoning_content"] = message.thinking
        if message.tool_calls:
            if message.role != "assistant":
                raise FieldError(f"{field}.tool_calls: only the assistant calls tools", f"{field}.tool_calls")
            one["tool_calls"] = [
                _call(call, arguments, open_, f"{field}.tool_calls[{j}].function")
                for j, call in enumerate(message.tool_calls)
            ]
        found.append(one)
    return found


def _call(call: OllamaCall, arguments: CallArguments, open_: _OpenCalls, field: str) -> dict[str, Any]:
    name = call.function.name
    parsed = arguments.parse(call.function.arguments, f"{field}.arguments")
    return {
        "id": open_.add(call.id, name),
        "type": "function",
        "function": {"name": name, "arguments": parsed},
    }


def no_images(images: Sequence[Any] | None, field: str) -> None:
    """Raises FieldError where there are images."""
    if images:
        raise FieldError(f"{field}: this model reads text only", field)
