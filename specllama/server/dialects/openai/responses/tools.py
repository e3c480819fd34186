"""The tools of a request, and the choice among them, as answers of /v1/responses repeat them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

from specllama.json_types import JsonObject
from specllama.server.dialects.shared.tools import (
    ChosenTools,
    NamedTool,
    NamespaceEntry,
    RequestTools,
    ToolDefinition,
)


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


def echoed_tools(tools: Sequence[ToolDefinition]) -> list[ToolEcho]:
    """The tools of a request, without those that were left out."""
    return [_echo(tool) for tool in tools if tool.type == "namespace" or tool.is_function]


def _echo(tool: ToolDefinition) -> ToolEcho:
    if tool.type != "namespace":
        return _function(tool)
    return {
        "type": "namespace",
        "name": tool.name or "",
        "description": tool.description or "",
        "tools": [_function(one) for one in tool.tools or () if one.is_function],
    }


def _function(tool: NamespaceEntry) -> FunctionEcho:
    function = tool.definition
    return {
        "type": "function",
        "name": function.name,
        "description": function.description,
        "parameters": function.arguments or {},
        "strict": bool(function.strict),
    }


def echoed_choice(choice: str | ChosenTools | None, tools: RequestTools) -> str | JsonObject:
    """The choice in this API's form."""
    allowed = tools.allowed
    if isinstance(choice, ChosenTools) and choice.type == "allowed_tools":
        listed = [_named(one) for one in choice.allowed.tools or ()]
        return {"type": "allowed_tools", "mode": choice.allowed.mode, "tools": listed}
    if allowed is not None and allowed.names:
        return _named(choice) if isinstance(choice, NamedTool) else {"type": "function", "name": choice}
    return allowed.choice if allowed is not None else "none" if choice == "none" else "auto"


def _named(tool: NamedTool) -> JsonObject:
    named: JsonObject = {"type": "namespace" if tool.type == "namespace" else "function", "name": tool.named}
    return {**named, **({"namespace": tool.namespace} if tool.namespace else {})}
