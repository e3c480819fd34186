"""Tools in the bodies of /v1/chat/completions: their definitions, and the choice among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag

from specllama.calls.tools import Choice, Tools
from specllama.server.dialects.shared.fields import AtMost, Body
from specllama.server.dialects.shared.tool_choice import (
    MAX_TOOLS,
    Description,
    Name,
    Schema,
    tool_of,
    tools_of,
)


class FunctionDefinition(Body):
    """A function. Other fields are meant for other servers and have no effect."""

    name: Name
    description: Description | None = None
    parameters: Schema | None = None
    strict: bool | None = None


class ToolDefinition(Body):
    """A tool; only functions are supported."""

    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(Body):
    name: Name


class FunctionChoice(Body):
    """The tool that must be called; in a list of allowed tools, one that may be."""

    type: Literal["function"]
    function: FunctionName


class AllowedTools(Body):
    """mode: whether one of these tools may or must be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionChoice], AtMost(MAX_TOOLS, 1)]


class AllowedToolsChoice(Body):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _form(value: Any) -> str | None:
    if isinstance(value, str):
        return "<word>"
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return {"function": "<function>", "allowed_tools": "<allowed>"}.get(str(kind))


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<word>")]
    | Annotated[FunctionChoice, Tag("<function>")]
    | Annotated[AllowedToolsChoice, Tag("<allowed>")],
    Discriminator(
        _form,
        custom_error_type="choice",
        custom_error_message="must be 'none', 'auto', 'required' or of type function or allowed_tools",
    ),
]
ToolList = Annotated[list[ToolDefinition], AtMost(MAX_TOOLS)]


def requested_tools(
    given: Sequence[ToolDefinition], choice: ToolChoice | None, parallel: bool
) -> Tools | None:
    """The tools that a request allows; a tool chosen by name is called once. Raises FieldError."""
    tools = [
        tool_of(f.name, f.description, f.parameters, f.strict, field=f"tools[{i}].function")
        for i, f in enumerate(tool.function for tool in given)
    ]
    mode, names = _chosen(choice)
    return tools_of(tools, mode, names, False if isinstance(choice, FunctionChoice) else parallel)


def _chosen(choice: ToolChoice | None) -> tuple[Choice, list[str]]:
    if isinstance(choice, FunctionChoice):
        return "required", [choice.function.name]
    if isinstance(choice, AllowedToolsChoice):
        return choice.allowed_tools.mode, [tool.function.name for tool in choice.allowed_tools.tools]
    return choice or "auto", []
