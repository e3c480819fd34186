"""Earlier turns with calls and results, in the forms that chat templates need. Knows no call format."""

from __future__ import annotations

import hashlib
import json
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from specllama.calls.tools import Schema, Tool, Tools
from specllama.json_types import JsonObject
from specllama.text.reasoning import OPENING, ReasoningSplitter

Message = JsonObject
"""A turn in the form of the OpenAI API: `role`, `content`, `reasoning_content`, `tool_calls` with arguments
as objects, and of a result `name` and `tool_call_id`; further keys go to the template.
"""
Messages = list[Message]
Write = Callable[[Sequence[tuple[str, Mapping[str, Any]]]], str]
_ALPHANUMERICS = string.digits + string.ascii_letters
_SYSTEM = """# Tools

You may call one or more functions to help with the user's request. These are their signatures:
<tools>
{tools}
</tools>

To call functions, write nothing but their calls, with the name and the arguments of each, in this form:
{form}"""
_EXAMPLE = ("function-name", {"argument-name": "value"})


class TemplateFunction(TypedDict):
    """A function as templates show it. parameters: a JSON schema."""

    name: str
    description: str
    parameters: Schema


class TemplateTool(TypedDict):
    """A tool as templates show it."""

    type: Literal["function"]
    function: TemplateFunction


def plain(messages: Sequence[Mapping[str, Any]]) -> Messages:
    """Copies of the messages, without empty lists of calls: templates ask whether the key is there."""
    return [{k: v for k, v in m.items() if k != "tool_calls" or v} for m in messages]


def function(tool: Tool) -> TemplateTool:
    """A tool as templates show it."""
    parameters = tool.parameters or {"type": "object", "properties": {}}
    function: TemplateFunction = {
        "name": tool.name,
        "description": tool.description,
        "parameters": parameters,
    }
    return {"type": "function", "function": function}


def functions(tools: Tools | None) -> dict[str, list[TemplateTool]]:
    """The variables of a template that shows tools; SmolLM3's has another name for them."""
    shown = [function(tool) for tool in tools.tools] if tools is not None else []
    return {"tools": shown, "xml_tools": shown} if shown else {}


