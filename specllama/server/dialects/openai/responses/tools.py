"""Tools of /v1/responses: functions, namespaces of functions, and tool choice.

Tools of other types run on OpenAI's servers. They are dropped, because agents always send some, unless one of
them must be called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict, cast, get_args

from pydantic import Field, model_validator

from specllama.calls.tools import Choice, Tool, Tools
from specllama.json_types import JsonObject
from specllama.server.dialects.shared.fields import AtMost, Body, FieldError
from specllama.server.dialects.shared.tool_choice import (
    MAX_TOOLS,
    Description,
    Name,
    Schema,
    tool_of,
    tools_of,
)

Kind = Annotated[str, Field(max_length=128)]


class FunctionEcho(TypedDict):
    """A function as repeated in answers."""

    type: Literal["function"]
    name: str | None
    description: str | None
    parameters: JsonObject
    strict: bool


class NamespaceEcho(TypedDict):
    """A namespace as repeated in answers."""

    type: Literal["namespace"]
    name: str
    description: str
    tools: list[FunctionEcho]


class ToolName(TypedDict):
    """A function of a request whose tools are too large to be repeated."""

    type: Literal["function"]
    name: str | None


ToolEcho = FunctionEcho | NamespaceEcho | ToolName


def name_only(tool: ToolEcho) -> ToolEcho:
    """The tool as repeated in answers to requests whose tools are too large."""
    if tool["type"] == "namespace":
        return {"type": "namespace", "name": tool["name"], "description": "", "tools": []}
    return {"type": "function", "name": tool["name"]}


class FunctionFields(Body):
    """A function, or another entry of a namespace."""

    type: Kind
    name: Name | None = None
    description: Description | None = None
    parameters: Schema | None = None
    strict: bool | None = None

    def echo(self) -> FunctionEcho:
        """The function as repeated in answers."""
        return {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters or {},
            "strict": bool(self.strict),
        }


class ResponseTool(FunctionFields):
    """A tool. tools: of a namespace."""

    tools: Annotated[list[FunctionFields], AtMost(MAX_TOOLS)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_its_type(cls, data: Any) -> Any:
        """Reduces a tool that runs on OpenAI's servers to its type: it is dropped as a whole."""
        if not isinstance(data, Mapping) or data.get("type") in ("function", "namespace"):
            return data
        return {name: data[name] for name in ("type",) if name in data}


class AllowedTool(Body):
    """A tool in a tool choice."""

    type: Kind
    name: Name | None = None
    namespace: Name | None = None


class ChosenTool(AllowedTool):
    """A tool choice in object form. mode, tools: for the type allowed_tools."""

    mode: Literal["auto", "required"] = "auto"
    tools: Annotated[list[AllowedTool], AtMost(MAX_TOOLS)] | None = None

    def echo(self) -> JsonObject:
        """The choice as repeated in answers."""
        one = self.type != "allowed_tools"
        return self.model_dump(exclude_none=True, exclude={"mode", "tools"} if one else {"name", "namespace"})


@dataclass(slots=True)
class FlatTools:
    """The functions of a request under unique names. allowed: the tools and which may be called, None without
    tools. names: (namespace, name) by flat name, for functions in namespaces. echo: the tools as repeated in
    answers. dropped: types of the dropped tools.
    """

    allowed: Tools | None = None
    names: dict[str, tuple[str, str]] = field(default_factory=dict)
    echo: list[ToolEcho] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)


def flat_name(namespace: str | None, name: str) -> str:
    """The function's name as shown to the model."""
    if not namespace or namespace == name:  # a function that was loaded later has its own name as namespace
        return name
    return f"{namespace}{'' if namespace.endswith('_') else '__'}{name}"


def flat_tools(tools: Sequence[ResponseTool], choice: str | ChosenTool, parallel: bool) -> FlatTools:
    """The functions among the tools, and those that the choice allows; one chosen by name is called once.
    Raises FieldError.
    """
    reader = _ToolReader()
    for i, tool in enumerate(tools):
        reader.add(tool, f"tools[{i}]")
    flat = reader.flat
    kind, names = _chosen(choice, flat, reader.tools)
    if kind == "required" and not reader.tools and tools:
        shown = ", ".join(dict.fromkeys(flat.dropped))[:200]
        raise FieldError(f"tool_choice: no tool that can be called here is left of {shown}", "tool_choice")
    named = isinstance(choice, ChosenTool) and choice.type == "function"
    flat.allowed = tools_of(reader.tools, kind, names, False if named else parallel)
    return flat


