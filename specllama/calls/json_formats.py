"""Formats whose arguments are JSON, and of which texts do not say it all; the others are in formats.toml."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from specllama.calls.arguments import PYTHON_ARGUMENTS
from specllama.calls.format import NEWLINE, Lark, TemplateData, escaped, literal
from specllama.calls.frame import ID, Frame, FramedFormat, FrameReader
from specllama.calls.history import Messages, one_call_each
from specllama.calls.scanner import Steps
from specllama.calls.schema import Arguments, arguments, bodies, json_text
from specllama.calls.tools import Tools

_HEAD, _MID = '{"name": "', '", "arguments": '


class Firefunction(FramedFormat):
    """Firefunction v2, whose template gets the tools as a text."""

    name = "firefunction"
    markers = ("functools[",)
    frame = Frame("functools[", _HEAD, _MID, "}", "]", ", ", known_by="functools[")
    without_tools: ClassVar[Mapping[str, Any]] = {"functions": "[]"}

    def template_input(self, *given: Any, **more: Any) -> TemplateData:
        data = super().template_input(*given, **more)
        shown = [tool["function"] for tool in data.variables.get("tools", ())]
        return replace(data, variables={"functions": json.dumps(shown, indent=4)} if shown else {})


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
