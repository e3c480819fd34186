"""Tools and conversations as plain data in the form of the OpenAI API, checked. Knows no requests."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from specllama.calls.history import Message, Messages, in_call_order
from specllama.calls.schema_form import fault, without_nulls
from specllama.calls.tools import Choice, Tool, Tools
from specllama.errors import UsageError
from specllama.json_types import JsonObject

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
        raise _refused(
            f"must have 1 to {MAX_NAME} letters, digits and _.:/@-, not {str(name)[:80]!r}", f"{field}.name"
        )
    if not isinstance(description, (str, type(None))):
        raise _refused("must be a text", f"{field}.description")
    if not isinstance(parameters, (Mapping, type(None))):
        raise _refused("must be a JSON schema", f"{field}.{schema_field}")
    schema = without_nulls(parameters or {})
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise _refused(
            f"must be the schema of an object: its type is {str(kind)[:80]!r}", f"{field}.{schema_field}"
        )
    if not any_form and (problem := fault(schema, f"{field}.{schema_field}")) is not None:
        raise _refused(problem[1], problem[0])
    return Tool(name, description or "", schema | {"type": "object"} if schema else {}, strict)


def tools(
    given: Sequence[Mapping[str, Any]] | None,
    choice: str | Mapping[str, Any] = "auto",
    parallel: bool = True,
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
    """What a text that is the beginning of a JSON object has of it, as of a call that was cut off; the end of
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