def calls_of(message: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """(name, arguments) of a message's calls."""
    called = [call["function"] for call in message.get("tool_calls") or ()]
    return [(f["name"], f.get("arguments") or {}) for f in called]


def with_tools(messages: Messages, tools: Tools | None, write: Write, system: bool) -> Messages:
    """The messages, in the first of which the tools are described: the system message, or the user's where
    the template refuses system messages. write: from calls to the form in which the model is to write them.
    """
    if tools is None or not tools.tools:
        return messages
    listed = "\n".join(json.dumps(function(tool), ensure_ascii=False) for tool in tools.tools)
    text = _SYSTEM.format(tools=listed, form=write([_EXAMPLE]))
    if not messages or messages[0]["role"] != ("system" if system else "user"):
        return [{"role": "system" if system else "user", "content": text}, *messages]
    before = messages[0].get("content") or ""
    parts = [before, text] if system else [text, before]
    return [messages[0] | {"content": "\n\n".join(filter(None, parts))}, *messages[1:]]


def calls_as_text(messages: Messages, write: Write) -> Messages:
    """The messages with calls as text of their turns, for templates that show none."""
    rewritten = Messages()
    for message in messages:
        calls = calls_of(message)
        kept = {k: v for k, v in message.items() if k != "tool_calls"}
        text = [message.get("content") or "", write(calls)] if calls else []
        rewritten.append(kept | {"content": "\n".join(filter(None, text))} if calls else kept)
    return rewritten


def results_as_text(messages: Messages) -> Messages:
    """The messages with results as text of the user, for templates that know no such role."""
    rewritten = Messages()
    for message in messages:
        if message["role"] == "tool":
            text = f"<tool_response>\n{message.get('content') or ''}\n</tool_response>"
            message = {"role": "user", "content": text}
        if rewritten and message["role"] == rewritten[-1]["role"] == "user":  # many refuse two in a row
            rewritten[-1] = rewritten[-1] | {"content": f"{rewritten[-1]['content']}\n{message['content']}"}
        else:
            rewritten.append(message)
    return rewritten


def reasoning_apart(messages: Sequence[Mapping[str, Any]]) -> Messages:
    """The messages, with the reasoning between tags with which texts of the assistant begin as
    `reasoning_content`.
    """
    rewritten = Messages()
    for message in messages:
        text = message.get("content")
        if message.get("role") == "assistant" and isinstance(text, str) and text.startswith(OPENING):
            splitter = ReasoningSplitter()
            pieces = splitter.push(text, ()) + splitter.finish()
            thought, answer = (
                "".join(piece.text for piece in pieces if piece.reasoning is kind) for kind in (True, False)
            )
            message = {"reasoning_content": thought, **message, "content": answer}
        rewritten.append(dict(message))
    return rewritten


def with_ids(messages: Messages, new: Callable[[str, str, int], str]) -> Messages:
    """The messages with other ids of calls. new: from (id, name of the tool, number of the call in the
    conversation) to the new id.
    """
    ids: dict[str, str] = {}
    rewritten, n = Messages(), 0
    for message in messages:
        changed = dict(message)
        if message.get("tool_calls"):
            calls = []
            for call in message["tool_calls"]:
                old = str(call.get("id") or f"call{n}")
                ids[old] = new(old, call["function"]["name"], n)
                calls.append({**call, "id": ids[old]})
                n += 1
            changed["tool_calls"] = calls
        if message["role"] == "tool":
            old = str(message.get("tool_call_id") or "")
            changed["tool_call_id"] = ids.get(old) or new(old, str(message.get("name") or ""), n)
        rewritten.append(changed)
    return rewritten


def with_arguments(messages: Messages, change: Callable[[Any], Any]) -> Messages:
    """The messages with each argument of their calls changed."""
    rewritten = Messages()
    for message in messages:
        calls = []
        for call in message.get("tool_calls") or ():
            changed = {k: change(v) for k, v in (call["function"].get("arguments") or {}).items()}
            calls.append({**call, "function": {**call["function"], "arguments": changed}})
        rewritten.append({**message, "tool_calls": calls} if calls else message)
    return rewritten


def in_call_order(messages: Sequence[Message]) -> Messages:
    """The messages, with the results right after the answers whose calls they belong to, in the order of the
    calls, and with the names of their tools. Many templates show neither ids nor names, and clients send
    results in the order in which they arrived.
    """
    ordered, results, others = Messages(), Messages(), Messages()
    order: dict[Any, int] = {}  # of the latest calls, by id
    names: dict[Any, str] = {}
    n_calls = 0

    def settle() -> None:
        results.sort(key=lambda message: order.get(message.get("tool_call_id"), n_calls))
        ordered.extend((*results, *others))
        results.clear()
        others.clear()

    for message in messages:
        if message.get("role") == "assistant":
            settle()
            for call in message.get("tool_calls") or ():
                order[call.get("id")] = n_calls
                n_calls += 1
                names[call.get("id")] = call["function"]["name"]
            ordered.append(message)
        elif message.get("role") == "tool":
            name = message.get("name") or names.get(message.get("tool_call_id"))
            results.append(message if name == message.get("name") else {**message, "name": name})
        else:
            others.append(message)
    settle()
    return ordered


def text_of(value: Any) -> str:
    """A value as text: JSON, but strings without quotes."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def nine_characters(old: str, _name: str, _n: int) -> str:
    """An id of 9 letters and digits, made from another one."""
    if len(old) == 9 and old.isascii() and old.isalnum():
        return old
    number = int.from_bytes(hashlib.sha256(old.encode("utf-8", "replace")).digest())
    return "".join(_ALPHANUMERICS[number // 62**i % 62] for i in range(9))


def one_call_each(messages: Messages) -> Messages:
    """The messages with one call in each turn, followed by its result."""
    rewritten, i = Messages(), 0
    while i < len(messages):
        message, calls = messages[i], messages[i].get("tool_calls") or ()
        i += 1
        if len(calls) < 2:
            rewritten.append(message)
            continue
        results = Messages()
        while i < len(messages) and messages[i]["role"] == "tool":
            results.append(messages[i])
            i += 1
        for n, call in enumerate(calls):
            first = message if n == 0 else {"role": message["role"], "content": ""}
            rewritten.append({**first, "tool_calls": [call]})
            own = [r for r in results if r.get("tool_call_id") == call.get("id")][:1]
            rewritten += own
            results = [r for r in results if r not in own]
        rewritten += results
    return rewritten
