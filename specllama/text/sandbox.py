"""The Jinja environment of chat templates: sandboxed, with the checks of template_limits.py.

chat_template.py interrupts loops.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from types import GeneratorType
from typing import Any, TypeVar

import jinja2
from jinja2 import compiler, ext, nodes, parser, runtime, sandbox
from jinja2.exceptions import SecurityError

from specllama.text.template_limits import (
    MAX_SHORT,
    MAX_SIZE,
    MAX_SLOW,
    MAX_WIDTH,
    WIDE,
    bounded,
    check_digits,
    check_format,
    check_indent,
    check_join,
    check_lines,
    check_padding,
    check_percent,
    check_product,
    check_replace,
    check_slow,
    check_strip,
    check_sum,
    check_widths,
    check_wrap,
)

_PADDING = frozenset({"ljust", "rjust", "center", "zfill", "expandtabs", "to_bytes"})
_STRIPPING = frozenset({"strip", "lstrip", "rstrip"})
_PADDING_FILTERS = ("center", "truncate", "batch", "slice", "round", "filesizeformat")
_SLOW_FILTERS = ("pprint", "title", "urlize", "striptags", "urlencode", "wordcount", "xmlattr")
_LAZY_FILTERS = frozenset(
    {
        "length", "count", "first", "last", "list", "reverse", "map", "select", "reject", "selectattr",
        "rejectattr", "items", "default", "d", "attr", "random", "safe",
    }
)  # fmt: skip
"""Filters that do not look into the items of their first argument; it is not measured."""
_LAZY_TESTS = frozenset(
    {
        "defined", "undefined", "none", "boolean", "true", "false", "integer", "float", "number", "string",
        "mapping", "iterable", "sequence", "sameas", "callable", "escaped", "lower", "upper", "odd", "even",
    }
)  # fmt: skip
_BUILT_IN = (str, bytes, int, float, list, tuple, dict)
_MAX_RANGE = 100_000
Value = TypeVar("Value")


class _Code(compiler.CodeGenerator):
    """Compiles comparisons, concatenations and keys to calls of the environment, which checks sizes first."""

    def visit_Dict(self, node: nodes.Dict, frame: compiler.Frame) -> None:
        self.write("{")
        for item in node.items:
            self.write("environment.bounded(")
            self.visit(item.key, frame)
            self.write("): ")
            self.visit(item.value, frame)
            self.write(", ")
        self.write("}")

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

    intercepted_binops = frozenset(["**", "*", "%", "+", "-", "/", "//"])
    code_generator_class = _Code

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
            finalize=bounded,
        )
        self.globals.pop("lipsum")
        self.globals.update(raise_exception=_raise, strftime_now=_now, range=_range, dict=_dict)
        self.filters |= {"tojson": _tojson, "from_json": _from_json}
        checks: dict[str, Callable[..., None]] = dict.fromkeys(_PADDING_FILTERS, check_padding)
        checks |= dict.fromkeys(_SLOW_FILTERS, check_slow)
        checks |= {
            "format": check_percent,
            "replace": check_replace,
            "join": check_join,
            "sum": check_sum,
        }
        checks |= {"int": check_digits, "float": check_digits, "indent": check_indent}
        checks |= {"wordwrap": check_wrap, "trim": check_strip}
        for name, function in self.filters.items():
            self.filters[name] = _guarded(function, checks.get(name), name in _LAZY_FILTERS)
        tests: dict[str, Any] = self.tests
        for name, function in tests.items():
            if name not in _LAZY_TESTS:
                tests[name] = _guarded(function, None)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Allow `append` and `pop` on lists: a template reaches only its own and copies of the messages."""
        if isinstance(obj, list) and attr in ("append", "pop"):
            return True
        return attr != "translate" and super().is_safe_attribute(obj, attr, value)

    def bounded(self, value: Value) -> Value:
        """The value, if not too large: lists that share parts compare in exponential time."""
        return bounded(value)

    def joined(self, values: tuple[Any, ...]) -> str:
        """The concatenated texts of the values."""
        bounded(values)
        return "".join(map(str, values))

    def call_binop(self, context: runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise SecurityError("templates may not compute powers")
        if isinstance(left, int) and isinstance(right, int):
            bounded(left)
            bounded(right)
        if operator == "*":
            check_product(left, right)
        if operator == "+":
            bounded((left, right))
        if operator == "%" and isinstance(left, str):
            check_percent(left, right)
        return super().call_binop(context, operator, left, right)

    def getitem(self, obj: Any, argument: Any) -> Any:
        return super().getitem(obj, bounded(argument))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            check_format(str(value.__self__), args, kwargs)
            return wrapped(*args, **kwargs)

        return checked

    def call(self, context: runtime.Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        for arg in (*args, *kwargs.values()):
            if isinstance(owner, _BUILT_IN) or isinstance(arg, (tuple, int)):
                bounded(arg)
        if isinstance(owner, (str, bytes, int)):
            bounded(owner)
            if name in _PADDING:
                check_widths(*args, *kwargs.values())
            if name == "expandtabs" and isinstance(owner, (str, bytes)):
                check_lines(len(owner), *args, *kwargs.values())
            if name in _STRIPPING:
                check_strip(owner, *args)
            if name == "from_bytes":
                check_digits(*args)
            if name == "join" and args:
                args = (_listed(args[0]), *args[1:])
                check_join(args[0], owner)
            if name == "replace" and len(args) > 1:
                check_replace(owner, *args)
        elif isinstance(owner, (list, tuple)) and name in ("count", "index"):
            bounded(owner)
        return super().call(context, obj, *args, **kwargs)


class _Generation(ext.Extension):
    """`{% generation %}…{% endgeneration %}`, which some templates contain for training."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own annotation

    def parse(self, parser: parser.Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _guarded(
    function: Callable[..., Any], check: Callable[..., Any] | None, lazy: bool = False
) -> Callable[..., Any]:
    """The filter, preceded by a check of its arguments, except the first one of a lazy filter. (Jinja passes
    its context to some filters first.)
    """
    pass_arg = getattr(function, "jinja_pass_arg", None)
    n_context = int(pass_arg is not None)

    def guarded(*args: Any, **kwargs: Any) -> Any:
        if not lazy:
            args = (*args[:n_context], *map(_listed, args[n_context:]))
        for arg in (*args[n_context + lazy :], *kwargs.values()):
            bounded(arg)
        if check is not None:
            check(*args[n_context:], *kwargs.values())
        return function(*args, **kwargs)

    if pass_arg is not None:
        guarded.jinja_pass_arg = pass_arg  # type: ignore[attr-defined]
    return guarded


def _tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False, **kwargs: Any) -> str:
    """JSON as Hugging Face's templates expect it; generators are written as lists."""
    allowed = {k: v for k, v in kwargs.items() if k in ("separators", "sort_keys")}
    check_lines(MAX_SIZE // MAX_SHORT, *(kwargs.get("separators") or ()))
    width = min(indent, 16) if indent else indent
    return json.dumps(bounded(_listed(value)), indent=width, ensure_ascii=ensure_ascii, **allowed)


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, GeneratorType) else value


def _from_json(text: Any) -> Any:
    if len(text) > MAX_SLOW:
        raise SecurityError("the template reads too much JSON")
    return json.loads(text)


def _raise(message: Any = "") -> None:
    raise jinja2.TemplateError(str(bounded(message)))


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*map(bounded, map(_listed, args)), **kwargs)


def _now(form: str) -> str:
    if WIDE.search(form) or len(form) > MAX_WIDTH:
        raise SecurityError("the template formats too wide a field")
    return datetime.datetime.now().strftime(form)


def _range(*args: int) -> range:
    found = range(*args)
    if len(found) > _MAX_RANGE:
        raise SecurityError("range too long")
    return found
