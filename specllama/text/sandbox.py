"""The Jinja environment of chat templates: sandboxed, and without single operations that fill memory.

chat_template.py interrupts loops; the operations refused here run in C, where nothing can interrupt them.
"""

from __future__ import annotations

import datetime
import json
import re
import string
from collections.abc import Callable, ItemsView, KeysView, Mapping, ValuesView
from types import GeneratorType
from typing import Any, TypeVar

import jinja2
from jinja2 import compiler, ext, nodes, parser, runtime, sandbox
from jinja2.exceptions import SecurityError

_MAX_RANGE, _MAX_REPEAT, _MAX_WIDTH = 100_000, 1_000_000, 10_000
_MAX_SIZE = 64 * 1024 * 1024  # characters of one value
_WIDE = re.compile(r"\*|\d{5}")
_PADDING = frozenset({"ljust", "rjust", "center", "zfill", "expandtabs", "to_bytes"})
_PADDING_FILTERS = ("center", "indent", "wordwrap", "truncate", "batch", "slice", "round", "filesizeformat")
_WRITING_FILTERS = (
    "string", "pprint", "escape", "e", "forceescape", "urlize", "striptags", "title", "upper", "lower",
)  # fmt: skip
_COMPARING_FILTERS = ("sort", "unique", "min", "max", "groupby")
_COMPARING_TESTS = (
    "==", "eq", "equalto", "!=", "ne", "<", "lt", "lessthan", "<=", "le", ">", "gt", "greaterthan", ">=",
    "ge", "in",
)  # fmt: skip
_CONTAINERS = (list, tuple, Mapping, KeysView, ItemsView, ValuesView)
Value = TypeVar("Value")


class _Code(compiler.CodeGenerator):
    """Compiles comparisons and concatenations to calls of the environment, which checks sizes first."""

    def visit_Compare(self, node: nodes.Compare, frame: compiler.Frame) -> None:
        self.write("(environment.bounded(")
        self.visit(node.expr, frame)
        self.write(")")
        for op in node.ops:
            if len(node.ops) > 1:
                self.write(f" {compiler.operators[op.op]} environment.bounded(")
                self.visit(op.expr, frame)
                self.write(")")
            else:
                self.visit(op, frame)
        self.write(")")

    def visit_Concat(self, node: nodes.Concat, frame: compiler.Frame) -> None:
        self.write("environment.joined((")
        for child in node.nodes:
            self.visit(child, frame)
            self.write(", ")
        self.write("))")