class _ToolReader:
    def __init__(self) -> None:
        self.flat, self.tools = FlatTools(), list[Tool]()
        self._known = set[str]()

    def add(self, tool: ResponseTool, path: str) -> None:
        """Add a tool of the request. path: its field. Raises FieldError."""
        if tool.type == "function":
            self._function(tool, None, path)
            self.flat.echo.append(tool.echo())
        elif tool.type == "namespace":
            name = _needed(tool.name, f"{path}.name")
            inner = [(i, one) for i, one in enumerate(tool.tools or ()) if self._is_function(one)]
            for i, one in inner:
                self._function(one, name, f"{path}.tools[{i}]")
            echo: NamespaceEcho = {
                "type": "namespace",
                "name": name,
                "description": tool.description or "",
                "tools": [one.echo() for _, one in inner],
            }
            self.flat.echo.append(echo)
        else:
            self._is_function(tool)

    def _is_function(self, tool: FunctionFields) -> bool:
        if tool.type != "function":
            self.flat.dropped.append(tool.type)
        return tool.type == "function"

    def _function(self, tool: FunctionFields, namespace: str | None, path: str) -> None:
        hint = "; tools of this API are flat: type, name, description, parameters"
        name = _needed(tool.name, f"{path}.name", hint)
        flat = flat_name(namespace, name)
        if flat in self._known:
            raise FieldError(f"{path}: there is a tool {flat[:80]!r} already", f"{path}.name")
        if len(self.tools) == MAX_TOOLS:
            raise FieldError(f"tools: there must be at most {MAX_TOOLS} functions in all", "tools")
        self._known.add(flat)
        self.tools.append(tool_of(flat, tool.description, tool.parameters, tool.strict, field=path))
        if namespace is not None:
            self.flat.names[flat] = (namespace, name)


def _chosen(choice: str | ChosenTool, flat: FlatTools, tools: Sequence[Tool]) -> tuple[Choice, Sequence[str]]:
    """The choice and the names that may be called, () for all. Raises FieldError."""
    if isinstance(choice, str):
        if choice in get_args(Choice):
            return cast("Choice", choice), ()
        raise FieldError(
            f'tool_choice must be "auto", "none", "required" or an object, not {choice[:80]!r}', "tool_choice"
        )
    if choice.type == "function":
        return "required", [_chosen_name(choice, flat, "tool_choice")]
    if choice.type != "allowed_tools":
        raise FieldError(
            f"tool_choice: only functions can be called here, no tools of the type {choice.type[:80]!r}",
            "tool_choice",
        )
    names: list[str] = []
    for i, tool in enumerate(choice.tools or ()):
        if tool.type == "function":
            names.append(_chosen_name(tool, flat, f"tool_choice.tools[{i}]"))
        elif tool.type == "namespace":
            names += [one for one, (namespace, _) in flat.names.items() if namespace == tool.name]
    if names:
        return choice.mode, names
    if choice.mode == "required":
        raise FieldError("tool_choice.tools has no function that could be called", "tool_choice")
    return ("none" if tools else "auto"), ()


def _chosen_name(chosen: AllowedTool, flat: FlatTools, path: str) -> str:
    """The flat name; for a choice without a namespace, that of the only function of this name in any
    namespace.
    """
    name = _needed(chosen.name, f"{path}.name")
    if chosen.namespace:
        return flat_name(chosen.namespace, name)
    inside = [one for one, (_, inner) in flat.names.items() if inner == name]
    at_top = any(tool["type"] == "function" and tool["name"] == name for tool in flat.echo)
    return inside[0] if len(inside) == 1 and not at_top else name


def _needed(value: str | None, path: str, hint: str = "") -> str:
    if not value:
        raise FieldError(f"{path} is missing{hint}", path)
    return value
