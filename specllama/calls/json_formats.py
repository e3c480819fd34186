"""Formats whose arguments are JSON, and that differ in what is around them:

<|tool_call|>[{"name": "f", "arguments": {…}}, …]          <|tool_call|>f<|args|>{…}<|end|>
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from specllama.calls.format import TemplateData
from specllama.calls.frame import ID, Frame, FramedFormat, FrameReader
from specllama.calls.history import Messages, nine_characters, one_call_each, with_calls, with_ids
from specllama.calls.lark import Lark
from specllama.calls.scanner import Steps

_HEAD, _MID = '{"name": "', '", "arguments": '


def _list(begin: str, end: str) -> Frame:
    return Frame(f"{begin}[", _HEAD, _MID, "}", f"]{end}", ", ")


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
    frame = _list(*tokens)


class NemotronV2(FramedFormat):
    """Nemotron Nano v2."""

    name = "nemotron"
    markers = ("<TOOLCALL>",)
    tokens = ("<TOOLCALL>", "</TOOLCALL>")
    frame = _list(*tokens)


class Apriel(FramedFormat):
    """Apriel 1.6."""

    name = "apriel"
    markers = ("<tool_calls>[", "</tool_calls>")
    tokens = ("<tool_calls>", "</tool_calls>")
    frame = _list(*tokens)

    def fixed(self, messages: Messages) -> Messages:
        """Without ids, which the template would add to the objects."""
        return with_calls(messages, lambda call: {k: v for k, v in call.items() if k != "id"})


class MiniMaxM1(FramedFormat):
    """MiniMax M1: an object on each line."""

    name = "minimax-m1"
    markers = ("<tool_calls>\\n{",)
    tokens = ("<tool_calls>", "</tool_calls>")
    frame = Frame("<tool_calls>\n", _HEAD, _MID, "}", "\n</tool_calls>", "\n")


class Firefunction(FramedFormat):
    """Firefunction v2, whose template gets the tools as a text."""

    name = "firefunction"
    markers = ("functools[",)
    frame = replace(_list("functools", ""), known_by="functools[")
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
    frame = Frame("", "<function=", ">", "</function>", known_by="<function=")


class GigaChat(FramedFormat):
    """GigaChat 3: one object, which ends the turn."""

    name = "gigachat"
    markers = ("<|function_call|>", "<|role_sep|>")
    tokens = ("<|function_call|>",)
    frame = Frame("", f"<|function_call|>{_HEAD}", _MID, "}", known_by="<|function_call|>")
    parallel = False

    def fixed(self, messages: Messages) -> Messages:
        return one_call_each(messages)


class Apertus(FramedFormat):
    """Apertus: the name is the key of the object. It reasons between tokens of its own."""

    name = "apertus"
    markers = ("<|tools_prefix|>", "<|inner_prefix|>")
    tokens = ("<|tools_prefix|>", "<|tools_suffix|>", "<|inner_prefix|>", "<|inner_suffix|>")
    reasons, thinks = True, ("<|inner_prefix|>", "<|inner_suffix|>")
    frame = Frame("<|tools_prefix|>[", '{"', '": ', "}", "]<|tools_suffix|>", ", ")


class Solar(FramedFormat):
    """Solar Open: id, name and arguments between tokens."""

    name = "solar"
    _begin, _name, _args, _end = (f"<|tool_call:{part}|>" for part in ("begin", "name", "args", "end"))
    markers = (_begin, _args)
    tokens = ("<|tool_calls|>", _begin, _name, _args, _end)
    frame = Frame("", f"{_begin}{ID}{_name}", _args, _end, known_by=_begin, id="[a-zA-Z0-9_-]{1,64}")


class KimiK2(FramedFormat):
    """Kimi K2, without line breaks; its ids have the name of the function and the number of the call:

    <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{…}\\
    <|tool_call_end|><|tool_calls_section_end|>
    """

    name = "kimi-k2"
    _section, _section_end = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
    _call, _args, _end = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
    markers = (_section, _args)
    tokens = (_section, _section_end, _call, _args, _end)
    frame = Frame(_section, f"{_call}functions.", f":{ID}{_args}", _end, _section_end, id="[0-9]{1,9}")

    def fixed(self, messages: Messages) -> Messages:
        return with_ids(messages, lambda _id, name, n: f"functions.{name}:{n}")


# DeepSeek, whose bars are not ASCII's.


_CALLS, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _SEP, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"


class DeepSeekR1(FramedFormat):
    """V3 and R1: the arguments are a block of JSON."""

    name = "deepseek-r1"
    markers = (_CALLS, "```json")
    tokens = (_CALLS, _END, _CALL, _SEP, _CALL_END)
    frame = Frame(_CALLS, f"{_CALL}function{_SEP}", "\n```json\n", f"\n```{_CALL_END}", _END, "\n")


class DeepSeekV31(FramedFormat):
    """V3.1."""

    name = "deepseek-v3.1"
    markers = (_CALLS,)
    tokens = DeepSeekR1.tokens
    frame = Frame(_CALLS, _CALL, _SEP, _CALL_END, _END)


# Mistral. Its templates refuse ids that are not 9 letters and digits.


_TOOL_CALLS, _ARGS, _CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


class _Mistral(FramedFormat):
    def fixed(self, messages: Messages) -> Messages:
        return with_ids(messages, nine_characters)


class MistralList(_Mistral):
    """Nemo, 7B v0.3, Small up to 3.1: [TOOL_CALLS][{"name": "f", "arguments": {…}, "id": "123456789"}]."""

    name = "mistral-list"
    markers = (_TOOL_CALLS,)
    tokens = (_TOOL_CALLS,)
    frame = replace(_list(_TOOL_CALLS, ""), tail=f', "id": "{ID}"}}')


class MistralArgs(_Mistral):
    """Devstral, Magistral, Ministral 3: [TOOL_CALLS]f[ARGS]{…}."""

    name = "mistral"
    markers = (_TOOL_CALLS, _ARGS)
    tokens = (_TOOL_CALLS, _ARGS)
    frame = Frame("", _TOOL_CALLS, _ARGS, "", known_by=_TOOL_CALLS)


class MistralIds(_Mistral):
    """Small 3.2: [TOOL_CALLS]f[CALL_ID]123456789[ARGS]{…}."""

    name = "mistral-ids"
    markers = (_TOOL_CALLS, _CALL_ID, _ARGS)
    tokens = (_TOOL_CALLS, _CALL_ID, _ARGS)
    frame = Frame("", _TOOL_CALLS, f"{_CALL_ID}{ID}{_ARGS}", "", known_by=_TOOL_CALLS)


# Cohere, which has tokens around each part of an answer.


_ACTION, _ACTION_END = "<|START_ACTION|>", "<|END_ACTION|>"
_TEXTS = (("<|START_RESPONSE|>", "<|END_RESPONSE|>"), ("<|START_TEXT|>", "<|END_TEXT|>"))


class CommandRReader(FrameReader):
    """Leaves the tokens around the text out."""

    def steps(self) -> Steps[None]:
        trigger = self.scan.marker(_ACTION)
        around = [self.scan.marker(text) for pair in _TEXTS for text in pair]
        while (marker := (yield from self.scan.text_until((trigger, *around)))) is not None:
            if marker != trigger:
                self.scan.take(self.scan.text.find(marker) + len(marker))
            elif not (yield from self.calls()):
                self.scan.write_text(self.scan.text.find(trigger) + len(trigger))


class CommandR(FramedFormat):
    """Command R7B, Command A and later:

        <|START_THINKING|>…<|END_THINKING|><|START_ACTION|>[
            {"tool_call_id": "0", "tool_name": "f", "parameters": {…}}
        ]<|END_ACTION|>

    Text is between <|START_RESPONSE|> and <|END_RESPONSE|>, or <|START_TEXT|> and <|END_TEXT|>.
    """

    name = "command-r"
    markers = (_ACTION, '"tool_call_id"')
    read_by = CommandRReader
    tokens = (_ACTION, _ACTION_END, *_TEXTS[0], *_TEXTS[1])
    _head = f'{{"tool_call_id": "{ID}", "tool_name": "'
    _end, _between, _id = f"\n]{_ACTION_END}", ",\n    ", "[0-9]{1,4}"
    frame = Frame(f"{_ACTION}[\n    ", _head, '", "parameters": ', "}", _end, _between, id=_id)

    def plain(self, lark: Lark, text: str, /) -> str:
        wrapped = [
            f"{lark.text(opening)} {f'{text} {lark.text(closing)}' if text else lark.until(closing)}"
            for opening, closing in _TEXTS
            if opening in lark.shape.special
        ]
        return " | ".join([text or "TEXT", *wrapped])
