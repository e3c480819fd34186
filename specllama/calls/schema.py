"""Schemas as far as grammars can use them: of tools' arguments, and of an answer's text.

A schema of arguments that cannot be used, or that makes the grammar too large, is replaced by that of any
object, unless its tool is strict. Knows no call format.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from specllama.calls.tools import Schema, Tool, Tools
from specllama.errors import Note, UsageError, warning
from specllama.text import json_schema

if TYPE_CHECKING:
    from llguidance import LLParserLimits, LLTokenizer


class Types:
    """Which types the values of a schema have. root: the schema in which references are looked up."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def resolved(self, schema: Any) -> Mapping[str, Any]:
        """A schema with its reference followed; {} for one that cannot be followed."""
        for _ in range(8):
            if not isinstance(schema, Mapping):
                return {}
            if not isinstance(schema.get("$ref"), str):
                return schema
            schema = json_schema.target(self._root, schema["$ref"])
        return {}

    def of(self, schema: Any, depth: int = 0) -> frozenset[str] | None:
        """Names of types; "number" includes integers. None: not known."""
        schema = self.resolved(schema)
        if depth > json_schema.MAX_DEPTH:
            return None
        kind = schema.get("type")
        if isinstance(kind, str):
            return frozenset((kind,))
        if isinstance(kind, list):
            return frozenset(map(str, kind))
        if isinstance(values := schema.get("enum"), list) and values:
            return frozenset(map(type_name, values))
        if "const" in schema:
            return frozenset((type_name(schema["const"]),))
        for keyword in ("anyOf", "oneOf"):
            if isinstance(options := schema.get(keyword), list) and options:
                types = [self.of(option, depth + 1) for option in options]
                return None if None in types else frozenset[str]().union(*[f for f in types if f])
        return frozenset(("object",)) if isinstance(schema.get("properties"), Mapping) else None


