"""Tools and calls in requests, for all APIs: definitions, the choice among them, and calls of earlier turns.

Functions take plain values and the names that their fields have in the API; errors name the field. They are
called while a body is checked, which happens in a thread where it is large.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from specllama.calls import definitions
from specllama.calls.tools import Choice, Tool, Tools
from specllama.errors import UsageError
from specllama.server.dialects.fields import MAX_JSON, SMALL, FieldError
from specllama.server.http.body import MAX_CONTAINERS, MAX_VALUES, parse

MAX_TOOLS = 1024
MAX_CALLS = 1024  # of one message
_SHOWN = 10  # names in a message

Name = Annotated[str, Field(max_length=512)]
Description = Annotated[str, Field(max_length=MAX_JSON)]
Schema = Annotated[dict[str, Any], SMALL]


def tool_of(
    name: str,
    description: str | None,
    parameters: Mapping[str, Any] | None,
    strict: bool | None = None,
    *,
    field: str,
    schema_field: str = "parameters",
    any_form: bool = False,
) -> Tool:
    """A tool that a request defines. field: path of the object that has the name, "tools[0].function".
    any_form: as in definitions.tool. Raises FieldError.
    """
    try:
        return definitions.tool(
            name,
            description,
            parameters,
            bool(strict),
            field=field,
            schema_field=schema_field,
            any_form=any_form,
        )
    except UsageError as error:
        raise FieldError(error.message, error.details["param"]) from None


def tools_of(
    tools: Sequence[Tool],
    choice: Choice = "auto",
    names: Sequence[str] = (),
    parallel: bool | None = None,
    *,
    field: str = "tools",
    choice_field: str = "tool_choice",
) -> Tools | None:
    """What a request allows; None where it has no tools. choice, names: as in Tools. Raises FieldError."""
    if not tools:
        if choice == "required" or names:
            raise FieldError(f"{choice_field} needs {field}", choice_field)
        return None
    known = set[str]()
    for i, tool in enumerate(tools):
        if tool.name in known:
            raise FieldError(f"{field}[{i}]: there is a tool {tool.name!r} already", f"{field}[{i}]")
        known.add(tool.name)
    for name in names:
        if name not in known:
            shown = ", ".join([tool.name for tool in tools[:_SHOWN]] + ["…"] * (len(tools) > _SHOWN))
            raise FieldError(
                f"{choice_field}: there is no tool {name[:80]!r}; the tools are {shown}", choice_field
            )
    return Tools(list(tools), choice, tuple(dict.fromkeys(names)), parallel is not False)


class CallArguments:
    """Parses the arguments of all calls in a request's earlier messages; together they are bounded as a body
    is.
    """

    def __init__(self) -> None:
        self._n_values = self._n_containers = 0

    def parse(self, arguments: str | Mapping[str, Any] | None, field: str) -> dict[str, Any]:
        """The arguments as an object. An empty text and null mean none. field: their path,
        "messages[1].tool_calls[0].function.arguments". Raises FieldError.
        """
        if arguments is None or isinstance(arguments, Mapping):
            return dict(arguments or {})
        if arguments.strip() in ("", "null"):
            return {}
        try:
            found = parse(arguments.encode("utf-8", "surrogatepass"), field)
        except UsageError as error:
            raise FieldError(error.message, field) from None
        self._count(found, field)
        return found

    def _count(self, arguments: dict[str, Any], field: str) -> None:
        todo: list[Any] = [arguments]
        while todo:
            one = todo.pop()
            self._n_containers += 1
            self._n_values += len(one)
            inside = one.values() if isinstance(one, dict) else one
            todo += [value for value in inside if isinstance(value, (dict, list))]
        if self._n_containers > MAX_CONTAINERS or self._n_values > MAX_VALUES:
            raise FieldError(f"{field}: the arguments of all calls have too many values together", field)


def name_results(messages: Iterable[dict[str, Any]]) -> None:
    """Give each result the name of its tool, where it has none and the call is known. messages: as chat
    templates read them.
    """
    names: dict[str, str] = {}
    for message in messages:
        for call in message.get("tool_calls") or ():
            names[call["id"]] = call["function"]["name"]
        if message["role"] == "tool" and not message.get("name") and message.get("tool_call_id") in names:
            message["name"] = names[message["tool_call_id"]]


def order_results(messages: list[dict[str, Any]]) -> None:
    """Put the results of a turn into the order of its calls: many templates show no ids, and clients send
    the results in the order in which they arrived. messages: as chat templates read them.
    """
    order: dict[str, int] = {}
    for i, message in enumerate(messages):
        if message["role"] != "tool":
            order = {call["id"]: n for n, call in enumerate(message.get("tool_calls") or ())}
        elif messages[i - 1]["role"] != "tool":
            end = next((j for j in range(i, len(messages)) if messages[j]["role"] != "tool"), len(messages))
            messages[i:end] = sorted(
                messages[i:end], key=lambda found: order.get(found.get("tool_call_id", ""), len(order))
            )
