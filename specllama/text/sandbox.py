"""The Jinja environment of chat templates: sandboxed, with the functions that templates expect.

It keeps a template from reaching Python's objects. It does not bound its time and memory: no list of
dangerous operations is complete. Templates run in a process of their own, with limits (template_process.py).
"""

from __future__ import annotations

import datetime
import json
from types import GeneratorType
from typing import Any

import jinja2
from jinja2 import ext, nodes, parser, runtime, sandbox
from jinja2.exceptions import SecurityError

_MAX_RANGE = 100_000


class Sandbox(sandbox.ImmutableSandboxedEnvironment):
    """A sandbox that raises jinja2's SecurityError for what templates may not do. Compiling computes nothing:
    constants belong to the rendering, and its limits.
    """

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
            optimized=False,
            finalize=_shown,
        )
        self.globals.pop("lipsum")
        self.globals.update(raise_exception=_raise, strftime_now=_now, range=_range)
        self.filters |= {"tojson": _tojson, "from_json": json.loads}

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Allow `append` and `pop` on lists: a template reaches only its own and copies of the messages."""
        if isinstance(obj, list) and attr in ("append", "pop"):
            return True
        return super().is_safe_attribute(obj, attr, value)


class _Generation(ext.Extension):
    """`{% generation %}…{% endgeneration %}`, which some templates contain for training."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own annotation

    def parse(self, parser: parser.Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@jinja2.pass_context  # the value of such a function is not computed while compiling
def _shown(_context: runtime.Context, value: Any) -> Any:
    return value


def _tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False, **kwargs: Any) -> str:
    """JSON as Hugging Face's templates expect it; generators are written as lists."""
    allowed = {k: v for k, v in kwargs.items() if k in ("separators", "sort_keys")}
    plain = list(value) if isinstance(value, GeneratorType) else value
    return json.dumps(plain, indent=indent, ensure_ascii=ensure_ascii, **allowed)


def _raise(message: Any = "") -> None:
    raise jinja2.TemplateError(str(message))


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _range(*args: int) -> range:
    numbers = range(*args)
    if len(numbers) > _MAX_RANGE:
        raise SecurityError("range too long")
    return numbers