def type_name(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", str: "string", int: "integer", float: "number", list: "array", dict: "object"}
    return names.get(type(value), "string")


def of_type(types: frozenset[str] | None, *names: str) -> bool:
    """Whether values may have one of these types."""
    return types is None or bool(types & set(names))


@dataclass(frozen=True, slots=True)
class Parameters:
    """A tool's arguments one by one. required: names. more: whether there may be others too."""

    schemas: Mapping[str, Any]
    required: frozenset[str]
    more: bool


def parameters(schema: Mapping[str, Any]) -> Parameters:
    """The parameters of an object's schema; any for one that is not made of properties."""
    schema = Types(schema).resolved(schema)
    properties, required = schema.get("properties"), schema.get("required")
    known: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
    names = frozenset(map(str, required)) if isinstance(required, list) else frozenset[str]()
    more = not known and schema.get("additionalProperties") is not False
    return Parameters({**known, **{name: {} for name in sorted(names - set(known))}}, names, more)


def embedded(schema: Any, root: Mapping[str, Any]) -> Schema:
    """A part of a schema as one of its own, with the definitions it may refer to."""
    node = dict(schema) if isinstance(schema, Mapping) else {}
    if "$ref" in json.dumps(node):
        node |= {k: root[k] for k in ("$defs", "definitions") if k in root}
    return node


# Keywords that say nothing about what is allowed.
_NO_CONSTRAINT = frozenset(
    (
        "description", "title", "default", "examples", "$schema", "$comment", "deprecated", "readOnly",
        "writeOnly",
    )
)  # fmt: skip
_MAX_PLAIN = 2**53


def styled(schema: Mapping[str, Any], lenient: bool = True) -> Schema:
    """A schema with JSON_STYLE, where it has no style itself. lenient: keywords that are not supported are
    left out; otherwise the grammar does not compile.
    """
    own, default = schema.get(json_schema.STYLE), json_schema.JSON_STYLE | {"lenient": lenient}
    return {**schema, json_schema.STYLE: default | (own if isinstance(own, dict) else {})}


def json_text(schema: Mapping[str, Any], lenient: bool = True) -> str:
    """A schema as an item of a grammar; see `styled`."""
    return "%json " + json.dumps(styled(schema, lenient))


def constraints(schema: Mapping[str, Any]) -> Schema:
    """A copy of a schema without what constrains nothing, such as descriptions."""
    result: Schema = json_schema.rewritten(
        schema, lambda one: {k: v for k, v in one.items() if k not in _NO_CONSTRAINT}, more=True
    )
    return result


def reduced(schema: Mapping[str, Any]) -> tuple[Schema, list[str]]:
    """(A copy of a schema without patterns and formats that llguidance does not support, what they are)."""
    problems: dict[str, None] = {}

    def usable(keyword: str, value: Any) -> bool:
        if not isinstance(value, str) or not checked(json.dumps({"type": "string", keyword: value}))[0]:
            return True
        problems[f"the {keyword} {value[:60]!r} is not supported"] = None
        return False

    def supported(one: Mapping[str, Any]) -> Schema:
        kept = {k: v for k, v in one.items() if k not in ("format", "pattern") or usable(k, v)}
        if isinstance(patterns := kept.get("patternProperties"), Mapping):
            known = {name: part for name, part in patterns.items() if usable("pattern", name)}
            if len(known) < len(patterns):  # what only matched these is allowed now
                kept |= {"patternProperties": known, "additionalProperties": True}
        return kept

    return json_schema.rewritten(schema, supported, more=True), list(problems)


def is_plain(schema: Any) -> bool:
    """Whether a schema has nothing but what llguidance is known to support; it takes a millisecond to ask."""
    return isinstance(schema, Mapping) and all(k in _PLAIN and _PLAIN[k](v) for k, v in schema.items())


def _are_types(value: Any) -> bool:
    kinds = value if isinstance(value, list) else [value]
    return bool(kinds) and all(isinstance(kind, str) and kind in json_schema.TYPES for kind in kinds)


def _is_bound(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _MAX_PLAIN


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(json_schema.is_text, value))


_PLAIN: Mapping[str, Callable[[Any], bool]] = {
    "type": _are_types,
    "minimum": _is_bound,
    "maximum": _is_bound,
    "properties": lambda value: isinstance(value, Mapping) and all(map(is_plain, value.values())),
    "items": is_plain,
    "additionalProperties": lambda value: isinstance(value, bool),
    "enum": lambda value: bool(value) and _are_texts(value),
    "required": _are_texts,
}


@functools.lru_cache(maxsize=512)
def checked(text: str) -> tuple[str, bool]:
    """(What llguidance does not support in a schema, "" for nothing; whether the rest can be used)."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(max_grammar_size=10_000)
    grammar = LLMatcher.grammar_from_lark("start: " + json_text(json.loads(text)))
    try:
        failed, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=limits)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of Rust: no Exception, and without another name
            raise
        return "llguidance fails on it", False
    problem = " ".join("; ".join(messages).partition("\n")[0].split())
    if not failed and (endless := _fails_at_start(grammar, limits)):
        return endless, False
    return problem.rpartition("failed to compile JSON schema: ")[2][:300], not failed


def _fails_at_start(grammar: str, limits: LLParserLimits) -> str:
    """Why a grammar that compiles fails with its first forced tokens, or after them, "" if it does not. A
    required property with the schema that it is in is forced without end; a $ref to itself allows nothing.
    """
    from llguidance import LLMatcher

    matcher = LLMatcher(_byte_tokenizer(), grammar, log_level=0, limits=limits)
    matcher.consume_tokens(matcher.compute_ff_tokens())
    if not matcher.is_error() and not matcher.is_stopped() and not any(matcher.compute_bitmask()):
        return "" if matcher.is_accepting() else json_schema.NOTHING
    if not matcher.is_error():
        return ""
    error = json_schema.in_words(matcher.get_error())
    return "no value is short enough for it" if "Too many items" in matcher.get_error() else error


@functools.cache
def _byte_tokenizer() -> LLTokenizer:
    """With a token for each byte: what is forced does not depend on the model."""
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


MAX_BYTES = 64 * 1024  # of one schema
MAX_ALL_BYTES, MAX_ALL_PARTS = 40 * 1024, 2_500  # of the schemas of a request together
ANY_OBJECT: Schema = {"type": "object"}
NO_ARGUMENTS: Schema = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Arguments:
    """A tool and the schema that a grammar uses for its arguments. problem: why that is any object and not
    the tool's own schema, or what is left out of it; "" if nothing is.
    """

    tool: Tool
    schema: Mapping[str, Any]
    problem: str = ""


def arguments(tools: Tools) -> list[Arguments]:
    """The arguments of the tools that may be called. Raises UsageError for an unusable strict schema."""
    bounded, sizes = list[Arguments](), dict[str, int]()  # of schemas by their texts
    for tool in tools.allowed:
        if not tool.parameters:
            bounded.append(Arguments(tool, NO_ARGUMENTS))
            continue
        schema, text, problem = _bounded(tool)
        n_parts = json_schema.shape(schema)[1]
        n_bytes, n_all_parts = sum(map(len, sizes)) + len(text), sum(sizes.values()) + n_parts
        if problem:
            bounded.append(_without_schema(tool, problem))
        elif text not in sizes and (n_bytes > MAX_ALL_BYTES or n_all_parts > MAX_ALL_PARTS):
            bounded.append(_without_schema(tool, "the schemas of all tools together are too large"))
        else:
            sizes[text] = n_parts
            bounded.append(_usable(tool, schema, text))
    return bounded


def notes(tools: Tools) -> list[Note]:
    """Warnings about what of the tools' schemas is not enforced. Raises UsageError as `arguments` does."""
    return [
        warning(f"the arguments of the tool {one.tool.name} are not held to its whole schema: {one.problem}")
        for one in arguments(tools)
        if one.problem
    ]


def bodies(tools: Tools) -> list[tuple[Mapping[str, Any], list[str]]]:
    """(schema, names of its tools): tools with the same share rules. Raises UsageError as `arguments`."""
    by_text: dict[str, tuple[Mapping[str, Any], list[str]]] = {}
    for one in arguments(tools):
        by_text.setdefault(json.dumps(one.schema), (one.schema, []))[1].append(one.tool.name)
    return list(by_text.values())


def _bounded(tool: Tool) -> tuple[Schema, str, str]:
    """(A tool's schema; as text; "") or, where it is too large, nothing and why."""
    if problem := json_schema.excess(tool.parameters):
        return {}, "", f"it {problem}"
    schema = constraints(tool.parameters)
    if tool.strict and "properties" in schema:
        schema.setdefault("additionalProperties", False)
    text = json.dumps(schema)
    return ({}, "", f"it has more than {MAX_BYTES} bytes") if len(text) > MAX_BYTES else (schema, text, "")


def _usable(tool: Tool, schema: Schema, text: str) -> Arguments:
    problem, usable = ("", True) if is_plain(schema) else checked(text)
    if not usable and not tool.strict:
        smaller, problems = reduced(schema)
        rest, usable = checked(json.dumps(smaller))
        if usable:
            return Arguments(tool, smaller, "; ".join(filter(None, (*problems, rest))))
    if problem and (tool.strict or not usable):
        return _without_schema(tool, problem)
    return Arguments(tool, schema, problem)


def _without_schema(tool: Tool, problem: str) -> Arguments:
    if tool.strict:
        message = f"the schema of the tool {tool.name!r} cannot be used: {problem}"
        raise UsageError(message, details={"param": "tools"})
    return Arguments(tool, ANY_OBJECT, problem)


@functools.lru_cache(maxsize=64)
def answer_schema(text: str, strict: bool, is_open: bool) -> tuple[str, str]:
    """(The schema of an answer as JSON text for its grammar, what of it is not enforced, "" for nothing).
    strict: what cannot be enforced stays, and makes the grammar fail. is_open: objects may have properties
    that the schema does not name. What is no usable schema stays as it is.
    """
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return text, ""
    schema = json_schema.without_nulls(schema)
    if not isinstance(schema, dict) or json_schema.excess(schema):
        return text, ""
    used, problems = schema if is_open else closed(schema), list[str]()
    if not strict:
        used, problems = reduced(used)
        used = styled(used)
        if not is_plain(schema) and (problem := checked(json.dumps(used))[0]):
            problems.append(problem)
    return json.dumps(used), "; ".join(problems)


def answer_text(schema: str | Mapping[str, Any] | bool) -> str:
    """The schema of an answer without calls as an item of a grammar, within its limits. Raises UsageError."""
    return json_text(json_schema.parsed(schema), lenient=False)


_LISTED = ("anyOf", "oneOf", "allOf")  # schemas for the same value
_SAME_VALUE = frozenset((*_LISTED, "if", "then", "else", "not", "dependentSchemas"))
_SAYS_ITSELF = ("additionalProperties", "unevaluatedProperties")
_MERGED = frozenset(("allOf", "type", "properties", "required"))
_WORDS = _NO_CONSTRAINT | {"$defs", "definitions"}
_DEEPEST = 64  # levels that are closed


def closed(schema: Any) -> Any:
    """A copy of a schema in which objects with `properties`, and nothing about others, allow no others.

    JSON Schema leaves such objects open, and a model then invents properties. llama.cpp's grammars close
    them. What combines schemas is merged, or left open where closing a part would contradict another.
    """
    return _Closer(schema).closed(schema) if isinstance(schema, Mapping) else schema


def with_closed_schemas(tools: Tools) -> Tools:
    """Tools whose arguments are closed."""
    return replace(tools, tools=[replace(t, parameters=closed(t.parameters)) for t in tools.tools])


class _Closer:
    """Closes one schema. root: where references lead."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._names: dict[int, bool] = {}  # by id of a schema: see `_names_some`
        self._open = set(self._shared(root))  # pointers

    def closed(self, schema: Any, stays_open: bool = False, at: str = "#", depth: int = 0) -> Any:
        """A copy. stays_open: whether another schema names its properties. at: pointer to it, "" for none."""
        if not isinstance(schema, Mapping) or depth > _DEEPEST:
            return schema
        if not stays_open and (merged := self._merged(schema)) is not None:
            schema = merged
        stays_open = stays_open or at in self._open
        elsewhere = {
            keyword: stays_open or self._is_named_elsewhere(schema, keyword)
            for keyword in _LISTED
            if isinstance(schema.get(keyword), list)
        }

        def change(path: json_schema.Path, part: Any) -> Any:
            keyword, pointer = path[0], ""
            if keyword in _SAME_VALUE and keyword not in elsewhere:
                return part
            if at and keyword not in elsewhere:
                names = (str(name).replace("~", "~0").replace("/", "~1") for name in path)
                pointer = "/".join([at, *names])
            return self.closed(part, elsewhere.get(str(keyword), False), pointer, depth + 1)

        node = json_schema.with_parts(schema, change)
        says_itself = any(schema.get(keyword) is not None for keyword in _SAYS_ITSELF)
        if _names_own(schema) and not stays_open and not says_itself and not self._has_parts(schema):
            required, known = node.get("required"), node["properties"]
            names = filter(json_schema.is_text, required if isinstance(required, list) else ())
            missing: Schema = {name: {} for name in names if name not in known}  # required and not described
            node |= {"properties": {**known, **missing}, "additionalProperties": False}
        return node

    def _has_parts(self, schema: Mapping[str, Any]) -> bool:
        """Whether schemas for the same value, besides this one itself, name properties."""
        return any(map(self._names_some, self._parts(schema)))

    def _parts(self, schema: Mapping[str, Any]) -> list[Any]:
        """The schemas that apply to the same value, that of a reference included."""
        own = [part for path, part in json_schema.parts(schema) if path[0] in _SAME_VALUE]
        return [*own, json_schema.target(self._root, schema.get("$ref"))]

    def _is_named_elsewhere(self, schema: Mapping[str, Any], keyword: str) -> bool:
        """Whether properties of a schema's value are named outside of one of the schemas under a keyword."""
        several = keyword == "allOf" and sum(map(self._names_some, schema[keyword])) > 1
        rest = {name: value for name, value in schema.items() if name != keyword}
        return several or _names_own(schema) or self._has_parts(rest)

    def _names_some(self, schema: Any) -> bool:
        """Whether a schema, or one that it consists of, names properties of its value."""
        if not isinstance(schema, Mapping):
            return False
        if id(schema) not in self._names:
            self._names[id(schema)] = False  # while it is found out: references may lead back
            self._names[id(schema)] = _names_own(schema) or self._has_parts(schema)
        return self._names[id(schema)]

    def _shared(self, schema: Any, depth: int = 0) -> Iterator[str]:
        """Pointers to definitions that must stay open: other schemas name properties of the same values."""
        if depth > _DEEPEST or not isinstance(schema, (list, Mapping)):
            return
        if isinstance(schema, Mapping):
            if isinstance(ref := schema.get("$ref"), str) and _names_own(schema):
                yield ref
            for keyword in _LISTED:
                if not isinstance(inner := schema.get(keyword), list):
                    continue
                if self._is_named_elsewhere(schema, keyword) and self._merged(schema) is None:
                    yield from self._references(inner)
        for value in schema.values() if isinstance(schema, Mapping) else schema:
            yield from self._shared(value, depth + 1)

    def _references(self, schemas: Sequence[Any]) -> Iterator[str]:
        """The references of which schemas for a value consist."""
        todo, seen = list(schemas), set[int]()
        while todo:
            schema = todo.pop()
            if isinstance(schema, Mapping) and id(schema) not in seen:
                seen.add(id(schema))
                if isinstance(ref := schema.get("$ref"), str):
                    yield ref
                todo += self._parts(schema)

    def _merged(self, schema: Mapping[str, Any], depth: int = 0) -> Schema | None:
        """An object that is described by `allOf` alone as one schema; None for others."""
        named = json_schema.target(self._root, schema.get("$ref"))
        if isinstance(named, Mapping) and set(schema) <= {"$ref"} | _WORDS and depth:
            return self._merged(named, depth + 1) if depth < 8 else None
        if not set(schema) <= _MERGED | _WORDS or schema.get("type", "object") != "object":
            return None
        if "allOf" not in schema:
            return dict(schema) if _names_own(schema) and depth else None
        inner = schema["allOf"] if isinstance(schema["allOf"], list) and depth < 8 else []
        parts = [self._merged(one, depth + 1) if isinstance(one, Mapping) else None for one in inner]
        own = {name: value for name, value in schema.items() if name != "allOf"}
        return _joined([part for part in parts if part is not None], own) if all(parts) and parts else None


def _names_own(schema: Mapping[str, Any]) -> bool:
    return isinstance(schema.get("properties"), Mapping)


def _joined(parts: Sequence[Mapping[str, Any]], own: Mapping[str, Any]) -> Schema | None:
    """One object with the properties of all; None where they contradict each other."""
    properties: dict[str, Schema] = {}
    required: list[Any] = []
    for part in (*parts, own):
        for name, schema in (part.get("properties") or {}).items():
            if properties.setdefault(name, schema) != schema:
                return None
        required += [name for name in part.get("required") or () if name not in required]
    joined = {**own, "type": "object", "properties": properties}
    return joined | ({"required": required} if required else {})
