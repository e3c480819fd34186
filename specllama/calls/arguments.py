"""Arguments that are no JSON object: literals, as Python's keyword arguments and Gemma's objects, and values
between tags.

a=1, b="x", c=[True, None]        a:1,b:<|"|>x<|"|>,c:[true,null]        <parameter=a>1</parameter>
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from specllama.calls.format import NEWLINE, Lark, literal, marked
from specllama.calls.frame import ArgumentStyle, Frame, FramedFormat, FrameReader
from specllama.calls.history import text_of
from specllama.calls.scanner import BLANKS, Scanner, Steps
from specllama.calls.schema import Types, embedded, json_text, of_type, parameters, type_name
from specllama.calls.tools import Tool
from specllama.text.detokenizer import SHOWN
from specllama.text.json_schema import MAX_DEPTH

_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


@dataclass(frozen=True, slots=True)
class Syntax:
    """equals: between the key and the value of an argument. comma, colon: in lists and objects. words: for
    true, false and null. quote: around strings without escapes; "" for Python's strings. sorts: whether keys
    are in alphabetical order, otherwise in the schema's.
    """

    equals: str
    comma: str
    colon: str
    words: tuple[str, str, str]
    quote: str = ""
    sorts: bool = False


PYTHON = Syntax("=", ", ", ": ", ("True", "False", "None"))


def write(value: Any, syntax: Syntax) -> str:
    """A value as a literal."""
    if isinstance(value, str):
        return (
            f"{syntax.quote}{value}{syntax.quote}" if syntax.quote else json.dumps(value, ensure_ascii=False)
        )
    if value is None or isinstance(value, bool):
        return syntax.words[2 if value is None else int(not value)]
    if isinstance(value, Mapping):
        return "{" + pairs_text(value, syntax, syntax.colon, quoted=not syntax.quote) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + syntax.comma.join(write(v, syntax) for v in value) + "]"
    return json.dumps(value)


def pairs_text(values: Mapping[str, Any], syntax: Syntax, equals: str, quoted: bool) -> str:
    """Keys and values, separated by commas."""
    keys = sorted(values, key=str.lower) if syntax.sorts else list(values)
    shown = {key: json.dumps(key, ensure_ascii=False) if quoted else key for key in keys}
    return syntax.comma.join(f"{shown[key]}{equals}{write(values[key], syntax)}" for key in keys)


class LiteralRules:
    """The rules of values. root: the schema in which references are looked up."""

    def __init__(self, lark: Lark, syntax: Syntax, root: Mapping[str, Any]) -> None:
        self._lark, self._syntax, self._types = lark, syntax, Types(root)
        self._root = json.dumps(root)

    def pairs(self, schema: Mapping[str, Any], equals: str, quoted: bool) -> str:
        """Keys and values of an object, separated by commas, as items."""
        known, comma = parameters(schema), self._lark.text(self._syntax.comma)
        names = sorted(known.schemas, key=str.lower) if self._syntax.sorts else list(known.schemas)
        if known.more:
            key = self._lark.terminal(r'/"[^"\\\n]{0,64}"/' if quoted else r'/[^\s"=:{}\[\](),<>]{1,64}/')
            pair = self._lark.rule(f"{key} {self._lark.text(equals)} {self.value({}, 0)}")
            return f"({pair} ({comma} {pair})*)?"
        rest = first = ""
        for name in reversed(names):
            key = json.dumps(name, ensure_ascii=False) if quoted else name
            pair = self._lark.rule(f"{self._lark.text(key + equals)} {self.value(known.schemas[name], 0)}")
            required = name in known.required
            begins = f"{pair} {rest}".strip()
            if first and not required:
                begins += f" | {first}"
            elif not required:
                begins = f"({begins})?"
            first = self._lark.rule(begins)
            rest = self._lark.rule(f"{comma} {pair} {rest}" if required else f"({comma} {pair})? {rest}")
        return first

    def value(self, schema: Any, depth: int) -> str:
        """A value, as one item."""
        ref = schema.get("$ref") if isinstance(schema, Mapping) else None
        if isinstance(ref, str):
            name, new = self._lark.recursive(f"{self._root} {ref}")
            if new:
                self._lark.define(name, self._body(self._types.resolved(schema), depth + 1))
            return name
        return self._lark.rule(self._body(schema if isinstance(schema, Mapping) else {}, depth + 1))

    def _body(self, schema: Mapping[str, Any], depth: int) -> str:
        if isinstance(values := schema.get("enum"), list) and values:
            return " | ".join(self._lark.text(write(v, self._syntax)) for v in values)
        if "const" in schema:
            return self._lark.text(write(schema["const"], self._syntax))
        for keyword in ("anyOf", "oneOf"):
            if isinstance(options := schema.get(keyword), list) and options:
                return " | ".join(self.value(option, depth) for option in options)
        kinds = self._types.of(schema)
        if kinds is None or depth > MAX_DEPTH:
            return self._any()
        return " | ".join(self._one(kind, schema, depth) for kind in sorted(kinds)) or self._any()

    def _one(self, kind: str, schema: Mapping[str, Any], depth: int) -> str:
        lark, comma = self._lark, self._lark.text(self._syntax.comma)
        if kind == "string":
            return self._string()
        if kind in ("integer", "number"):
            bounds = {k: schema[k] for k in _BOUNDS if k in schema}
            return lark.rule(json_text({"type": kind, **bounds}))
        if kind == "boolean":
            return '"true" | "false" | "True" | "False"'
        if kind == "null":
            return '"null" | "None"'
        if kind == "array":
            item = self.value(schema.get("items", {}), depth)
            some = f"{item} ({comma} {item})*"
            return f'"[" {some if schema.get("minItems") else f"({some})?"} "]"'
        if kind == "object":
            inside = self.pairs(schema, self._syntax.colon, quoted=not self._syntax.quote)
            return f'"{{" {inside} "}}"'
        return self._any()

    def _string(self) -> str:
        if quote := self._syntax.quote:
            return f"{self._lark.text(quote)} {self._lark.until(quote)}"
        inside = r"\\[^uUxN]|\\u[0-9a-fA-F]{4}"
        return self._lark.terminal(rf"""/"([^"\\]|{inside})*"|'([^'\\]|{inside})*'/""")

    def _any(self) -> str:
        name, new = self._lark.recursive("any value")
        if new:
            kinds = ("string", "number", "boolean", "null", "array", "object")
            self._lark.define(name, " | ".join(self._one(kind, {"items": {}}, 0) for kind in kinds))
        return name


