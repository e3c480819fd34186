"""Arguments one by one between tags: strings are raw text, other values are JSON.

<parameter=key>
value
</parameter>
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from specllama.calls.format import marked
from specllama.calls.frame import FrameReader
from specllama.calls.history import text_of
from specllama.calls.lark import NEWLINE, Lark, literal
from specllama.calls.scanner import Steps
from specllama.calls.schema import Types, embedded, json_text, of_type, parameters, type_name
from specllama.calls.tools import Tool

_WORDS = {"True": "true", "False": "false", "None": "null"}
_MAX_KEY = 256
_STRING = frozenset(("string",))


class TaggedArguments:
    """before key after value end. typed: what follows `after` for strings and for other values, where the
    family marks these. words: whether values may be Python's True, False and None.
    """

    begin = ""

    def __init__(
        self, before: str, after: str, end: str, typed: tuple[str, str] | None = None, words: bool = False
    ) -> None:
        self._before, self._after, self._end = before, after, end
        self._typed, self._words = typed, words

    def items(self, lark: Lark, schema: Mapping[str, Any]) -> str:
        known, types = parameters(schema), Types(schema)
        items = list[str]()
        for name, value in known.schemas.items():
            one = self._pair(lark, lark.text(self._before + name + self._after), value, schema, types)
            items.append(one if name in known.required else f"({one})?")
        if known.more:
            key = lark.terminal(r'/[^<>"=\n]{1,64}/')
            start = f"{lark.text(self._before)} {key} {lark.text(self._after)}"
            items.append(f"({self._pair(lark, start, {}, schema, types)})*")
        return " ".join(items)

    def _pair(self, lark: Lark, start: str, value: Any, root: Mapping[str, Any], types: Types) -> str:
        kinds = types.of(value)
        if self._typed is None:
            return lark.rule(f"{start} {self._value(lark, value, root, types)}")
        options = []
        if of_type(kinds, "string"):
            options.append(f"{start} {lark.text(self._typed[0])} {self._string(lark, types.resolved(value))}")
        if kinds != _STRING:
            other = lark.rule(json_text(embedded(value, root)))
            options.append(f"{start} {lark.text(self._typed[1])} {other} {lark.text(self._end)}")
        return lark.one_of([lark.rule(option) for option in options])

    def _value(self, lark: Lark, value: Any, root: Mapping[str, Any], types: Types) -> str:
        """A value and what ends it."""
        kinds = types.of(value)
        if of_type(kinds, "string"):
            return self._string(lark, types.resolved(value) if kinds == _STRING else {})
        options = [lark.rule(json_text(embedded(value, root)))]
        if self._words and kinds and "boolean" in kinds:
            options += [literal("True"), literal("False")]
        if self._words and kinds and "null" in kinds:
            options.append(literal("None"))
        return f"{lark.one_of(options)} {lark.text(self._end)}"

    def _string(self, lark: Lark, schema: Mapping[str, Any]) -> str:
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(values, list) and values and all(isinstance(v, str) for v in values):
            return f"{lark.one_of([lark.text(v) or literal('') for v in values])} {lark.text(self._end)}"
        shortest, longest = schema.get("minLength", 0), schema.get("maxLength", "")
        if (isinstance(longest, int) and longest < 10_000) or (isinstance(shortest, int) and shortest):
            return lark.until(self._end, lark.terminal(rf"/(.|\n){{{shortest},{longest}}}/"))
        return lark.until(self._end)

    def read(self, reader: FrameReader, tool: Tool) -> Steps[bool]:
        scan, types = reader.scan, Types(tool.parameters)
        schemas = parameters(tool.parameters).schemas
        before, n = reader.atoms(self._before), 0
        first, *rest = reader.atoms(self._after)
        end = scan.marker(self._end.strip(f"\n{NEWLINE}"))
        ends = (f"\n{end}", end) if self._end.startswith("\n") else (end,)
        while (yield from reader.passes(before)):
            key = yield from scan.before(first[0], _MAX_KEY)
            if key is None or not (yield from reader.passes(rest)):
                return False
            kinds = types.of(schemas.get(key))
            if self._typed is not None:
                string = yield from scan.match(self._typed)
                kinds = _STRING if string == self._typed[0] else frozenset()
            if self._after.endswith("\n"):
                yield from scan.match(("\n",))
            head = f"{', ' if n else '{'}{json.dumps(key, ensure_ascii=False)}: "
            n += 1
            if kinds == _STRING:
                scan.arguments(head + '"', scan.at)
                if not (yield from scan.string(ends)):
                    return False
                scan.arguments('"', 0)
                continue
            scan.arguments(head, scan.at)
            value = yield from scan.before(end)
            if value is None:
                return False
            value = value[: -1 if len(ends) > 1 and value.endswith("\n") else None]
            scan.arguments(converted(value, kinds), scan.at)
        scan.at = 0
        if not (yield from reader.ends()):
            return False
        scan.arguments("}" if n else "{}", 0)
        return True

    def write(self, arguments: Mapping[str, Any], special: Collection[str] = ()) -> str:
        before, after, end = (
            marked(text, special).replace(NEWLINE, "\n") for text in (self._before, self._after, self._end)
        )
        written = list[str]()
        for name, value in arguments.items():
            mark = "" if self._typed is None else self._typed[not isinstance(value, str)]
            written.append(f"{before}{name}{after}{mark}{text_of(value)}{end}")
        return "".join(written)


def converted(text: str, types: frozenset[str] | None) -> str:
    """A value as JSON. types: those that it may have; where strings are among them, a text that is no value
    of another one is a string. None: not known.
    """
    short = text.strip()
    short = _WORDS.get(short, short)
    try:
        kind = type_name(json.loads(short))
    except (ValueError, RecursionError):
        kind = ""
    expected = types is None or not types or kind in types or (kind == "integer" and "number" in types)
    if kind and (expected if of_type(types, "string") else True) and not (kind == "string" and types is None):
        return short
    return json.dumps(text, ensure_ascii=False)
