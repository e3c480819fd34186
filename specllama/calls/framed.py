"""Formats with a frame: all but gpt-oss's. Grammar, reader and writer follow from the frame and the style of
the arguments.
"""

from __future__ import annotations

import itertools
import re
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from specllama.calls import schema as schemas
from specllama.calls.format import AnswerShape, CallFormat, TemplateData
from specllama.calls.frame import ID, NINE, ArgumentStyle, Frame, FrameReader, JsonArguments, parts
from specllama.calls.history import Messages, calls_as_text, functions, plain, results_as_text, with_tools
from specllama.calls.lark import NEWLINE, Lark, escaped, literal
from specllama.calls.prompt import marked, without_marks
from specllama.calls.scanner import StepReader
from specllama.calls.tools import Tools


class WrittenFormat(CallFormat):
    """A format that can write calls itself, for templates that do not. described: whether tools, calls and
    results are written as text whatever the template shows.
    """

    described: ClassVar[bool] = False

    def template_input(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Tools | None,
        own: bool,
        *,
        calls: bool | None = None,
        system: bool = True,
        special: Collection[str] = (),
    ) -> TemplateData:
        def write(some: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
            return self.write(some, special)

        own = own and not self.described
        shows_calls = (own if calls is None else calls) and not self.described
        rewritten = plain(without_marks(messages) if special else messages)
        rewritten = self.fixed(rewritten) if shows_calls else calls_as_text(rewritten, write)
        if own:
            return TemplateData(rewritten, functions(tools))
        rewritten = rewritten if shows_calls else results_as_text(rewritten)
        return TemplateData(with_tools(rewritten, tools, write, system), {})

    def fixed(self, messages: Messages) -> Messages:
        """The messages as the family's own templates need them."""
        return messages

    @abstractmethod
    def write(self, calls: Sequence[tuple[str, Mapping[str, Any]]], special: Collection[str] = ()) -> str:
        """Calls (name, arguments) as the model writes them, with SHOWN before the tokens in `special`."""


class FramedFormat(WrittenFormat):
    """A format with a frame. parallel: whether an answer may have several calls. read_by: its reader."""

    frame: ClassVar[Frame]
    style: ClassVar[ArgumentStyle] = JsonArguments()
    parallel: ClassVar[bool] = True
    read_by: ClassVar[type[FrameReader]] = FrameReader

    def write(self, calls: Sequence[tuple[str, Mapping[str, Any]]], special: Collection[str] = ()) -> str:
        """Calls (name, arguments) as the model writes them, with SHOWN before the tokens in `special`."""
        frame, written = self.frame, list[str]()
        numbers, shown = itertools.count(), "{:09}" if self.frame.id == NINE else "{}"

        def fixed(text: str) -> str:
            text = re.sub(f"{NEWLINE}+", "\n", marked(text, special))
            return re.sub(ID, lambda _: shown.format(next(numbers)), text)

        for i, (name, arguments) in enumerate(calls):
            before, middle = fixed(frame.sep if i else frame.open), fixed(frame.mid)
            written.append(f"{before}{frame.name(name)}{middle}{self.style.write(arguments, special)}")
        return "".join(written) + fixed(frame.close)

    def grammar(self, tools: Tools, shape: AnswerShape) -> str:
        lark, frame = Lark(shape), self.frame
        text = shape.text and lark.rule(shape.text)
        if not tools.allowed:
            none = text or lark.without(self.refused(tools, shape))
            return lark.answer(self.plain(lark, "" if none == "TEXT" else none), False, self.thinks)
        calls = [
            (names, self._named(lark, names), self.style.items(lark, schema))
            for schema, names in schemas.bodies(schemas.arguments(tools))
        ]
        one = lark.one_of([lark.rule(f"{named} {args}") for _, named, args in calls])
        more = f" ({self._text(lark, frame.sep)} {one})*" if tools.parallel and self.parallel else ""
        if frame.trigger:
            first = f"{self._text(lark, frame.open[len(frame.trigger) :])} {one}"
        else:  # a text that is no call ends where the beginning of a call is complete, so that is one literal
            heads = [
                (lark.one_of([literal(frame.head(name)) for name in names]), args) for names, _, args in calls
            ]
            first = lark.one_of([lark.rule(f"{head} {args}") for head, args in heads])
        rest = f"{first}{more} {self._text(lark, frame.close)}"
        call = f"{lark.text(frame.trigger)} {rest}"
        if tools.choice == "required":
            return lark.answer(call, True, self.thinks)
        return lark.answer(self.optional(lark, tools, call, rest, text), False, self.thinks)

    def optional(self, lark: Lark, tools: Tools, call: str, rest: str, text: str) -> str:
        """Text or calls. call: the items of all calls; rest: without the trigger. text: the rule that texts
        without calls obey, "" for free text.
        """
        if text:
            return f"{self.plain(lark, text)} | {call}"
        if not self.frame.trigger:
            return f"{self.plain(lark, lark.without(self.refused(tools, lark.shape)))} | {call}"
        return f"{self.plain(lark, '')} | {lark.until(self.frame.trigger)} {rest}"

    def plain(self, _lark: Lark, text: str, /) -> str:
        """An answer without calls. text: the item that it obeys, "" for free text."""
        return text or "TEXT"

    def refused(self, tools: Tools, shape: AnswerShape) -> list[str]:
        """Regular expressions of the texts that are no text without calls."""
        trigger = self.frame.trigger
        if trigger:
            known = any(token in trigger for token in shape.special)
            return [] if known else [rf"(.|\n)*{escaped(trigger)}(.|\n)*"]
        names = "|".join(escaped(self.frame.name(tool.name)) for tool in tools.tools)
        begin = "".join(rf"{escaped(part)}\s*" for part in parts(self.frame.open, ())[:-1])
        begin += escaped(parts(self.frame.open, ())[-1])
        return [rf"\s*{begin}({names})\s*{escaped(parts(self.frame.mid, ())[0])}(.|\n)*"]

    def reader(self, tools: Tools, special: Collection[str] | None = None) -> StepReader:
        return self.read_by(self.frame, self.style, self.tokens, self.thinks, tools, special)

    def _named(self, lark: Lark, names: Sequence[str]) -> str:
        """Names and what follows them. Where that begins like what names may have, it is part of the literal:
        one name may be the beginning of another.
        """
        joined = self.frame.mid.partition(ID)[0] if self.frame.mid[0] in "._:-/@" else ""
        some = lark.one_of([lark.text(self.frame.name(name) + joined) for name in names])
        return f"{some} {self._text(lark, self.frame.mid[len(joined) :])}"

    def _text(self, lark: Lark, text: str) -> str:
        parts = [lark.text(part) for part in text.split(ID)]
        return f" {lark.terminal(f'/{self.frame.id}/')} ".join(parts) if len(parts) > 1 else parts[0]
