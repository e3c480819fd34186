"""Formats with the arguments one by one between tags: strings are raw text, other values are JSON.

<parameter=key>
value
</parameter>
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from specllama.calls.format import marked
from specllama.calls.frame import Frame, FrameReader, PlainFormat
from specllama.calls.history import text_of, with_arguments
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


# Qwen3-Coder, Qwen 3.5, Nemotron 3 and Step 3.5, and Seed, which has its own tag:
#
# <tool_call>
# <function=f>
# <parameter=key>
# value
# </parameter>
# </function>
# </tool_call>


def _function_frame(opening: str, closing: str) -> Frame:
    head, tail = f"{opening}\n<function=", f"</function>\n{closing}"
    return Frame("", head, ">\n", tail, between=NEWLINE, known_by=opening)


_QWEN, _SEED = ("<tool_call>", "</tool_call>"), ("<seed:tool_call>", "</seed:tool_call>")
QWEN_XML = PlainFormat(
    "qwen-xml",
    _function_frame(*_QWEN),
    (_QWEN[0], "<function=", "<parameter="),
    _QWEN,
    TaggedArguments("<parameter=", ">\n", "\n</parameter>\n", words=True),
)
SEED = PlainFormat(  # ByteDance's Seed-OSS: values are on the line of their tags
    "seed",
    _function_frame(*_SEED),
    (_SEED[0], "<function=", "<parameter="),
    _SEED,
    TaggedArguments("<parameter=", ">", "</parameter>\n", words=True),
    messages=lambda some: with_arguments(some, text_of),  # the template writes other values as Python does
)


# GLM 4.5 and later, Laguna, Ling and Spark, which differ in where lines end, and Hy3:
#
# <tool_call>f
# <arg_key>key</arg_key>
# <arg_value>value</arg_value>
# </tool_call>


_GLM = _OPEN, _CLOSE, _KEY, _KEY_END, _VALUE, _VALUE_END = (
    *("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
GLM = PlainFormat(
    "glm",
    Frame("", _OPEN, 2 * NEWLINE, _CLOSE, between=NEWLINE, known_by=_OPEN),  # mid: Ling's without any
    (_OPEN, _KEY, _VALUE),
    _GLM,
    TaggedArguments(_KEY, f"{_KEY_END}{NEWLINE}{_VALUE}", f"{_VALUE_END}{NEWLINE}"),
)
_NAMES = ("tool_calls", "tool_call", "arg_key", "arg_value", "think")  # of Hy3's tags in pairs


def _hy3(name: str) -> str:
    return f"<{name}:opensource>"


HY3 = PlainFormat(  # Tencent's: all tags are control tokens with a suffix, and one more is around the calls
    "hy3",
    Frame(
        *(
            f"{_hy3('tool_calls')}\n",
            _hy3("tool_call"),
            f"{_hy3('tool_sep')}\n",
            f"{_hy3('/tool_call')}\n",
        ),
        end=_hy3("/tool_calls"),
    ),
    ("HYTK = ':opensource'", "<tool_sep{}>"),
    tuple(map(_hy3, (*_NAMES, *(f"/{name}" for name in _NAMES), "tool_sep"))),
    TaggedArguments(_hy3("arg_key"), f"{_hy3('/arg_key')}\n{_hy3('arg_value')}", f"{_hy3('/arg_value')}\n"),
    thinks=(_hy3("think"), _hy3("/think")),
)


# MiniMax M2, and DeepSeek's V3.2 and V4, whose tags have bars that are not ASCII's:
#
# <minimax:tool_call>
# <invoke name="f">
# <parameter name="key">value</parameter>
# </invoke>
# </minimax:tool_call>


def _invoke_frame(prefix: str, opening: str, closing: str, mid: str = '">\n') -> Frame:
    return Frame(f"{opening}\n", f'<{prefix}invoke name="', mid, f"</{prefix}invoke>\n", closing)


_MINIMAX = ("<minimax:tool_call>", "</minimax:tool_call>")
MINIMAX_M2 = PlainFormat(
    "minimax-m2",
    _invoke_frame("", *_MINIMAX),
    (_MINIMAX[0], '<invoke name="'),
    _MINIMAX,
    TaggedArguments('<parameter name="', '">', "</parameter>\n"),
)


_DSML = "｜DSML｜"
_DSML_ARGUMENTS = TaggedArguments(
    f'<{_DSML}parameter name="', '" string="', f"</{_DSML}parameter>\n", typed=('true">', 'false">')
)
DEEPSEEK_V32 = PlainFormat(
    "deepseek-v3.2",
    _invoke_frame(_DSML, f"<{_DSML}function_calls>", f"</{_DSML}function_calls>"),
    (_DSML, "function_calls>"),
    (_DSML,),
    _DSML_ARGUMENTS,
)
DEEPSEEK_V4 = PlainFormat(  # with another outer tag
    "deepseek-v4",
    _invoke_frame(_DSML, f"<{_DSML}tool_calls>", f"</{_DSML}tool_calls>", f'">\n{NEWLINE}'),
    (_DSML, "tool_calls>"),
    (_DSML,),
    _DSML_ARGUMENTS,
)
