"""The sampling parameters of a chat, from the typed text of `/set` and back; and its tools: the file that
describes them, the calls in an answer, the results that the user types.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from specllama.calls import history
from specllama.calls.scanner import ReadCall
from specllama.calls.tools import Tools
from specllama.cli.chat.terminal import Screen
from specllama.cli.formatting import nearest
from specllama.config import build
from specllama.config.text_file import read_text
from specllama.core.sampling.params import SamplingParams
from specllama.errors import UsageError, with_option_names
from specllama.json_types import JsonObject, why_not_json

NAMES = tuple(f.name for f in fields(SamplingParams) if f.name not in ("logprobs", "n"))
_ALIASES = {"temp": "temperature", "n": "max_tokens", "n_predict": "max_tokens"}
_TEXTS = ("stop", "json_schema", "grammar")
UNSET = ("default", "none")


def parameter(typed: str) -> str:
    """The field of SamplingParams for a typed name or flag of llama.cpp. Raises UsageError."""
    name = typed.lower().lstrip("-").replace("-", "_")
    name = _ALIASES.get(name, name)
    if name == "logprobs":
        refuse_logprobs({name: 0})
    if name not in NAMES:
        raise UsageError(f"there is no parameter {typed[:60]!r}{nearest(name, NAMES)}", "/set shows all")
    return name


def assign(params: Mapping[str, Any], name: str, text: str) -> JsonObject:
    """The parameters with one set from its typed value, or unset (default, none). Raises UsageError."""
    rest = {key: value for key, value in params.items() if key != name}
    if text in UNSET or (name, text) == ("seed", "-1"):
        return rest
    try:
        changed = {**rest, name: _value(name, text)}
        SamplingParams.merge(changed)
    except UsageError as error:
        raise UsageError(error.message[:200], error.hint) from None
    return changed


def shown(name: str, params: Mapping[str, Any], used: Mapping[str, Any]) -> str:
    """A parameter and its value: the one set, else the one that the engine last used, else the default."""
    if params.get(name) is not None:
        return f"{name:18} {_text(params[name])}   (set)"
    if name == "seed":
        return f"{name:18} random"
    return f"{name:18} {_text(used.get(name, getattr(SamplingParams(), name)))}"


def idle(params: Mapping[str, Any]) -> list[str]:
    """What has no effect of the parameters that are set, a sentence for each reason."""
    sentences = SamplingParams.merge(params).without_effect([*params])
    return [with_option_names(sentence, lambda name, _: name) for sentence in sentences]


def restored(
    system: str, params: Mapping[str, Any], now_system: str, now_params: Mapping[str, Any]
) -> list[str]:
    """Lines on a system message and parameters that take the place of others, and on what goes for them."""
    lines = []
    if now_system:
        lines.append(f"system message: {_text(now_system)}")
    if system and system != now_system:
        lines.append(f"the system message before is left out: {_text(system)}")
    if there := [f"{name} {_text(value)}" for name, value in now_params.items() if value is not None]:
        lines.append(f"parameters: {', '.join(there)}")
    gone = [name for name, value in params.items() if value is not None and now_params.get(name) is None]
    if gone:
        lines.append(f"back to the defaults: {', '.join(gone)}")
    return lines


def refuse_logprobs(params: Mapping[str, Any]) -> None:
    """Raises UsageError for logprobs, which a chat cannot show."""
    if params.get("logprobs") is not None:
        raise UsageError("a chat shows no log probabilities", "specllama run --logprobs N --json does")


def _value(name: str, text: str) -> Any:
    """JSON where it is JSON, else the text itself; @FILE is the text of a file."""
    if name in ("json_schema", "grammar") and text.startswith("@"):
        return read_text(text[1:], name)
    if name == "logit_bias" and not text.startswith("{"):
        return build.sampling({"logit_bias": text.split()})["logit_bias"]
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if name in ("stop", "dry_sequence_breakers") and isinstance(value, str):
        return [value]
    return text if name in _TEXTS and not isinstance(value, (str, list)) else value


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return " ".join(f"{i}{b:+g}" if b > -math.inf else f"{i}-inf" for i, b in value.items()) or "none"
    if isinstance(value, (tuple, list)):
        return " ".join(json.dumps(text, ensure_ascii=False) for text in value) or "none"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def read_tools(path: str) -> Tools | None:
    """The tools in a file: a list as in the OpenAI API, or "tools". Raises NotFoundError, UsageError."""
    try:
        tools = json.loads(read_text(path, "tools"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f": {path} is no JSON: {why_not_json(error)[:100]}", option="tools") from None
    if isinstance(tools, dict):
        tools = tools.get("tools")
    if not isinstance(tools, list):
        hint = 'as [{"type": "function", "function": {"name": …, "parameters": …}}]'
        raise UsageError(f": {path} has no list of tools", hint, option="tools")
    try:
        return history.tools(tools)
    except UsageError as error:
        raise UsageError(f": {path}: {error.message}", error.hint, option="tools") from None


def result_message(call: Mapping[str, Any], text: str) -> JsonObject:
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
