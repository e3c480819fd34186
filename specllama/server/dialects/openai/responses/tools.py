"""The tools of a request, and the choice among them, as answers of /v1/responses repeat them."""

from __future__ import annotations

from collections.abc import Sequence

from specllama.json_types import JsonObject
from specllama.server.dialects.shared.tools import (
    ChosenTools,
    NamedTool,
    NamespaceEntry,
    RequestTools,
    ToolDefinition,
)


def name_only(tool: JsonObject) -> JsonObject:
    """The tool as repeated in answers to requests whose tools are too large."""
    if tool["type"] == "namespace":
        return {"type": "namespace", "name": tool["name"], "description": "", "tools": []}
    return {"type": "function", "name": tool["name"]}


def echoed_tools(tools: Sequence[ToolDefinition]) -> list[JsonObject]:
    """The tools of a request, without those that were left out."""
    return [_echo(tool) for tool in tools if tool.type == "namespace" or tool.is_function]


def _echo(tool: ToolDefinition) -> JsonObject:
    if tool.type != "namespace":
        return _function(tool)
    return {
        "type": "namespace",
        "name": tool.name or "",
        "description": tool.description or "",
        "tools": [_function(one) for one in tool.tools or () if one.is_function],
    }


def _function(tool: NamespaceEntry) -> JsonObject:
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
