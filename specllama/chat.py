"""Chat templates: messages to the text a model was trained on, in a sandbox, with a deadline and a cap.

What a user writes stays text: where a message contains the text of a control token, that occurrence is replaced by a
private-use sentinel before rendering, and `Rendered.parts` says which stretches may be parsed for control tokens.
"""

from __future__ import annotations

import ctypes
import datetime
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
from jinja2 import ext, nodes, parser, sandbox

from specllama.errors import IntegrityError, UsageError

Message = Mapping[str, Any]
SECONDS, MAX_CHARS = 2.0, 4 * 1024 * 1024
_SENTINELS = range(0xF0000, 0xFFFFE)  # a private-use plane
_MAX_RANGE, _MAX_REPEAT = 100_000, 1_000_000


class _Stop(BaseException):
    """Raised inside a template that ran too long; no template can catch it."""


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of rendered text; parse_special: whether control tokens in it are meant."""

    text: str
    parse_special: bool


class _Sandbox(sandbox.ImmutableSandboxedEnvironment):
    """Without powers, and without repeats that would fill the memory in one operation."""

    intercepted_binops = frozenset(["**", "*", "%"])

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise sandbox.SecurityError("templates may not compute powers")
        if operator == "*":
            for a, b in ((left, right), (right, left)):
                if (
                    isinstance(a, (str, bytes, list, tuple))
                    and isinstance(b, int)
                    and len(a) * b > _MAX_REPEAT
                ):
                    raise sandbox.SecurityError("the template repeats a text too often")
            if (
                isinstance(left, int)
                and isinstance(right, int)
                and left.bit_length() + right.bit_length() > 4096
            ):
                raise sandbox.SecurityError("the template computes too large a number")
        if operator == "%" and isinstance(left, str) and re.search(r"\*|\d{5}", left):
            raise sandbox.SecurityError("the template formats too wide a field")
        return super().call_binop(context, operator, left, right)


def _environment() -> _Sandbox:
    env = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation])
    env.filters["tojson"] = _tojson
    for name in ("center", "indent", "format", "wordwrap"):
        env.filters[name] = _narrow(env.filters[name])
    env.globals.update(raise_exception=_raise, strftime_now=lambda f: datetime.datetime.now().strftime(f))
    env.globals["range"] = lambda *a: (
        sandbox.safe_range(*a) if len(range(*a)) <= _MAX_RANGE else _raise("range too long")
    )
    return env


class _Generation(ext.Extension):
    """`{% generation %}…{% endgeneration %}`, a mark for training that some templates carry."""

    tags = frozenset({"generation"})

    def parse(self, parser: parser.Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _narrow(function: Callable[..., Any]) -> Callable[..., Any]:
    def limited(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(a, int) and a > 10_000 for a in [*args, *kwargs.values()]):
            raise sandbox.SecurityError("the template formats too wide a field")
        return function(*args, **kwargs)

    for mark in ("jinja_pass_arg",):
        if hasattr(function, mark):
            setattr(limited, mark, getattr(function, mark))
    return limited


def _tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False, **kwargs: Any) -> str:
    allowed = {k: v for k, v in kwargs.items() if k in ("separators", "sort_keys")}
    return json.dumps(
        value, indent=min(indent, 16) if indent else indent, ensure_ascii=ensure_ascii, **allowed
    )


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


class ChatTemplate:
    """A compiled template. Raises IntegrityError where the model's own does not compile.

    control_texts: texts of the model's control tokens. own: False for a template that the user gave, whose faults are
    the user's (UsageError).
    """

    def __init__(
        self, source: str, control_texts: Sequence[str] = (), bos: str = "", eos: str = "", own: bool = True
    ) -> None:
        self._error = IntegrityError if own else UsageError
        self._names = {"bos_token": bos, "eos_token": eos}
        texts = sorted({t for t in control_texts if len(t) > 1}, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, texts))) if texts else None
        try:
            self._template = _environment().from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise self._error(
                f"the chat template does not compile: {_one_line(error)}", "use --raw"
            ) from None

    def render(self, messages: Sequence[Message], **variables: Any) -> list[Part]:
        """The prompt for the next answer, in parts whose concatenated ids are the prompt's ids.

        variables: what else the template may ask for (tools, enable_thinking …). Raises UsageError where the template
        refuses the messages, runs longer than 2 s or writes 4 MB more than they are.
        """
        hidden: list[str] = []
        shown = [self._hide(message, hidden) for message in messages]
        values = {"add_generation_prompt": True, **self._names, **variables, "messages": shown}
        text = _with_deadline(lambda: self._write(values))
        return list(_parts(text, hidden))

    def _hide(self, value: Any, hidden: list[str]) -> Any:
        """A copy of the value in which texts of control tokens are sentinels."""
        if isinstance(value, str):
            clean = (
                "".join("�" if ord(c) in _SENTINELS else c for c in value) if not value.isascii() else value
            )
            return (
                self._control.sub(lambda m: _sentinel(m.group(), hidden), clean) if self._control else clean
            )
        if isinstance(value, Mapping):
            return {k: v if k == "role" else self._hide(v, hidden) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._hide(v, hidden) for v in value]
        return value

    def _write(self, values: Mapping[str, Any]) -> str:
        out, size = [], -len(str(values["messages"]))
        try:
            for piece in self._template.generate(values):
                size += len(piece)
                if size > MAX_CHARS:
                    raise UsageError("the chat template writes 4 MB more than it was given", "use --raw")
                out.append(piece)
        except UsageError:
            raise
        except _Stop:
            raise UsageError(f"the chat template ran for more than {SECONDS:g} s", "use --raw") from None
        except Exception as error:  # noqa: BLE001 - a template can raise whatever Python can
            raise UsageError(
                f"the chat template refuses these messages: {_one_line(error)}", "use --raw"
            ) from None
        return "".join(out)


def _sentinel(text: str, hidden: list[str]) -> str:
    hidden.append(text)
    if len(hidden) > len(_SENTINELS):
        raise UsageError("the messages contain too many texts of control tokens")
    return chr(_SENTINELS[len(hidden) - 1])


def _parts(text: str, hidden: Sequence[str]) -> Iterator[Part]:
    if not hidden:
        yield Part(text, True)
        return
    for i, piece in enumerate(re.split(f"([{chr(_SENTINELS[0])}-{chr(_SENTINELS[-1])}])", text)):
        if i % 2:
            yield Part(hidden[ord(piece) - _SENTINELS[0]], False)
        elif piece:
            yield Part(piece, True)


def _with_deadline(work: Callable[[], str]) -> str:
    """Run in this thread; another one raises _Stop in it when the time is up. Loops of a template are Python code."""
    thread, done, lock = threading.get_ident(), False, threading.Lock()

    def stop() -> None:
        with lock:
            if not done:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_Stop))

    timer = threading.Timer(SECONDS, stop)
    timer.daemon = True
    timer.start()
    try:
        return work()
    finally:
        with lock:
            done = True
        timer.cancel()


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def encode(
    parts: Sequence[Part], tokenize: Callable[[str, bool, bool], list[int]], bos_text: str, adds_bos: bool
) -> list[int]:
    """Ids of rendered parts: control tokens as the template meant them, BOS only if the text does not begin with it.

    tokenize: (text, add_special, parse_special) to ids.
    """
    ids: list[int] = []
    begins = bool(parts) and bool(bos_text) and parts[0].parse_special and parts[0].text.startswith(bos_text)
    for i, part in enumerate(parts):
        ids += tokenize(part.text, i == 0 and adds_bos and not begins, part.parse_special)
    return ids
