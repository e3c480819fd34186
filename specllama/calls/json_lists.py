"""Formats that are a list of JSON objects after a marker, or one object each, and differ in the markers:

<|tool_call|>[{"name": "f", "arguments": {…}}, …]
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from specllama.calls.format import TemplateData
from specllama.calls.frame import ID, Frame, FramedFormat
from specllama.calls.history import Messages, one_call_each

_HEAD, _MID = '{"name": "', '", "arguments": '


def _list(opening: str, closing: str) -> Frame:
    return Frame(f"{opening}[{_HEAD}", _MID, f"}}, {_HEAD}", f"}}]{closing}", trigger=opening)


class Granite3(FramedFormat):
    """Granite 3."""

    name = "granite"
    markers = ("<|tool_call|>", "available_tools")
    tokens = ("<|tool_call|>",)
    frame = _list("<|tool_call|>", "")


class Phi4(FramedFormat):
    """Phi-4-mini."""

    name = "phi4"
    markers = ("<|tool|>", "<|/tool|>")
    tokens = ("<|tool_call|>", "<|/tool_call|>")
    frame = _list("<|tool_call|>", "<|/tool_call|>")


class NemotronV2(FramedFormat):
    """Nemotron Nano v2."""

    name = "nemotron"
    markers = ("<TOOLCALL>",)
    tokens = ("<TOOLCALL>", "</TOOLCALL>")
    frame = _list("<TOOLCALL>", "</TOOLCALL>")


class Apriel(FramedFormat):
    """Apriel 1.6."""

    name = "apriel"
    markers = ("<tool_calls>[", "</tool_calls>")
    tokens = ("<tool_calls>", "</tool_calls>")
    frame = _list("<tool_calls>", "</tool_calls>")

    def fixed(self, messages: Messages) -> Messages:
        """Without ids, which the template would add to the objects."""
        rewritten = []
        for message in messages:
            calls = [{k: v for k, v in c.items() if k != "id"} for c in message.get("tool_calls") or ()]
            rewritten.append({**message, "tool_calls": calls} if calls else message)
        return rewritten


class MiniMaxM1(FramedFormat):
    """MiniMax M1: an object on each line."""

    name = "minimax-m1"
    markers = ("<tool_calls>\\n{",)
    tokens = ("<tool_calls>", "</tool_calls>")
    frame = Frame(f"<tool_calls>\n{_HEAD}", _MID, f"}}\n{_HEAD}", "}\n</tool_calls>", trigger="<tool_calls>")


class Firefunction(FramedFormat):
    """Firefunction v2, whose template gets the tools as a text."""

    name = "firefunction"
    markers = ("functools[",)
    frame = Frame(f"functools[{_HEAD}", _MID, f"}}, {_HEAD}", "}]", trigger="functools[")
    without_tools: ClassVar[Mapping[str, Any]] = {"functions": "[]"}

    def template_input(self, *given: Any, **more: Any) -> TemplateData:
        data = super().template_input(*given, **more)
        shown = [tool["function"] for tool in data.variables.get("tools", ())]
        return replace(data, variables={"functions": json.dumps(shown, indent=4)} if shown else {})


class Functionary31(FramedFormat):
    """Functionary v3.1: the name in a tag."""

    name = "functionary-v3.1"
    markers = ("<function=", "</function>", "<|python_tag|>")
    tokens = ("<function=", "</function>")
    frame = Frame("<function=", ">", "</function><function=", "</function>", trigger="<function=")


class GigaChat(FramedFormat):
    """GigaChat 3: one object, which ends the turn."""

    name = "gigachat"
    markers = ("<|function_call|>", "<|role_sep|>")
    tokens = ("<|function_call|>",)
    frame = Frame(
        open=f"<|function_call|>{_HEAD}",
        mid=_MID,
        sep=f"}}<|function_call|>{_HEAD}",
        close="}",
        trigger="<|function_call|>",
    )
    parallel = False

    def fixed(self, messages: Messages) -> Messages:
        return one_call_each(messages)


class Apertus(FramedFormat):
    """Apertus: the name is the key of the object. It reasons between tokens of its own."""

    name = "apertus"
    markers = ("<|tools_prefix|>", "<|inner_prefix|>")
    tokens = ("<|tools_prefix|>", "<|tools_suffix|>", "<|inner_prefix|>", "<|inner_suffix|>")
    reasons, thinks = True, ("<|inner_prefix|>", "<|inner_suffix|>")
    frame = Frame(
        open='<|tools_prefix|>[{"',
        mid='": ',
        sep='}, {"',
        close="}]<|tools_suffix|>",
        trigger="<|tools_prefix|>",
    )


class Solar(FramedFormat):
    """Solar Open: id, name and arguments between tokens."""

    name = "solar"
    markers = ("<|tool_call:begin|>", "<|tool_call:args|>")
    tokens = (
        "<|tool_calls|>",
        "<|tool_call:begin|>",
        "<|tool_call:name|>",
        "<|tool_call:args|>",
        "<|tool_call:end|>",
    )
    frame = Frame(
        open=f"<|tool_call:begin|>{ID}<|tool_call:name|>",
        mid="<|tool_call:args|>",
        sep=f"<|tool_call:end|><|tool_call:begin|>{ID}<|tool_call:name|>",
        close="<|tool_call:end|>",
        trigger="<|tool_call:begin|>",
        id="[a-zA-Z0-9_-]{1,64}",
    )
