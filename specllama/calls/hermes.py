"""Hermes's format, which Qwen 2.5, Qwen 3 and most small models use; models without their own get it too:

    <tool_call>
    {"name": "f", "arguments": {…}}
    </tool_call>

Source: NousResearch's Hermes function calling; the prompt is that of Qwen's templates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from specllama.calls.format import AnswerShape, CallFormat, TemplateData
from specllama.calls.json_reader import JsonCallReader
from specllama.calls.lark import answer, arguments_schema, literal
from specllama.calls.tools import Tool, Tools

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_SYSTEM = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> \
XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


class Hermes(CallFormat):
    """The format as above, several calls one after another."""

    name = "hermes"
    markers = ("<tool_call>", '"arguments"')
    tokens = (_OPEN, _CLOSE)

    def template_input(
        self, messages: Sequence[Mapping[str, Any]], tools: Tools | None, own: bool
    ) -> TemplateData:
        if own:
            shown = {"tools": [_function(tool) for tool in tools.tools]} if tools is not None else {}
            return TemplateData([dict(message) for message in messages], shown)
        written = [_as_text(message) for message in messages]
        if tools is not None and tools.tools:
            listed = "\n".join(json.dumps(_function(tool), ensure_ascii=False) for tool in tools.tools)
            written = _with_system(written, _SYSTEM.format(tools=listed))
        return TemplateData(_merged(written), {})

    def grammar(self, tools: Tools, shape: AnswerShape) -> str:
        rules = [
            f'tool{i}: "\\n{{\\"name\\": {json.dumps(json.dumps(t.name, ensure_ascii=False))[1:-1]}, '
            f'\\"arguments\\": " args{i} "}}\\n" {literal(_CLOSE, shape)}\nargs{i}: {arguments_schema(t)}'
            for i, t in enumerate(tools.allowed)
        ]
        if not rules:
            return answer(shape, _OPEN, "", [], "none")
        rules.append("one: " + " | ".join(f"tool{i}" for i in range(len(rules))))
        more = f' ("\\n" {literal(_OPEN, shape)} one)*' if tools.parallel else ""
        return answer(shape, _OPEN, f"one{more}", rules, tools.choice)

    def reader(self, tools: Tools) -> JsonCallReader:
        return JsonCallReader(tools, _OPEN, _CLOSE)


def _function(tool: Tool) -> dict[str, Any]:
    """A tool as templates show it."""
    shown = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": {k: v for k, v in shown.items() if v or k == "parameters"}}


def _as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message with its calls or result as text, for templates that know neither."""
    if message["role"] == "tool":
        return {
            "role": "user",
            "content": f"<tool_response>\n{message.get('content') or ''}\n</tool_response>",
        }
    calls = message.get("tool_calls") or ()
    plain = {k: v for k, v in message.items() if k != "tool_calls"}
    if not calls:
        return plain
    functions = [{name: call["function"][name] for name in ("name", "arguments")} for call in calls]
    written = [f"{_OPEN}\n{json.dumps(f, ensure_ascii=False)}\n{_CLOSE}" for f in functions]
    text = message.get("content") or ""
    return plain | {"content": "\n".join([*([text] if text else []), *written])}


def _with_system(messages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    if messages and messages[0]["role"] == "system":
        first = messages[0]
        return [first | {"content": f"{first.get('content') or ''}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _merged(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbouring user messages as one: many templates refuse roles that do not alternate."""
    merged: list[dict[str, Any]] = []
    for message in messages:
        if merged and message["role"] == merged[-1]["role"] == "user":
            merged[-1] = merged[-1] | {"content": f"{merged[-1]['content']}\n{message['content']}"}
        else:
            merged.append(message)
    return merged
