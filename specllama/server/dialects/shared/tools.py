"""Tools in requests of all APIs: their definitions, and the choice among them.

Every API reads the forms of all: clients keep those that they know. Tools that run on a provider's servers
are left out, because agents always send some; a request with no others, or that must call one, fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, PrivateAttr, model_validator

from specllama.calls import history
from specllama.calls.tools import Choice, Tool, Tools
from specllama.errors import UsageError
from specllama.json_types import JsonObject
from specllama.server.dialects.shared.fields import MAX_JSON, SMALL, AtMost, Body, FieldError, RequestBody

MAX_TOOLS = 1024
MAX_CALLS = 1024  # of one message
_SHOWN = 10  # names in a message

Name = Annotated[str, Field(max_length=512)]
Kind = Annotated[str, Field(max_length=256)]
Description = Annotated[str, Field(max_length=MAX_JSON)]
Schema = Annotated[JsonObject, SMALL]
_MODES: Mapping[str, Choice] = {"auto": "auto", "none": "none", "required": "required", "any": "required"}
_FUNCTIONS = (None, "function", "tool", "custom")  # types of choices of one tool
_SCHEMAS = ("parameters", "input_schema")
_FORMS = '"auto", "none", "required", the name of a tool, or an object that names one'


class FunctionDefinition(Body):
    """A function. input_schema: Anthropic's name of parameters. Other fields are for other servers."""

    name: Name | None = None
    description: Description | None = None
    parameters: Schema | None = None
    input_schema: Schema | None = None
    strict: bool | None = None

    @property
    def schema_field(self) -> str:
        return "input_schema" if self.parameters is None and self.input_schema is not None else "parameters"

    @property
    def arguments(self) -> JsonObject | None:
        schema: JsonObject | None = getattr(self, self.schema_field)
        return schema


class NamespaceEntry(FunctionDefinition):
    """A tool: a function in the form of any API, nested in `function` or flat; or one that runs elsewhere, of
    which only the type is read.
    """

    type: Kind | None = None
    function: FunctionDefinition | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_its_type(cls, data: Any) -> Any:
        """Of a provider's tool, and of one that gets a text, only the type."""
        kind = data.get("type") if isinstance(data, Mapping) else None
        if kind == "custom":
            elsewhere = not any(isinstance(data.get(name), Mapping) for name in _SCHEMAS)
        else:
            elsewhere = kind not in (None, "function", "namespace")
        return {"type": kind} if elsewhere else data

    @property
    def is_function(self) -> bool:
        """Whether it is a function that the client runs."""
        return self.type in (None, "function") or any(getattr(self, name) is not None for name in _SCHEMAS)

    @property
    def definition(self) -> FunctionDefinition:
        return self.function or self


class ToolDefinition(NamespaceEntry):
    """A tool of a request. tools: of a namespace, whose functions have its name before their own."""

    tools: Annotated[list[NamespaceEntry], AtMost(MAX_TOOLS)] | None = None


class FunctionName(Body):
    """A function by its name."""

    name: Name | None = None


class NamedTool(FunctionName):
    """A tool in a choice, in the form of any API."""

    type: Kind | None = None
    namespace: Name | None = None
    function: FunctionName | None = None
    custom: FunctionName | None = None

    @property
    def named(self) -> str | None:
        return next((one.name for one in (self.function, self.custom, self) if one and one.name), None)


class AllowedTools(Body):
    """mode: whether one of these tools may or must be called."""

    mode: Kind = "auto"
    tools: Annotated[list[NamedTool], AtMost(MAX_TOOLS)] | None = None


class ChosenTools(NamedTool, AllowedTools):
    """A choice as an object: of a mode by its type, of one tool, or of those that are allowed."""

    allowed_tools: AllowedTools | None = None
    disable_parallel_tool_use: bool | None = None

    @property
    def allowed(self) -> AllowedTools:
        """For the type allowed_tools: nested, or flat."""
        return self.allowed_tools or self