class Sandbox(sandbox.ImmutableSandboxedEnvironment):
    """A sandbox with limits on sizes; exceeding one raises jinja2's SecurityError."""

    intercepted_binops = frozenset(["**", "*", "%", "+"])
    code_generator_class = _Code

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
            finalize=_bounded,
        )
        self.globals.pop("lipsum")
        self.globals.update(raise_exception=_raise, strftime_now=_now, range=_range)
        self.filters |= {"tojson": _tojson, "from_json": json.loads}
        for name in _PADDING_FILTERS:
            self.filters[name] = _guarded(self.filters[name], _check_padding)
        for name in (*_WRITING_FILTERS, *_COMPARING_FILTERS):
            self.filters[name] = _guarded(self.filters[name], _check_value)
        checks: dict[str, Callable[..., None]] = {"format": _check_percent, "replace": _check_replace}
        checks |= {"join": _check_join, "sum": _check_sum}
        for name, check in checks.items():
            self.filters[name] = _guarded(self.filters[name], check)
        tests: dict[str, Any] = self.tests
        for name in _COMPARING_TESTS:
            tests[name] = _guarded(tests[name], _check_value)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Allow `append` and `pop` on lists: a template reaches only its own and copies of the messages."""
        if isinstance(obj, list) and attr in ("append", "pop"):
            return True
        return attr != "translate" and super().is_safe_attribute(obj, attr, value)

    def bounded(self, value: Value) -> Value:
        """The value, if not too large: lists that share parts compare in exponential time."""
        return _bounded(value)

    def joined(self, values: tuple[Any, ...]) -> str:
        """The concatenated texts of the values."""
        _bounded(values)
        return "".join(map(str, values))

    def call_binop(self, context: runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise SecurityError("templates may not compute powers")
        if operator == "*":
            _check_product(left, right)
        if operator == "+":
            _bounded((left, right))
        if operator == "%" and isinstance(left, str):
            _check_percent(left, right)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            _check_format(str(value.__self__), args, kwargs)
            return wrapped(*args, **kwargs)

        return checked

    def call(self, context: runtime.Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(owner, (str, bytes, int)):
            if name in _PADDING:
                _check_widths(*args, *kwargs.values())
            if name == "join" and args:
                args = (_listed(args[0]), *args[1:])
                _check_join(args[0], owner)
            if name == "replace" and len(args) > 1:
                _check_replace(owner, *args)
        elif isinstance(owner, list):
            _bounded((owner if name == "append" else (), args))
        return super().call(context, obj, *args, **kwargs)


class _Generation(ext.Extension):
    """`{% generation %}…{% endgeneration %}`, which some templates contain for training."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own annotation

    def parse(self, parser: parser.Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _bounded(value: Value) -> Value:
    """The value, if its text is not too long; shared parts count each time they would be written."""
    if isinstance(value, _CONTAINERS) and _size(value, {}) > _MAX_SIZE:
        raise SecurityError("the template makes too large a value")
    return value


def _size(value: Any, known: dict[int, int]) -> int:
    if isinstance(value, (str, bytes)):
        return len(value) + 2
    if not isinstance(value, _CONTAINERS):
        return 8
    if id(value) not in known:
        items = [*value, *value.values()] if isinstance(value, Mapping) else value
        known[id(value)] = 2 + sum(_size(item, known) for item in items)
    return known[id(value)]


def _check_product(left: Any, right: Any) -> None:
    for a, b in ((left, right), (right, left)):
        if isinstance(a, (str, bytes, list, tuple)) and isinstance(b, int) and len(a) * b > _MAX_REPEAT:
            raise SecurityError("the template repeats a text too often")
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > 4096:
        raise SecurityError("the template computes too large a number")


def _check_percent(text: Any, *values: Any) -> None:
    if _WIDE.search(str(text)):
        raise SecurityError("the template formats too wide a field")
    _check_fields(str(text).count("%"), values)


def _check_format(text: str, *values: Any) -> None:
    n = 0
    for n, (_, _, spec, _) in enumerate(string.Formatter().parse(text), 1):  # noqa: B007
        if spec and ("{" in spec or _WIDE.search(spec)):
            raise SecurityError("the template formats too wide a field")
    _check_fields(n, values)


def _check_fields(n: int, values: tuple[Any, ...]) -> None:
    if n * _size(values, {}) > _MAX_SIZE:
        raise SecurityError("the template makes too large a value")


def _check_widths(*args: Any) -> None:
    if any(isinstance(a, int) and abs(a) > _MAX_WIDTH for a in args):
        raise SecurityError("the template formats too wide a field")


def _check_padding(_: Any, *args: Any) -> None:
    _check_widths(*args)
    if any(isinstance(a, str) and len(a) > _MAX_WIDTH for a in args):
        raise SecurityError("the template formats too wide a field")


def _check_value(value: Any, *_: Any) -> None:
    _bounded(value)


def _check_sum(_: Any, *args: Any) -> None:
    if any(isinstance(a, (list, tuple)) for a in args):
        raise SecurityError("the template adds up lists")


def _check_replace(text: Any, old: Any, new: Any, *_: Any) -> None:
    text, old, new = (x if isinstance(x, (str, bytes)) else str(x) for x in (text, old, new))
    if len(text) + text.count(old) * len(new) > _MAX_SIZE:
        raise SecurityError("the template makes too large a value")


def _check_join(values: Any, separator: Any = "", *_: Any) -> None:
    if isinstance(values, (str, bytes, list, tuple, Mapping)):
        _bounded(values)
        if len(str(separator)) * len(values) > _MAX_SIZE:
            raise SecurityError("the template makes too large a value")


def _guarded(function: Callable[..., Any], check: Callable[..., Any]) -> Callable[..., Any]:
    """The filter, preceded by a check of its arguments. (Jinja passes its context to some filters first.)"""
    pass_arg = getattr(function, "jinja_pass_arg", None)
    n_context = int(pass_arg is not None)

    def guarded(*args: Any, **kwargs: Any) -> Any:
        args = (*args[:n_context], *map(_listed, args[n_context:]))
        check(*args[n_context:], *kwargs.values())
        return function(*args, **kwargs)

    if pass_arg is not None:
        guarded.jinja_pass_arg = pass_arg  # type: ignore[attr-defined]
    return guarded


def _tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False, **kwargs: Any) -> str:
    """JSON as Hugging Face's templates expect it; generators are written as lists."""
    allowed = {k: v for k, v in kwargs.items() if k in ("separators", "sort_keys")}
    width = min(indent, 16) if indent else indent
    return json.dumps(_bounded(_listed(value)), indent=width, ensure_ascii=ensure_ascii, **allowed)


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, GeneratorType) else value


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    if _WIDE.search(form) or len(form) > _MAX_WIDTH:
        raise SecurityError("the template formats too wide a field")
    return datetime.datetime.now().strftime(form)


def _range(*args: int) -> range:
    found = range(*args)
    if len(found) > _MAX_RANGE:
        raise SecurityError("range too long")
    return found
