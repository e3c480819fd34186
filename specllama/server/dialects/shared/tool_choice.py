"""Tools in requests of all APIs: definitions and tool choice.

The functions take plain values and the API's field names, which errors report. They run while a body is
validated, in a thread for large bodies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from specllama.calls import definitions
from specllama.calls.tools import Choice, Tool, Tools
from specllama.errors import UsageError
from specllama.json_types import JsonObject
from specllama.server.dialects.shared.fields import MAX_JSON, SMALL, FieldError, RequestBody

MAX_TOOLS = 1024
MAX_CALLS = 1024  # of one message
_SHOWN = 10  # names in a message

Name = Annotated[str, Field(max_length=512)]
Description = Annotated[str, Field(max_length=MAX_JSON)]
Schema = Annotated[JsonObject, SMALL]


class ParallelFields(RequestBody):
    """Whether an answer may contain several calls, under both names."""

    parallel_tool_calls: bool | None = None
    disable_parallel_tool_use: bool | None = None

    @property
    def parallel(self) -> bool:
        """Whether it may, True by default."""
        if self.parallel_tool_calls is not None:
            return self.parallel_tool_calls
        return not self.disable_parallel_tool_use


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
    """A tool defined by a request. field: path of the object with the name, "tools[0].function".
    any_form: see definitions.tool. Raises FieldError.
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
    parallel: bool = True,
    *,
    field: str = "tools",
    choice_field: str = "tool_choice",
) -> Tools | None:
    """The tools that a request allows, None without tools. choice, names: see Tools. Raises FieldError."""
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
    return Tools(list(tools), choice, tuple(dict.fromkeys(names)), parallel)
