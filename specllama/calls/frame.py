"""Formats with fixed texts around the name and the arguments of each call.

A `Frame` has these texts; how arguments are written is an `ArgumentStyle`.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from specllama.calls.format import NEWLINE, AnswerShape, CallFormat, Lark, escaped, literal, marked
from specllama.calls.history import Call, Messages
from specllama.calls.scanner import StepReader, Steps
from specllama.calls.schema import bodies, json_text
from specllama.calls.tools import Tool, Tools
from specllama.text.detokenizer import SHOWN

ID = "\0"
"""In a frame: an id of the call, which nothing depends on."""
NINE = "[a-zA-Z0-9]{9}"
_ID_LENGTH = 64
_SYNONYMS = {'"arguments"': ('"arguments"', '"parameters"'), '"parameters"': ('"parameters"', '"arguments"')}


class ArgumentStyle:
    """How arguments are written: as a JSON object. Other ways are subclasses. begin: the character with which
    they begin, "" if any may come.
    """

    begin = "{"

    def items(self, lark: Lark, schema: Mapping[str, Any], /) -> str:
        """Items of a grammar that match them."""
        return lark.rule(json_text(schema))

    def read(self, reader: FrameReader, _tool: Tool, /) -> Steps[bool]:
        """Passes them on as JSON. Returns whether they are complete and an object."""
        return (yield from reader.scan.json_object())

    def write(self, arguments: Mapping[str, Any], _special: Collection[str] = (), /) -> str:
        """As the grammar has them, with SHOWN before the style's own tokens that are in `special`."""
        return json.dumps(arguments, ensure_ascii=False)


JSON = ArgumentStyle()


@dataclass(frozen=True, slots=True)
class Frame:
    """The fixed texts of a format.

        begin CALL (between CALL)* end          CALL: head NAME mid ARGUMENTS tail

    known_by: the beginning by which a call is known, "" for that of `begin`; where that is a bracket or
    nothing, a call is known only at the beginning of an answer. id: regular expression of ID.
    """

    begin: str
    head: str
    mid: str
    tail: str
    end: str = ""
    between: str = ""
    known_by: str = ""
    id: str = NINE

    @property
    def trigger(self) -> str:
        """The beginning by which a call is known, "" if one is known only at the beginning of an answer."""
        return self.known_by or self.begin.rstrip("[\n ")

    @property
    def open(self) -> str:
        """Precedes the name in the first call."""
        return self.begin + self.head

    @property
    def sep(self) -> str:
        """Between the arguments of a call and the name in the next one."""
        return self.tail + self.between + self.head

    @property
    def close(self) -> str:
        """Follows the arguments of the last call."""
        return self.tail + self.end

    @property
    def quoted(self) -> bool:
        """Whether names are in JSON's quotes."""
        return self.open.endswith(': "')

    def name(self, name: str) -> str:
        return json.dumps(name, ensure_ascii=False)[1:-1] if self.quoted else name


