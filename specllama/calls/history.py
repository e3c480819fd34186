"""Earlier turns with calls and results, in the forms that chat templates need."""

from __future__ import annotations

import hashlib
import json
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args

from specllama.calls.tools import Choice, Tool, Tools
from specllama.errors import SpecllamaError, UsageError
from specllama.json_types import JsonObject
from specllama.text.json_schema import fault, without_nulls
from specllama.text.reasoning import OPENING, thought_apart

Message = JsonObject
"""A turn in the form of the OpenAI API: `role`, `content`, `reasoning_content`, `tool_calls` with arguments
as objects, and of a result `name` and `tool_call_id`; further keys go to the template.
"""
Messages = list[Message]
Role = Literal["system", "developer", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = get_args(Role)
"""Who says a turn, in requests of all fronts; templates get developer as system."""
Call = tuple[str, Mapping[str, Any]]  # name, arguments
Write = Callable[[Sequence[Call]], str]
_ALPHANUMERICS = string.digits + string.ascii_letters
_SYSTEM = """# Tools

You may call one or more functions to help with the user's request. These are their signatures:
<tools>
{tools}
</tools>

To call functions, write nothing but their calls, with the name and the arguments of each, in this form:
{form}"""
_EXAMPLE = ("function-name", {"argument-name": "value"})


def function(tool: Tool) -> JsonObject:
    """A tool as templates show it."""
    parameters = tool.parameters or {"type": "object", "properties": {}}
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def functions(tools: Tools | None) -> JsonObject:
    """The variables of a template that shows tools; SmolLM3's has another name for them."""
    shown = [function(tool) for tool in tools.tools] if tools is not None else []
    return {"tools": shown, "xml_tools": shown} if shown else {}


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
        called = [call["function"] for call in message.get("tool_calls") or ()]
        calls = [(f["name"], f.get("arguments") or {}) for f in called]
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
    """The messages, with the reasoning in tags with which answers begin as `reasoning_content`."""
    rewritten = Messages()
    for message in messages:
        text = message.get("content")
        if message.get("role") == "assistant" and isinstance(text, str) and text.startswith(OPENING):
            thought, answer = thought_apart(text) or ("", text)
            message = {"reasoning_content": thought.rstrip(), **message, "content": answer}
        rewritten.append(dict(message))
    return rewritten


def with_calls(messages: Messages, change: Callable[[JsonObject], JsonObject]) -> Messages:
    return [
        m | {"tool_calls": list(map(change, m["tool_calls"]))} if m.get("tool_calls") else m for m in messages
    ]


def with_arguments(messages: Messages, change: Callable[[Any], Any]) -> Messages:
    """The messages with each argument of their calls changed."""

    def changed(call: JsonObject) -> JsonObject:
        arguments = {k: change(v) for k, v in (call["function"].get("arguments") or {}).items()}
        return {**call, "function": {**call["function"], "arguments": arguments}}

    return with_calls(messages, changed)


def with_ids(messages: Messages, new: Callable[[str, str, int], str]) -> Messages:
    """The messages with other ids of calls. new: from (id, tool's name, number of the call) to the id."""
    ids, n = dict[str, str](), 0

    def changed(call: JsonObject) -> JsonObject:
        nonlocal n
        old = str(call.get("id") or f"call{n}")
        ids[old] = new(old, call["function"]["name"], n)
        n += 1
        return {**call, "id": ids[old]}

    rewritten = Messages()
    for message in messages:
        rewritten += with_calls([message], changed)
        if message["role"] == "tool":
            old = str(message.get("tool_call_id") or "")
            new_id = ids.get(old) or new(old, str(message.get("name") or ""), n)
            rewritten[-1] = message | {"tool_call_id": new_id}
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


Rendered = TypeVar("Rendered")
REFUSED = "refused"
"""In the details of errors: whether a template has refused the messages, and did not fail in another way."""
_BRIDGE = "OK."


def settled(messages: Sequence[Mapping[str, Any]], system: bool, systems: bool) -> Messages:
    """The messages with those of the system where a template shows them. system: whether it shows a first
    one, which else becomes the beginning of the user's first message, as in llama.cpp; systems: whether it
    shows several, wherever they are. Else the first are joined, and later ones are the user's, marked.
    """
    n = next((i for i, m in enumerate(messages) if m.get("role") != "system"), len(messages))
    if systems and system:
        return [dict(message) for message in messages]
    first = "\n\n".join(text for m in messages[:n] if isinstance(text := m.get("content"), str) and text)
    rest = [dict(message) for message in messages[n:]]
    for message in rest:
        if message.get("role") == "system":  # instructions between turns
            text = f"<system>\n{message.get('content') or ''}\n</system>"
            message |= {"role": "user", "content": text}
    if system and n:
        return [{**messages[0], "content": first}, *rest]
    if not first:
        return rest
    if rest and rest[0].get("role") == "user" and isinstance(rest[0].get("content"), str):
        return [rest[0] | {"content": f"{first}\n{rest[0]['content']}"}, *rest[1:]]
    return [{"role": "user", "content": first}, *rest]


def accepted(messages: Messages, render: Callable[[Messages], Rendered]) -> Rendered:
    """Render the messages or, where refused, other forms of them. Raises the error of the first form."""
    problem: SpecllamaError | None = None
    for form in _forms(messages):
        try:
            return render(form)
        except SpecllamaError as error:
            if not error.details.get(REFUSED):
                raise
            problem = problem or error
    assert problem is not None
    raise problem


def _forms(messages: Messages) -> Iterator[Messages]:
    """The messages as they are; with neighbours of a role joined; with turns so that roles alternate."""
    yield messages
    joined = _joined(messages)
    if joined != messages:
        yield joined
    bridged = list(_bridged(joined))
    if bridged != joined:
        yield bridged


def _joined(messages: Messages) -> Messages:
    joined = Messages()
    for message in messages:
        said = any(message.get(name) for name in ("content", "tool_calls", "reasoning_content"))
        if message.get("role") == "assistant" and not said:  # it was ended at once
            continue
        last = joined[-1] if joined else {}
        same = message.get("role") == last.get("role") and message.get("role") in ("user", "assistant")
        if same and all(isinstance(m.get("content") or "", str) for m in (last, message)):
            joined[-1] = _merged(last, message)
        else:
            joined.append(message)
    return joined


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> Message:
    merged: Message = {**one}
    for name in ("content", "reasoning_content"):
        texts = [text for m in (one, other) if (text := m.get(name))]
        if texts or name == "content":
            merged[name] = "\n".join(texts)
    if calls := [*(one.get("tool_calls") or ()), *(other.get("tool_calls") or ())]:
        merged["tool_calls"] = calls
    return merged


def _bridged(messages: Messages) -> Iterator[Message]:
    """With a first message of the user, and an answer between a result, or an open call, and the user."""
    last: Mapping[str, Any] | None = None
    for message in messages:
        role = message.get("role")
        if last is None and role == "assistant":
            yield {"role": "user", "content": ""}
        elif last is not None and role == "user" and (last.get("role") == "tool" or last.get("tool_calls")):
            yield {"role": "assistant", "content": _BRIDGE}
        yield message
        if role != "system":
            last = message


MAX_NAME = 128
_NAME = re.compile(rf"[\w.:/@-]{{1,{MAX_NAME}}}")
_HALF, _OTHER = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(rf"\\[^u]|{_HALF}{_OTHER}|({_HALF}|{_OTHER})", re.DOTALL)  # the group: half a character


def tool(
    name: Any,
    description: Any = None,
    parameters: Any = None,
    strict: bool = False,
    *,
    field: str = "tool",
    schema_field: str = "parameters",
    any_form: bool = False,
) -> Tool:
    """A tool. No parameters, None and {} all mean that it takes none.

    field: its path, for errors; schema_field: the name of the parameters there. any_form: parts of the schema
    that have not the form of one are accepted; they allow anything. Raises UsageError, whose
    `details["param"]` names the part at fault.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        message = f"must have 1 to {MAX_NAME} letters, digits and _.:/@-, not {str(name)[:80]!r}"
        raise _refused(message, f"{field}.name")
    if not isinstance(description, (str, type(None))):
        raise _refused("must be a text", f"{field}.description")
    if not isinstance(parameters, (Mapping, type(None))):
        raise _refused("must be a JSON schema", f"{field}.{schema_field}")
    schema = without_nulls(parameters or {})
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        message = f"must be the schema of an object: its type is {str(kind)[:80]!r}"
        raise _refused(message, f"{field}.{schema_field}")
    if not any_form and (problem := fault(schema, f"{field}.{schema_field}")) is not None:
        raise _refused(problem[1], problem[0])
    return Tool(name, description or "", schema | {"type": "object"} if schema else {}, strict)


def tools(
    given: Sequence[Mapping[str, Any]] | None, choice: str | Mapping[str, Any] = "auto", parallel: bool = True
) -> Tools | None:
    """Tools as [{"type": "function", "function": {"name": …, "description": …, "parameters": …}}], and
    "auto", "none", "required" or {"type": "function", "function": {"name": …}}, which is called once; None
    where there are no tools. Raises UsageError.
    """
    if not isinstance(given, (Sequence, type(None))) or isinstance(given, str):
        raise UsageError(f"tools must be a list of dicts, not {type(given).__name__}")
    defined = [_tool(one, i) for i, one in enumerate(given or ())]
    names = [one.name for one in defined]
    if doubled := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"there are two tools {doubled!r}")
    wanted: Sequence[str] = ()
    mode: Choice = "auto"
    if isinstance(choice, Mapping):
        function = choice.get("function")
        wanted = [str(function.get("name"))] if isinstance(function, Mapping) else []
        if choice.get("type") != "function" or not set(wanted) & set(names):
            shown = ", ".join(names) or "none"
            raise UsageError(f"tool_choice must name one of the tools, which are {shown}")
        mode, parallel = "required", False
    elif choice in ("auto", "none", "required"):
        mode = choice  # type: ignore[assignment]
    else:
        raise UsageError(f'tool_choice must be "auto", "none", "required" or a dict, not {choice!r}')
    if not defined and mode == "required":
        raise UsageError("tool_choice needs tools")
    return Tools(defined, mode, tuple(wanted), parallel) if defined else None


def parsed_arguments(messages: Sequence[Mapping[str, Any]]) -> Messages:
    """A copy of messages in which the arguments of calls are objects, and results have the order of their
    calls. Raises UsageError for arguments that are neither a JSON object nor the beginning of one.
    """
    return in_call_order([_message(message, f"messages[{i}]") for i, message in enumerate(messages)])


def cut_off_arguments(text: str) -> JsonObject | None:
    """The members of a JSON object in a text that is its beginning, as of a call that was cut off; the end of
    its last text is where the text ends. None for any other text, complete objects included.
    """
    from pydantic_core import from_json

    if not text.lstrip().startswith("{"):
        return None
    try:
        json.JSONDecoder().raw_decode(text.strip())
    except RecursionError:
        return None
    except ValueError:
        pass
    else:
        return None
    try:
        whole = _ESCAPE.sub(lambda escape: r"\ufffd" if escape[1] else escape[0], text)
        arguments = from_json(whole, allow_inf_nan=False, allow_partial="trailing-strings")
    except ValueError:
        return None
    return arguments if isinstance(arguments, dict) else None


def _tool(given: Any, i: int) -> Tool:
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or given.get("type", "function") != "function":
        raise UsageError(f'tools[{i}] must be {{"type": "function", "function": {{"name": …}}}}')
    return tool(
        function.get("name"),
        function.get("description"),
        function.get("parameters"),
        bool(function.get("strict")),
        field=f"tools[{i}].function",
    )


def _message(message: Mapping[str, Any], field: str) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise UsageError(f"{field}.tool_calls must be a list")
    return {
        **message,
        "tool_calls": [_call(call, f"{field}.tool_calls[{i}]") for i, call in enumerate(calls)],
    }


def _call(call: Any, field: str) -> JsonObject:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise UsageError(f'{field} must be {{"id": …, "function": {{"name": …, "arguments": …}}}}')
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            cut_off = cut_off_arguments(arguments)
            if cut_off is None:
                message = f"{field}.function.arguments are no JSON: {arguments[:80]!r}"
                raise UsageError(message) from None
            arguments = cut_off
    if not isinstance(arguments, Mapping):
        raise UsageError(f"{field}.function.arguments must be a JSON object")
    return {"type": "function", **call, "function": {**function, "arguments": dict(arguments)}}


def _refused(problem: str, part: str) -> UsageError:
    return UsageError(f"{part} {problem}", details={"param": part})
