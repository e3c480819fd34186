"""Parts of llguidance's Lark grammars that all call formats share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from specllama.calls.format import AnswerShape
from specllama.calls.tools import Tool

JSON_STYLE = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": True,
}
"""The style of JSON that models were trained to write; whitespace is fixed, so it cannot go on for ever."""
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def literal(text: str, shape: AnswerShape) -> str:
    """A text in a grammar: as its control token where it is one."""
    if text in shape.special:
        return f"<[{shape.special[text]}]>"
    return json.dumps(text, ensure_ascii=False)


def arguments_schema(tool: Tool) -> str:
    """The arguments of a tool, as an inline JSON schema. A tool without parameters takes none."""
    schema = dict(tool.parameters) or {"type": "object", "properties": {}, "additionalProperties": False}
    if tool.strict and "properties" in schema:
        schema.setdefault("additionalProperties", False)
    return "%json " + json.dumps(schema | {"x-guidance": JSON_STYLE})


def answer(shape: AnswerShape, trigger: str, calls: str, rules: Sequence[str], choice: str) -> str:
    """The grammar of a whole answer.

    trigger: the text with which a call begins; calls: the rule of what follows it to the end of the answer.
    rules: further rules that `calls` refers to. choice: see `Tools`.
    """
    special = trigger in shape.special
    lines = ["TEXT: /(.|\\n)*/", *rules]
    if choice == "required":
        body = f"{literal(trigger, shape)} {calls}"
    elif choice == "none":
        body = "TEXT" if special else "NO_CALL"
        if not special:
            lines.append(f"NO_CALL: /(.|\\n)*/ & ~/(.|\\n)*{_escaped(trigger)}(.|\\n)*/")
    elif special:
        body = f"plain | TEXT {literal(trigger, shape)} {calls}"
        lines.append(f"plain: {shape.text or 'TEXT'}")
    else:
        body = f"plain | head {calls}"
        lines += [f"plain: {shape.text or 'TEXT'}", f"head[lazy]: TEXT {literal(trigger, shape)}"]
    lines.append(f"body: {body}")
    return "\n".join([*_start(shape), *lines])


def _start(shape: AnswerShape) -> list[str]:
    """The rules of the beginning: reasoning, if the model writes any, then `body`."""
    if shape.reasoning is None:
        return ["start: body"]
    opening, closing = shape.reasoning
    end = f"TEXT {literal(closing, shape)}"
    lazy = "" if closing in shape.special else "[lazy]"
    thought = f"thought{lazy}: {end}"
    blank = r"blank: /[ \n]{0,4}/"
    if shape.opened:
        return ["start: thought blank body", thought, blank]
    return [f"start: (blank {literal(opening, shape)} thought blank)? body", thought, blank]


def _escaped(text: str) -> str:
    return "".join(f"\\{c}" if c in r"\.+*?()|[]{}^$/" else c for c in text)