@dataclass(slots=True)
class RequestTools:
    """The functions of a request under unique names. allowed: the tools and which may be called, None without
    tools. names: (namespace, name) by flat name, for functions in namespaces. dropped: types of the tools
    that were left out.
    """

    allowed: Tools | None = None
    names: dict[str, tuple[str, str]] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)

    @property
    def note(self) -> str:
        """A log line about tools that were left out, "" for none."""
        kinds = list(dict.fromkeys(self.dropped))
        named = [json.dumps(kind[:40])[1:-1] for kind in kinds[:_SHOWN]]
        shown = ", ".join(named + ["…"] * (len(kinds) > _SHOWN))
        return f"left out tools of types that do not run here: {shown}" if kinds else ""


class ToolFields(RequestBody):
    """Tools, the choice among them, and whether an answer may contain several calls, under both names.
    any_form: see definitions.tool.
    """

    tools: Annotated[list[ToolDefinition], AtMost(MAX_TOOLS)] | None = None
    tool_choice: Name | ChosenTools | None = None
    parallel_tool_calls: bool | None = None
    disable_parallel_tool_use: bool | None = None
    any_form: ClassVar[bool] = False
    _request_tools: RequestTools = PrivateAttr(default_factory=RequestTools)

    @model_validator(mode="after")
    def _read_tools(self) -> Self:
        """In a validator, so that large bodies are read in the thread that validates them."""
        reader = _ToolReader(self.any_form)
        for i, tool in enumerate(self.tools or ()):
            reader.add(tool, f"tools[{i}]")
        self._request_tools = reader.read(self.tool_choice, self.parallel)
        return self

    @property
    def request_tools(self) -> RequestTools:
        return self._request_tools

    @property
    def parallel(self) -> bool:
        """Whether an answer may contain several calls, True by default."""
        choice = self.tool_choice
        inner = choice.disable_parallel_tool_use if isinstance(choice, ChosenTools) else None
        if inner is not None:
            return not inner
        if self.parallel_tool_calls is not None:
            return self.parallel_tool_calls
        return not self.disable_parallel_tool_use


def flat_name(namespace: str | None, name: str) -> str:
    """The function's name as shown to the model."""
    if not namespace or namespace == name:  # a function that was loaded later has its own name as namespace
        return name
    return f"{namespace}{'' if namespace.endswith('_') else '__'}{name}"


