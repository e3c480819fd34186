"""The interface of a call format, a family's way of writing tool calls, and the writing of its grammars.

One definition gives the prompt's form, the grammar and the reader. Knows no API and no engine.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from specllama.calls import history
from specllama.calls.scanner import CallReader
from specllama.calls.tools import Tools
from specllama.json_types import JsonObject
from specllama.text.detokenizer import SHOWN
from specllama.text.prompt_parts import PromptPart

NEWLINE = "\1"
"""In the texts of formats: a line may end here or not."""
MAX_PARTS = 200  # of the reasoning before a call that is required: sentences and lines
MAX_PART = 160  # characters of a part; a longer sentence is several
_ANY = r"(.|\n)"
_ENDS = r"\n.!?"  # of a part


@dataclass(frozen=True, slots=True)
class TemplateData:
    """The input of a chat template: messages, and further variables."""

    messages: history.Messages
    variables: JsonObject


@dataclass(frozen=True, slots=True)
class AnswerShape:
    """The parts of an answer that a grammar has to allow before and besides calls.

    reasoning: (opening tag, closing tag) of the reasoning before the answer, None for a model without one.
    opened: whether the prompt has opened it. begun: whether the answer comes at once, because the prompt ends
    after the reasoning or with the beginning of the answer. text: Lark of the text of an answer without calls
    that must obey a schema, "" for free text. special: ids of the vocabulary's control tokens by text.
    """

    reasoning: tuple[str, str] | None = None
    opened: bool = False
    begun: bool = False
    text: str = ""
    special: Mapping[str, int] = field(default_factory=dict)


class CallFormat(ABC):
    """One family's format.

    name: of the option tool_format. markers: texts of which a chat template of the family contains all.
    tokens: texts in calls that are control tokens in the family's vocabularies; the writer shows them where a
    reader looks for them, with `text.detokenizer.SHOWN` before each. reasons: whether models of the family
    reason in a way of their own, in channels, which the reader reads; it is then used for answers without
    tools too. thinks: the tags around that reasoning, None for a family without them. begin: what precedes
    the text of an answer, where the client has begun it; begin_thought: what stands before and after its
    reasoning, () for what the template shows, or `thinks`. end_thought: what ends a part of the reasoning,
    and what follows before the next part of the answer; () for `thinks`. without_tools: variables that the
    family's templates need where no tools are shown. headers: the tokens with which headers of parts of an
    answer begin, and the text with which they end; None without headers. described: whether tools, calls and
    results are written as text whatever the template shows.
    """

    name: str
    markers: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    reasons: bool = False
    thinks: tuple[str, str] | None = None
    begin: str = ""
    begin_thought: tuple[str, str] | tuple[()] = ()
    end_thought: tuple[str, str] | tuple[()] = ()
    without_tools: ClassVar[Mapping[str, Any]] = {}
    headers: tuple[tuple[str, ...], str] | None = None
    described: bool = False

    def matches(self, template: str) -> bool:
        return bool(self.markers) and all(marker in template for marker in self.markers)

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
        """Messages and tools as templates of the family read them.

        own: whether the model's template shows tools; otherwise they are described in a message. calls:
        whether it shows calls and results; otherwise they are written as text (None: as it shows tools).
        system: whether it accepts system messages. special: those of `tokens` that are control tokens of the
        vocabulary; in text that is written here they have SHOWN before them, for `with_tokens`.

        messages: in the form of the OpenAI API, but the arguments of calls are objects.
        """

        def write(some: Sequence[history.Call]) -> str:
            return self.write(some, special)

        own = own and not self.described
        shows_calls = (own if calls is None else calls) and not self.described
        given = without_marks(messages) if special else messages
        # Templates ask whether the key of calls is there.
        rewritten = [{k: v for k, v in m.items() if k != "tool_calls" or v} for m in given]
        rewritten = self.fixed(rewritten) if shows_calls else history.calls_as_text(rewritten, write)
        if own:
            return TemplateData(rewritten, history.functions(tools))
        rewritten = rewritten if shows_calls else history.results_as_text(rewritten)
        return TemplateData(history.with_tools(rewritten, tools, write, system), {})

    def fixed(self, messages: history.Messages) -> history.Messages:
        """The messages as the family's own templates need them."""
        return messages

    @abstractmethod
    def write(self, calls: Sequence[history.Call], special: Collection[str] = ()) -> str:
        """Calls as the model writes them, with SHOWN before the tokens in `special`."""

    @abstractmethod
    def grammar(self, tools: Tools, shape: AnswerShape) -> str:
        """A Lark grammar of llguidance for the answer. Raises UsageError for a schema that cannot be used."""

    @abstractmethod
    def reader(self, tools: Tools, special: Collection[str] | None = None) -> CallReader:
        """A reader for one answer. special: those of `tokens` that are control tokens of the vocabulary,
        which are found only with SHOWN before them; None: not known, the letters count too.
        """