_WORDS = {"True": "true", "False": "false", "None": "null"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\n": "", **{c: c for c in "\\'\"/"}}
_HEX = {"x": 2, "u": 4, "U": 8}
_MAX_KEY = 256


class LiteralArguments(ArgumentStyle):
    """Arguments in one of these syntaxes."""

    begin = ""

    def __init__(self, syntax: Syntax) -> None:
        self._syntax = syntax

    def items(self, lark: Lark, schema: Mapping[str, Any]) -> str:
        return LiteralRules(lark, self._syntax, schema).pairs(schema, self._syntax.equals, quoted=False)

    def read(self, reader: FrameReader, _tool: Tool) -> Steps[bool]:
        scan, n = reader.scan, 0
        literals = _Literals(scan, self._syntax)
        while not (yield from reader.ends()):
            yield from scan.blanks()
            if n:
                yield from scan.match((",",))
                yield from scan.blanks()
            key = yield from scan.before(self._syntax.equals, _MAX_KEY)
            if key is None:
                return False
            scan.arguments(f"{', ' if n else '{'}{json.dumps(key.strip(), ensure_ascii=False)}: ", scan.at)
            n += 1
            if not (yield from literals.value(0)):
                return False
        scan.arguments("}" if n else "{}", 0)
        return True

    def write(self, arguments: Mapping[str, Any], special: Collection[str] = ()) -> str:
        syntax = replace(self._syntax, quote=marked(self._syntax.quote, special))
        return pairs_text(arguments, syntax, syntax.equals, quoted=False)


class _Literals:
    """Reads values and passes them on as JSON."""

    def __init__(self, scan: Scanner, syntax: Syntax) -> None:
        self._scan, self._syntax = scan, syntax
        self._quote = scan.marker(syntax.quote)

    def value(self, depth: int) -> Steps[bool]:
        """Returns whether the value is complete."""
        scan = self._scan
        yield from scan.blanks()
        if depth > MAX_DEPTH * 2:
            return False
        opening = yield from scan.match([q for q in (self._quote, '"', "'", "[", "(", "{") if q])
        if opening is None:
            return (yield from self._word())
        if opening in ("[", "("):
            return (yield from self._several("[]", "]" if opening == "[" else ")", depth))
        if opening == "{":
            return (yield from self._several("{}", "}", depth))
        return (yield from self._string(opening))

    def _string(self, quote: str) -> Steps[bool]:
        scan = self._scan
        scan.arguments('"', scan.at)
        if quote == self._quote:
            done = yield from scan.string((quote,))
        else:
            done = yield from self._escaped(quote)
        scan.arguments('"' if done else "", 0)
        return done

    def _escaped(self, quote: str) -> Steps[bool]:
        """The inside of a Python string."""
        scan = self._scan
        while True:
            text = scan.text
            at = min((i for i in (text.find(quote), text.find("\\")) if i >= 0), default=len(text))
            if at:
                scan.arguments(_inside(text[:at]), at)
            if at == len(text):
                if scan.last:
                    return False
                yield
                continue
            if text[at] == quote:
                scan.take(1)
                return True
            while not (n := _escape_length(scan.text)) and not scan.last:
                yield
            escape = scan.text[: n or len(scan.text)]
            scan.arguments(_inside(_unescaped(escape)), len(escape))

    def _several(self, brackets: str, end: str, depth: int) -> Steps[bool]:
        """The items of a list or, where the brackets are those of an object, its pairs."""
        scan, n = self._scan, 0
        scan.arguments(brackets[0], scan.at)
        while not (yield from self._ends(end)):
            scan.arguments(", " if n else "", scan.at)
            if brackets == "{}" and not (yield from self._key()):
                return False
            if not (yield from self.value(depth + 1)):
                return False
            n += 1
        scan.arguments(brackets[1], scan.at)
        return True

    def _key(self) -> Steps[bool]:
        scan = self._scan
        opening = yield from scan.match([q for q in (self._quote, '"', "'") if q])
        if opening is None:
            key = yield from scan.before(":", _MAX_KEY)
            if key is not None:
                scan.arguments(json.dumps(key.strip(), ensure_ascii=False) + ": ", scan.at)
            return key is not None
        if not (yield from self._string(opening)) or (yield from scan.match((":",))) is None:
            return False
        scan.arguments(": ", scan.at)
        return True

    def _ends(self, end: str) -> Steps[bool]:
        """Whether a list ends here; a comma before the next item is passed. At the end of the answer too."""
        scan = self._scan
        yield from scan.blanks()
        mark = yield from scan.match((end, ","))
        if mark == ",":
            yield from scan.blanks()
            mark = yield from scan.match((end,))
        return mark == end

    def _word(self) -> Steps[bool]:
        """A number or a word, up to what cannot be part of it."""
        scan, end = self._scan, self._scan.at
        while True:
            text = scan.text
            while end < len(text) and text[end] not in ",]})" + BLANKS:
                end += 1
            if end < len(text) or scan.last:
                break
            yield
        word = scan.text[scan.at : end].replace(SHOWN, "")
        if end == len(scan.text) or not word:
            return False
        scan.arguments(converted(word, None), end)
        return True


def _inside(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _escape_length(text: str) -> int:
    """Characters of the escape with which the text begins, 0 if it is not complete."""
    if len(text) < 2:
        return 0
    n = 2 + _HEX.get(text[1], 0)
    if text.startswith("\\ud") and len(text) >= n:  # perhaps the first half of a pair
        n = 12 if text[6:8] in ("\\u", "\\", "") else n
    return n if len(text) >= n else 0


def _unescaped(escape: str) -> str:
    """The characters of one escape (two for a pair of surrogates); what is none stays as it is."""
    try:
        if escape[1:2] == "u":
            return str(json.loads(f'"{escape}"')).encode("utf-8", "replace").decode()
        if escape[1:2] in _HEX:
            return chr(int(escape[2:], 16)).encode("utf-8", "replace").decode()
    except (ValueError, OverflowError):
        return escape
    return _ESCAPES.get(escape[1:2], escape)


# Calls as Python writes them: of Llama 4 and small Llama 3.2. LFM2 and Olmo 3 put them between tokens:
# [f(a=1, b="x"), g()]


PYTHON_ARGUMENTS = LiteralArguments(PYTHON)


class Lfm2(FramedFormat):
    """LFM2: the list is between two control tokens."""

    name = "lfm2"
    markers = ("<|tool_list_start|>",)
    tokens = ("<|tool_call_start|>", "<|tool_call_end|>")
    frame = Frame("<|tool_call_start|>[", "", "(", ")", "]<|tool_call_end|>", ", ")
    style = PYTHON_ARGUMENTS

    def matches(self, template: str) -> bool:
        markers = ("<|tool_list_start|>", "<|tool_call_start|>", "List of tools: [")
        return any(marker in template for marker in markers)


_STRING = frozenset(("string",))


class TaggedArguments(ArgumentStyle):
    """Arguments one by one between tags: strings are raw text, other values are JSON.

        before key after value end

    typed: what follows `after` for strings and for other values, where the family marks these. words: whether
    values may be Python's True, False and None.
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