class _ToolReader:
    def __init__(self, any_form: bool) -> None:
        self._result, self._any_form = RequestTools(), any_form
        self._tools: dict[str, Tool] = {}
        self._at_top = set[str]()  # names of functions in no namespace

    def add(self, tool: ToolDefinition, path: str) -> None:
        if tool.type != "namespace":
            self._add(tool, None, path)
            return
        name = needed(tool.name, f"{path}.name")
        for i, one in enumerate(tool.tools or ()):
            self._add(one, name, f"{path}.tools[{i}]")

    def _add(self, tool: NamespaceEntry, namespace: str | None, path: str) -> None:
        if not tool.is_function:
            self._result.dropped.append(str(tool.type))
            return
        at, function = path, tool.definition
        path = f"{path}.function" if tool.function is not None else path
        name = needed(function.name, f"{path}.name")
        flat = flat_name(namespace, name)
        if flat in self._tools:
            raise FieldError(f"{at}: there is a tool {flat[:80]!r} already", at)
        if len(self._tools) == MAX_TOOLS:
            raise FieldError(f"tools: there must be at most {MAX_TOOLS} functions in all", "tools")
        self._tools[flat] = self._tool(function, flat, path)
        if namespace is None:
            self._at_top.add(flat)
        else:
            self._result.names[flat] = namespace, name

    def _tool(self, function: FunctionDefinition, name: str, path: str) -> Tool:
        try:
            return history.tool(
                name,
                function.description,
                function.arguments,
                bool(function.strict),
                field=path,
                schema_field=function.schema_field,
                any_form=self._any_form,
            )
        except UsageError as error:
            raise FieldError(error.message, error.details["param"]) from None

    def read(self, choice: str | ChosenTools | None, parallel: bool) -> RequestTools:
        """The tools and those that the choice allows; a named one is called once. Raises FieldError."""
        mode, names, is_one = self._chosen(choice)
        if self._result.dropped and not self._tools and mode != "none":
            kinds = ", ".join(dict.fromkeys(self._result.dropped))[:200]
            raise FieldError(f"tools: those of the type {kinds} do not run here; give functions", "tools")
        if not self._tools:
            if mode == "required" or names:
                raise FieldError("tool_choice needs tools", "tool_choice")
            return self._result
        for name in names:
            if name not in self._tools:
                raise FieldError(
                    f"tool_choice: there is no tool {name[:80]!r}; the tools are {self._shown}", "tool_choice"
                )
        unique = tuple(dict.fromkeys(names))
        self._result.allowed = Tools(list(self._tools.values()), mode, unique, parallel and not is_one)
        return self._result

    @property
    def _shown(self) -> str:
        return ", ".join([*self._tools][:_SHOWN] + ["…"] * (len(self._tools) > _SHOWN))

    def _chosen(self, choice: str | ChosenTools | None) -> tuple[Choice, Sequence[str], bool]:
        """The mode, the names that may be called, () for all, and whether one tool is chosen."""
        if choice is None:
            return "auto", (), False
        if isinstance(choice, str):
            if choice in _MODES:
                return _MODES[choice], (), False
            if choice in self._tools:
                return "required", [choice], True
            among = f"; the tools are {self._shown}" if self._tools else ""
            raise FieldError(f"tool_choice must be {_FORMS}, not {choice[:80]!r}{among}", "tool_choice")
        if choice.type is not None and choice.type in _MODES:
            if choice.named is not None:
                raise FieldError('tool_choice.name is for the type "function" or "tool"', "tool_choice.name")
            return _MODES[choice.type], (), False
        if choice.type == "allowed_tools":
            return *self._allowed(choice), False
        if choice.type not in _FUNCTIONS:
            raise FieldError(
                f"tool_choice: only functions can be called here, no tools of the type {choice.type[:80]!r}",
                "tool_choice",
            )
        return "required", [self._name(choice, "tool_choice")], True

    def _allowed(self, choice: ChosenTools) -> tuple[Choice, Sequence[str]]:
        nested = ".allowed_tools" if choice.allowed_tools is not None else ""
        given, path = choice.allowed, f"tool_choice{nested}"
        mode = _MODES.get(given.mode, "none")
        if mode == "none":
            raise FieldError(f'{path}.mode must be "auto" or "required"', f"{path}.mode")
        entries = [(one, f"{path}.tools[{i}]") for i, one in enumerate(given.tools or ())]
        names = [name for one, at in entries for name in self._of(one, at)]
        if names:
            return mode, names
        if mode == "required":
            raise FieldError(f"{path}.tools has no function that could be called", "tool_choice")
        return ("none" if self._tools else "auto"), ()

    def _of(self, tool: NamedTool, path: str) -> Iterator[str]:
        if tool.type == "namespace":
            yield from (one for one, (name, _) in self._result.names.items() if name == tool.name)
        elif tool.type in _FUNCTIONS:
            yield self._name(tool, path)

    def _name(self, chosen: NamedTool, path: str) -> str:
        """The flat name; without a namespace, of the only function of this name in any namespace."""
        name = needed(chosen.named, f"{path}.name")
        if chosen.namespace:
            return flat_name(chosen.namespace, name)
        inside = [one for one, (_, inner) in self._result.names.items() if inner == name]
        return inside[0] if len(inside) == 1 and name not in self._at_top else name


def needed(value: str | None, path: str) -> str:
    """A text that must be there. path: its field. Raises FieldError."""
    if not value:
        raise FieldError(f"{path} is missing", path)
    return value