def without_marks(value: Any) -> Any:
    """A copy of plain data without SHOWN."""
    if isinstance(value, str):
        return value.replace(SHOWN, "")
    if isinstance(value, Mapping):
        return {without_marks(k): without_marks(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_marks(v) for v in value]
    return value


def _any_of(tokens: Collection[str]) -> str:
    return "|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True)) or "(?!)"


def marked(text: str, tokens: Collection[str]) -> str:
    """A text of the format with SHOWN, which no client can write, before its control tokens."""
    return re.sub(_any_of(tokens), lambda match: SHOWN + match.group(), text)


def with_tokens(parts: Sequence[PromptPart], tokens: Collection[str]) -> list[PromptPart]:
    """The parts of a rendered prompt, in which marked tokens are control tokens."""
    pattern, split = re.compile(f"{SHOWN}({_any_of(tokens)})|{SHOWN}"), list[PromptPart]()
    for part in parts:
        done = 0
        for match in pattern.finditer(part.text):
            split += [replace(part, text=part.text[done : match.start()]), PromptPart(match[1] or "", True)]
            done = match.end()
        split.append(replace(part, text=part.text[done:]))
    return [part for part in split if part.text]


class Lark:
    """The rules of one grammar, in Lark of llguidance: texts in which control tokens are matched as tokens,
    and whole answers.
    """

    def __init__(self, shape: AnswerShape) -> None:
        self.shape = shape
        self._special = sorted(shape.special, key=len, reverse=True)
        self._lines = [f"TEXT: /{_ANY}*/"]
        self._names: dict[str, str] = {}  # of rules, by their bodies

    def text(self, text: str) -> str:
        """Items that match a text; control tokens in it are matched as tokens."""
        parts = [self._text(part) for part in text.split(NEWLINE)]
        return ' "\\n"? '.join(parts).strip()

    def _text(self, text: str) -> str:
        items, done = list[str](), 0
        while done < len(text):
            matches = [(at, -len(t), t) for t in self._special if (at := text.find(t, done)) >= 0]
            at, _, token = min(matches, default=(len(text), 0, ""))
            if at > done:
                items.append(literal(text[done:at]))
            if token:
                items.append(f"<[{self.shape.special[token]}]>")
            done = at + len(token)
        return " ".join(items)

    def until(self, marker: str, terminal: str = "TEXT") -> str:
        """Items that match any text (or a terminal) without the marker, and the marker that ends it."""
        marker, newline, more = marker.partition(NEWLINE)
        if newline:
            return f"{self.until(marker, terminal)} {self.text(newline + more)}"
        tokens = self.text(marker)
        if tokens.startswith("<["):
            return f"{terminal} {tokens}"
        first = next((t for t in self._special if t in marker), "")
        if first:  # a control token after ordinary characters
            head, _, tail = marker.partition(first)
            return f"{self.terminal(f'{terminal} {literal(head)}')} {self.text(first + tail)}"
        return self.rule(f"{terminal} {literal(marker)}", lazy=True)

    def capped(self, marker: str, most: int = MAX_PARTS) -> str:
        """Items that match a text of at most so many parts, and the marker that ends it. Where a part has all
        its characters, what begins like a marker of text has to become one.
        """
        inside = f"[^{_ENDS}]{{0,{MAX_PART - 1}}}"
        part, rest = self.terminal(f"/{inside}(.|\\n)/"), self.terminal(f"/{inside}/")
        return f"{part}{{0,{most}}} {self.until(marker, rest)}"

    def rule(self, body: str, lazy: bool = False) -> str:
        """The name of a rule with this body."""
        key = f"{'[lazy]' if lazy else ''}: {body}"
        if key not in self._names:
            self._names[key] = f"r{len(self._names)}"
            self._lines.append(self._names[key] + key)
        return self._names[key]

    def recursive(self, key: str) -> tuple[str, bool]:
        """(The name of a rule that stands for `key`, whether its body has still to be given to `define`)."""
        new = key not in self._names
        return self._names.setdefault(key, f"r{len(self._names)}"), new

    def define(self, name: str, body: str) -> None:
        """The body of a rule made with `recursive`."""
        self._lines.append(f"{name}: {body}")

    def terminal(self, body: str) -> str:
        """The name of a terminal with this body."""
        if f":: {body}" not in self._names:
            self._names[f":: {body}"] = name = f"T{len(self._names)}"
            self._lines.append(f"{name}: {body}")
        return self._names[f":: {body}"]

    def without(self, patterns: Sequence[str]) -> str:
        """A terminal for any text that matches none of these regular expressions as a whole."""
        refused = " ".join(f"& ~/{pattern}/" for pattern in patterns)
        return self.terminal(f"/{_ANY}*/ {refused}") if patterns else "TEXT"

    def one_of(self, items: Sequence[str]) -> str:
        """Alternatives, as one item."""
        return items[0] if len(items) == 1 else self.rule(" | ".join(items))

    def answer(self, body: str, capped: bool, own: tuple[str, str] | None = None) -> str:
        """The grammar of an answer: reasoning, if the model writes any, then the items `body`. capped:
        whether the reasoning ends after MAX_PARTS parts, so that the body comes. own: the tags of
        reasoning in the format, where the shape has none.
        """
        start = f"{self._reasoning(capped, own)} {self.rule(body)}".strip()
        return "\n".join([f"start: {start}", *self._lines])

    def _reasoning(self, capped: bool, own: tuple[str, str] | None) -> str:
        if self.shape.begun or (tags := self.shape.reasoning or own) is None:
            return ""
        opening, closing = tags
        blank = self.terminal(r"/[ \n]{0,4}/")
        ending = f"{self.capped(closing) if capped else self.until(closing)} {blank}"
        return ending if self.shape.opened else f"({blank} {self.text(opening)} {ending})?"


def literal(text: str) -> str:
    """A text in a grammar, in which no control token is looked for."""
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """A text in a regular expression of a grammar."""
    out = []
    for c in text:
        if c == "\n":
            out.append(r"\n")
        else:
            out.append(f"\\{c}" if c in r"\.+*?()|[]{}^$/#&-~" else c)
    return "".join(out)
