"""The format of Llama 3.1 to 3.3: the whole answer is one call, without a marker.

    {"name": "f", "parameters": {…}}

After <|python_tag|> there may be the same, or a call in Python's form, which ends the turn too:

    <|python_tag|>f.call(key="value")
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specllama.calls.frame import Frame, FramedFormat, FrameReader
from specllama.calls.history import Messages, one_call_each
from specllama.calls.lark import Lark, literal
from specllama.calls.literals import PYTHON, LiteralArguments
from specllama.calls.scanner import Steps
from specllama.calls.schema import Arguments, arguments, json_text
from specllama.calls.tools import Tools

_TAG = "<|python_tag|>"
_PYTHON = LiteralArguments(PYTHON)


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
                if (yield from _PYTHON.read(self, tool)):
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
    """The format as above."""

    name = "llama3"
    markers = ("<|start_header_id|>ipython<|end_header_id|>", '"parameters": ')
    read_by = Llama3Reader
    tokens = (_TAG,)
    frame = Frame("", '{"name": "', '", "parameters": ', "}", between="; ")
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
            lark.rule(f'{literal(f"{one.tool.name}.call(")} {_PYTHON.items(lark, one.schema)} ")"')
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
