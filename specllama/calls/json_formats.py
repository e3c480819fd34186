"""Formats whose arguments are JSON, and that differ in what is around them:

<|tool_call|>[{"name": "f", "arguments": {…}}, …]          <|tool_call|>f<|args|>{…}<|end|>
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from specllama.calls.format import TemplateData
from specllama.calls.frame import ID, Frame, FramedFormat, FrameReader, PlainFormat
from specllama.calls.history import Messages, nine_characters, one_call_each, with_calls, with_ids
from specllama.calls.lark import NEWLINE, Lark, escaped, literal
from specllama.calls.literals import PYTHON_ARGUMENTS
from specllama.calls.scanner import Steps
from specllama.calls.schema import Arguments, arguments, bodies, json_text
from specllama.calls.tools import Tools

_HEAD, _MID = '{"name": "', '", "arguments": '


def _list(begin: str, end: str) -> Frame:
    return Frame(f"{begin}[", _HEAD, _MID, "}", f"]{end}", ", ")


def _listed(name: str, markers: tuple[str, ...], begin: str, end: str = "", **more: Any) -> PlainFormat:
    """A format with one list. begin, end: the tokens around it."""
    return PlainFormat(name, _list(begin, end), markers, tuple(filter(None, (begin, end))), **more)


GRANITE3 = _listed("granite", ("<|tool_call|>", "available_tools"), "<|tool_call|>")
PHI4 = _listed("phi4", ("<|tool|>", "<|/tool|>"), "<|tool_call|>", "<|/tool_call|>")
NEMOTRON_V2 = _listed("nemotron", ("<TOOLCALL>",), "<TOOLCALL>", "</TOOLCALL>")
APRIEL = _listed(  # without ids, which the template would add to the objects
    "apriel",
    ("<tool_calls>[", "</tool_calls>"),
    "<tool_calls>",
    "</tool_calls>",
    messages=lambda some: with_calls(some, lambda call: {k: v for k, v in call.items() if k != "id"}),
)
MINIMAX_M1 = PlainFormat(  # an object on each line
    "minimax-m1",
    Frame("<tool_calls>\n", _HEAD, _MID, "}", "\n</tool_calls>", "\n"),
    ("<tool_calls>\\n{",),
    ("<tool_calls>", "</tool_calls>"),
)
FUNCTIONARY31 = PlainFormat(  # the name in a tag
    "functionary-v3.1",
    Frame("", "<function=", ">", "</function>", known_by="<function="),
    ("<function=", "</function>", "<|python_tag|>"),
    ("<function=", "</function>"),
)
GIGACHAT = PlainFormat(  # GigaChat 3: one object, which ends the turn
    "gigachat",
    Frame("", f"<|function_call|>{_HEAD}", _MID, "}", known_by="<|function_call|>"),
    ("<|function_call|>", "<|role_sep|>"),
    ("<|function_call|>",),
    parallel=False,
    messages=one_call_each,
)
_INNER = ("<|inner_prefix|>", "<|inner_suffix|>")
APERTUS = PlainFormat(  # the name is the key of the object; it reasons between tokens of its own
    "apertus",
    Frame("<|tools_prefix|>[", '{"', '": ', "}", "]<|tools_suffix|>", ", "),
    ("<|tools_prefix|>", _INNER[0]),
    ("<|tools_prefix|>", "<|tools_suffix|>", *_INNER),
    reasons=True,
    thinks=_INNER,
)
_PARTS = _BEGIN, _NAME, _WITH, _DONE = [f"<|tool_call:{part}|>" for part in ("begin", "name", "args", "end")]
SOLAR = PlainFormat(  # Solar Open: id, name and arguments between tokens
    "solar",
    Frame("", f"{_BEGIN}{ID}{_NAME}", _WITH, _DONE, known_by=_BEGIN, id="[a-zA-Z0-9_-]{1,64}"),
    (_BEGIN, _WITH),
    ("<|tool_calls|>", *_PARTS),
)

# Kimi K2, without line breaks; its ids have the name of the function and the number of the call:
#
# <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{…}<|tool_call_end|>
# <|tool_calls_section_end|>

_SECTION, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_ONE, _ITS, _ONE_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
KIMI_K2 = PlainFormat(
    "kimi-k2",
    Frame(_SECTION, f"{_ONE}functions.", f":{ID}{_ITS}", _ONE_END, _SECTION_END, id="[0-9]{1,9}"),
    (_SECTION, _ITS),
    (_SECTION, _SECTION_END, _ONE, _ITS, _ONE_END),
    messages=lambda some: with_ids(some, lambda _id, name, n: f"functions.{name}:{n}"),
)


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


# DeepSeek, whose bars are not ASCII's.


_CALLS, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _SEP, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_DEEPSEEK = (_CALLS, _END, _CALL, _SEP, _CALL_END)
DEEPSEEK_R1 = PlainFormat(  # V3 and R1: the arguments are a block of JSON
    "deepseek-r1",
    Frame(_CALLS, f"{_CALL}function{_SEP}", "\n```json\n", f"\n```{_CALL_END}", _END, "\n"),
    (_CALLS, "```json"),
    _DEEPSEEK,
)
DEEPSEEK_V31 = PlainFormat("deepseek-v3.1", Frame(_CALLS, _CALL, _SEP, _CALL_END, _END), (_CALLS,), _DEEPSEEK)


# Mistral. Its templates refuse ids that are not 9 letters and digits.


_TOOL_CALLS, _ARGS, _CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_of_nine = functools.partial(with_ids, new=nine_characters)
MISTRAL_LIST = PlainFormat(  # Nemo, 7B v0.3, Small up to 3.1
    "mistral-list",  # [TOOL_CALLS][{"name": "f", "arguments": {…}, "id": "123456789"}]
    replace(_list(_TOOL_CALLS, ""), tail=f', "id": "{ID}"}}'),
    (_TOOL_CALLS,),
    (_TOOL_CALLS,),
    messages=_of_nine,
)
MISTRAL_ARGS = PlainFormat(  # Devstral, Magistral, Ministral 3: [TOOL_CALLS]f[ARGS]{…}
    "mistral",
    Frame("", _TOOL_CALLS, _ARGS, "", known_by=_TOOL_CALLS),
    (_TOOL_CALLS, _ARGS),
    (_TOOL_CALLS, _ARGS),
    messages=_of_nine,
)
MISTRAL_IDS = PlainFormat(  # Small 3.2: [TOOL_CALLS]f[CALL_ID]123456789[ARGS]{…}
    "mistral-ids",
    Frame("", _TOOL_CALLS, f"{_CALL_ID}{ID}{_ARGS}", "", known_by=_TOOL_CALLS),
    (_TOOL_CALLS, _CALL_ID, _ARGS),
    (_TOOL_CALLS, _CALL_ID, _ARGS),
    messages=_of_nine,
)


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


# Hermes.


_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_OBJECT = re.compile(r'\{\\?"name\\?":')
_FENCES = ("```json", "```")
_BLANK = r"[ \n]{0,8}"
_MAX_BARE = 64  # tools; the grammar of texts that do not begin like one of their calls grows with them


class HermesReader(FrameReader):
    """Looks for a bare call at the beginning."""

    def steps(self) -> Steps[None]:
        scan, atoms = self.scan, (self._open, self._sep, self._close)
        yield from scan.blanks()
        fence = yield from scan.match(_FENCES)
        self._open, self._sep, self._close = self.atoms(_HEAD), [], self.atoms("}")
        any_calls = yield from self.calls(scan.at)
        self._open, self._sep, self._close = atoms
        if any_calls and fence:
            yield from scan.blanks()
            yield from scan.match(_FENCES[1:])
            scan.drop()
        yield from super().steps()


class Hermes(FramedFormat):
    """Qwen 2.5, Qwen 3 and most small models; models without a format of their own get it too:

        <tool_call>
        {"name": "f", "arguments": {…}}
        </tool_call>

    An answer that begins with such an object, or with a block of JSON that has one, is a call too:
    Qwen2.5-Coder and models that were not trained for calls often leave the tags out.
    """

    name = "hermes"
    markers: tuple[str, ...] = (_OPEN, "arguments")
    read_by = HermesReader
    tokens = (_OPEN, _CLOSE)
    frame = Frame("", f"{_OPEN}\n{_HEAD}", _MID, f"}}\n{_CLOSE}", between=NEWLINE, known_by=_OPEN)

    def matches(self, template: str) -> bool:
        return super().matches(template) and _OBJECT.search(template) is not None

    def optional(self, lark: Lark, tools: Tools, call: str, rest: str, text: str) -> str:
        if text or len(tools.allowed) > _MAX_BARE:
            return super().optional(lark, tools, call, rest, text)
        # Other text ends where the beginning of a bare call is complete.
        start = rf"{_BLANK}(```(json)?\n)?{_BLANK}\{{{_BLANK}\"name\"{_BLANK}:{_BLANK}\""
        middle = rf"\"{_BLANK},{_BLANK}\"(arguments|parameters)\""
        names = "|".join(escaped(tool.name) for tool in tools.allowed)
        plain = lark.without([rf"{start}({names}){middle}(.|\n)*"])
        end = lark.terminal(rf"/{_BLANK}\}}({_BLANK}```)?/")
        bare = list[str]()
        for schema, some in bodies(tools):
            known = "|".join(map(escaped, some))
            head = lark.terminal(rf"/{start}({known}){middle}{_BLANK}:{_BLANK}/")
            bare.append(lark.rule(f"{head} {self.style.items(lark, schema)} {end}"))
        return " | ".join([plain, f"{lark.until(_OPEN, plain)} {rest}", *bare])


class Generic(Hermes):
    """For models of which no format is known: tools are described to them, whatever their template shows."""

    name = "generic"
    markers = ()
    described = True


# Llama 3.


_TAG = "<|python_tag|>"


class Llama3Reader(FrameReader):
    """Reads a call with the tag or without it."""

    def steps(self) -> Steps[None]:
        scan = self.scan
        yield from scan.blanks()
        tagged = (yield from scan.match((scan.marker(_TAG),))) is not None
        if tagged:
            at = scan.at
            yield from scan.blanks()
            name = yield from scan.match([f"{name}.call(" for name in self.tools])
            if name is not None:
                self._close = self.atoms(")")
                tool = self.tools[name.removesuffix(".call(")]
                scan.open(tool.name)
                if (yield from PYTHON_ARGUMENTS.read(self, tool)):
                    scan.close()
                    yield from scan.match((")",))
                scan.drop()
                yield from scan.text_until(())
                return
            scan.at = at
        begin = scan.at if tagged else 0
        if not (yield from self.calls(begin)):
            scan.at = begin
            scan.drop()
        yield from scan.text_until(())


class Llama3(FramedFormat):
    """Llama 3.1 to 3.3: the whole answer is one call, without a marker.

        {"name": "f", "parameters": {…}}

    After <|python_tag|> there may be the same, or a call in Python's form, which ends the turn too:

        <|python_tag|>f.call(key="value")
    """

    name = "llama3"
    markers = ("<|start_header_id|>ipython<|end_header_id|>", '"parameters": ')
    read_by = Llama3Reader
    tokens = (_TAG,)
    frame = Frame("", _HEAD, '", "parameters": ', "}", between="; ")
    parallel = False

    def fixed(self, messages: Messages) -> Messages:
        return one_call_each(messages)

    def optional(self, lark: Lark, tools: Tools, call: str, rest: str, text: str) -> str:
        if text:  # begins with the same characters, so that both have to be schemas
            whole = (lark.rule(json_text(_whole(one))) for one in arguments(tools))
            return " | ".join([text, *whole])
        rule = super().optional(lark, tools, call, rest, text)
        if _TAG not in lark.shape.special:
            return rule
        dotted = (
            lark.rule(f'{literal(f"{one.tool.name}.call(")} {PYTHON_ARGUMENTS.items(lark, one.schema)} ")"')
            for one in arguments(tools)
        )
        return f"{rule} | {lark.text(_TAG)} {lark.one_of([lark.rule(call), *dotted])}"


def _whole(one: Arguments) -> Mapping[str, Any]:
    """The schema of a call as one object."""
    inside = {k: v for k, v in one.schema.items() if k not in ("$defs", "definitions")}
    definitions = {k: v for k, v in one.schema.items() if k not in inside}
    return {
        "type": "object",
        "properties": {"name": {"const": one.tool.name}, "parameters": inside},
        "required": ["name", "parameters"],
        "additionalProperties": False,
        **definitions,
    }
