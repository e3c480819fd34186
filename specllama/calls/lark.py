"""Writes llguidance's Lark grammars: texts in which control tokens are matched as tokens, and whole answers.

Knows no call format.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from specllama.calls.format import AnswerShape

NEWLINE = "\1"
"""In the texts of formats: a line may end here or not."""
MAX_PARTS = 200  # of the reasoning before a call that is required: sentences and lines
MAX_PART = 160  # characters of a part; a longer sentence is several
_ANY = r"(.|\n)"
_ENDS = r"\n.!?"  # of a part


class Lark:
    """The rules of one grammar. special: ids of control tokens by their texts."""

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
