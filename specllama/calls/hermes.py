"""Hermes's format, which Qwen 2.5, Qwen 3 and most small models use; models without their own get it too:

    <tool_call>
    {"name": "f", "arguments": {…}}
    </tool_call>

An answer that begins with such an object, or with a block of JSON that has one, is a call too: Qwen2.5-Coder
and models that were not trained for calls often leave the tags out.
"""

from __future__ import annotations

import re
from typing import ClassVar

from specllama.calls.frame import Frame, FramedFormat, FrameReader
from specllama.calls.lark import NEWLINE, Lark, escaped
from specllama.calls.scanner import Steps
from specllama.calls.schema import bodies
from specllama.calls.tools import Tools

_OPEN, _CLOSE, _HEAD = "<tool_call>", "</tool_call>", '{"name": "'
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
    """The format as above, several calls one after another."""

    name = "hermes"
    markers: ClassVar[tuple[str, ...]] = (_OPEN, "arguments")
    read_by = HermesReader
    tokens = (_OPEN, _CLOSE)
    frame = Frame(
        "", f"{_OPEN}\n{_HEAD}", '", "arguments": ', f"}}\n{_CLOSE}", between=NEWLINE, known_by=_OPEN
    )

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