class FrameReader(StepReader):
    """Reads text, then any number of calls. What stands after a trigger and is no call is text."""

    def __init__(
        self,
        frame: Frame,
        style: ArgumentStyle,
        tokens: Collection[str],
        thinks: tuple[str, str] | None,
        tools: Tools,
        special: Collection[str] | None = None,
    ) -> None:
        super().__init__(tools, special)
        self._frame, self._style, self._tokens, self._thinks = frame, style, tokens, thinks
        self._open, self._mid, self._sep, self._close = (
            self.atoms(text) for text in (frame.open, frame.mid, frame.sep, frame.close)
        )
        self._names = {frame.name(name): name for name in self.tools}
        if frame.quoted:
            self._names |= {json.dumps(name)[1:-1]: name for name in self.tools}

    def steps(self) -> Steps[None]:
        yield from self.reasoning()
        trigger = self.scan.marker(self._frame.trigger)
        if not trigger:
            yield from self.calls()
            yield from self.scan.text_until(())
            return
        opening = self.scan.marker(self._thinks[0]) if self._thinks else ""
        markers = (trigger, opening) if SHOWN in opening else (trigger,)
        while (marker := (yield from self.scan.text_until(markers))) is not None:
            if marker == opening and self._thinks:  # the white space before it separates the texts around it
                self.scan.write_text(self.scan.text.find(opening))
                self.scan.at = len(opening)
                yield from self._thought(self._thinks[1])
            elif not (yield from self.calls()):
                self.scan.write_text(self.scan.text.find(trigger) + len(trigger))

    def reasoning(self) -> Steps[None]:
        """Reads the reasoning at the beginning, if there is any."""
        if self._thinks is None:
            return
        yield from self.scan.blanks()
        if (yield from self.scan.match((self.scan.marker(self._thinks[0]),))) is None:
            self.scan.at = 0
            return
        yield from self._thought(self._thinks[1])

    def _thought(self, closing: str) -> Steps[None]:
        """Reads reasoning up to its closing tag; the opening tag has been matched."""
        closing = self.scan.marker(closing)
        yield from self.scan.blanks()
        self.scan.drop()
        if (yield from self.scan.text_until((closing,), reasoning=True)) is not None:
            self.scan.take(self.scan.text.find(closing) + len(closing))
            yield from self.scan.blanks()
            self.scan.drop()

    def calls(self, at: int = 0) -> Steps[bool]:
        """Reads calls that follow one another, from `at` on; False, with nothing read, if there is none."""
        self.scan.at = at
        known = bool(self._names) and (yield from self.passes(self._open))
        name = (yield from self.name()) if known else None
        if name is None:
            self.scan.at = 0
            return False
        while name is not None:
            self.scan.open(name)
            if not (yield from self._style.read(self, self.tools[name])):
                if self.scan.last:  # what is left is the beginning of something in the call
                    self.scan.take(len(self.scan.text))
                return True
            self.scan.close()
            self.scan.at = 0
            more = bool(self._sep) and (yield from self.passes(self._sep))
            name = (yield from self.name()) if more else None
        self.scan.at = 0
        closed = yield from self.passes(self._close)
        after, self.scan.at = self.scan.at, 0
        next_call = [*self._sep, list(self._names), *self._mid] if self._sep else []
        if (yield from self.is_cut_off(next_call)) or (yield from self.is_cut_off(self._close)):
            self.scan.take(len(self.scan.text))
        elif closed:
            self.scan.at = after
            self.scan.drop()
        self.scan.at = 0
        return True

    def name(self) -> Steps[str | None]:
        """A known name and what follows it up to the arguments."""
        if not self._frame.quoted:
            yield from self.scan.blanks()
        start = yield from self.scan.match(list(self._names))
        if start is None or not (yield from self.passes(self._mid)):
            return None
        if self._style.begin:
            yield from self.scan.blanks()
            if not (yield from self.scan.next_is(self._style.begin)):
                return None
        return self._names[start]

    def ends(self) -> Steps[bool]:
        """Whether what follows the arguments of a call comes next. Nothing is passed."""
        at = self.scan.at
        for atoms in (self._close[:1], self._sep[:1]):
            self.scan.at = at
            if atoms and (yield from self.passes(atoms)):
                self.scan.at = at
                return True
        self.scan.at = at
        return False

    def passes(self, atoms: Sequence[Sequence[str]]) -> Steps[bool]:
        """Whether these atoms come next, with any white space between them."""
        for options in atoms:
            if options[0] == ID:
                if not (yield from self.scan.word("._:-", _ID_LENGTH)):
                    return False
                continue
            yield from self.scan.blanks()
            if (yield from self.scan.match(options)) is None:
                return False
        return True

    def is_cut_off(self, atoms: Sequence[Sequence[str]]) -> Steps[bool]:
        """Whether the answer has ended within these atoms, or after all of them. Nothing is passed."""
        if not self.scan.last or not atoms:
            return False
        at, cut_off = self.scan.at, False
        for options in atoms:
            yield from self.scan.blanks()
            rest = self.scan.text[self.scan.at :]
            cut_off = any(option.startswith(rest) for option in options)
            if cut_off or not (yield from self.passes((options,))):
                break
        else:
            cut_off = not self.scan.text[self.scan.at :].strip()
        self.scan.at = at
        return cut_off

    def atoms(self, text: str) -> list[Sequence[str]]:
        """The parts of a fixed text between which white space may come."""
        return [_SYNONYMS.get(p, (self.scan.marker(p),)) for p in parts(text, self._tokens)]


def parts(text: str, tokens: Collection[str]) -> list[str]:
    """The parts of a fixed text between which white space may come."""
    known = "".join(f"{re.escape(token)}|" for token in sorted(tokens, key=len, reverse=True))
    return re.findall(rf'{known}{ID}|"\w+"|[{{}}\[\],:]|[^\s{{}}\[\],:"{ID}{NEWLINE}]+|"', text)


class FramedFormat(CallFormat):
    """A format with a frame. parallel: whether an answer may have several calls. read_by: its reader."""

    frame: Frame
    style: ArgumentStyle = JSON
    parallel: bool = True
    read_by: ClassVar[type[FrameReader]] = FrameReader

    def write(self, calls: Sequence[Call], special: Collection[str] = ()) -> str:
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
            for schema, names in bodies(tools)
        ]
        one = lark.one_of([lark.rule(f"{named} {args}") for _, named, args in calls])
        more = f" ({self._text(lark, frame.sep)} {one})*" if tools.parallel and self.parallel else ""
        if frame.trigger:
            first = f"{self._text(lark, frame.open[len(frame.trigger) :])} {one}"
        else:  # a text that is no call ends where the beginning of a call is complete, so that is one literal
            rules = list[str]()
            for names, _, args in calls:
                heads = [literal(f"{frame.open}{frame.name(name)}{frame.mid}") for name in names]
                rules.append(lark.rule(f"{lark.one_of(heads)} {args}"))
            first = lark.one_of(rules)
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


@dataclass(frozen=True, eq=False)
class PlainFormat(FramedFormat):
    """A format that is its texts alone, in a row. messages: these as the family's own templates need them."""

    name: str
    frame: Frame
    markers: tuple[str, ...]
    tokens: tuple[str, ...] = ()
    style: ArgumentStyle = JSON
    parallel: bool = True
    reasons: bool = False
    thinks: tuple[str, str] | None = None
    headers: tuple[tuple[str, ...], str] | None = None
    messages: Callable[[Messages], Messages] = list

    def fixed(self, messages: Messages) -> Messages:
        return self.messages(messages)
