"""Tools in a chat: the file that describes them, the calls in an answer, the results that the user types."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from specllama.calls import history
from specllama.calls.scanner import ReadCall
from specllama.calls.tools import Tools
from specllama.cli.chat.terminal import Screen
from specllama.config.text_file import read_text
from specllama.errors import UsageError
from specllama.json_types import JsonObject


def read_tools(path: str) -> Tools | None:
    """The tools in a file: a list of tools as the OpenAI API takes them, or an object with such a list as
    "tools". Raises NotFoundError, UsageError.
    """
    try:
        tools = json.loads(read_text(path, "tools"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f": {path} is no JSON: {str(error)[:100]}", option="tools") from None
    if isinstance(tools, dict):
        tools = tools.get("tools")
    if not isinstance(tools, list):
        raise UsageError(
            f": {path} has no list of tools",
            'as [{"type": "function", "function": {"name": …, "parameters": …}}]',
            option="tools",
        )
    try:
        return history.tools(tools)
    except UsageError as error:
        raise UsageError(f": {path}: {error.message}", error.hint, option="tools") from None


def result_message(call: Mapping[str, Any], text: str) -> JsonObject:
    """The message with the result of a call."""
    name = call["function"]["name"]
    return {"role": "tool", "tool_call_id": call["id"], "name": name, "content": text}


def call_text(call: JsonObject) -> str:
    """A call of a conversation as `show_calls` shows it."""
    function = call.get("function") or {}
    return f"{function.get('name')}({json.dumps(function.get('arguments'), ensure_ascii=False)})"


def show_calls(screen: Screen, calls: Sequence[ReadCall]) -> list[JsonObject]:
    """Show the calls in an answer, each on a line. Returns them as chat templates read them."""
    shown = list[JsonObject]()
    for call in calls:
        screen.line(f"{call.name}({call.arguments})")
        function = {"name": call.name, "arguments": json.loads(call.arguments)}
        shown.append({"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function})
    return shown
