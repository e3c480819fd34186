"""Chat templates: render messages to a prompt, in a sandbox with the functions that templates expect.

The sandbox keeps a template from reaching Python's objects. It does not bound its time and memory: no list of
dangerous operations is complete. Templates run in a process of their own, with limits (template_process.py).

A user's text stays text: parts of a message that could be parsed as control tokens are marked while the
template runs (prompt_parts.py), and `PromptPart.parse_special` is False for them in the result.
"""

from __future__ import annotations

import datetime
import json
import re
import time
from collections.abc import Mapping, Sequence
from types import GeneratorType
from typing import Any

import jinja2
from jinja2 import ext, nodes, parser, runtime, sandbox
from jinja2.exceptions import SecurityError

from specllama.errors import SpecllamaError, TemplateError, UsageError
from specllama.text.prompt_parts import (
    HINT,
    MAX_CHARS,
    ControlTexts,
    Marks,
    Message,
    PromptPart,
    nested_too_deeply,
)

MAX_SOURCE = 256 * 1024  # characters of a template
_MAX_RANGE = 100_000
# transformers gives tools=None where there are none; most templates ask whether tools are defined.
_NONE_FOR_TOOLS, _DEFINED_TOOLS = (
    re.compile(r"\btools is (not )?none\b"),
    re.compile(r"\btools is (not )?defined\b"),
)
_THINKING = re.compile(r"\benable_thinking\b")  # true unless a request says otherwise, as in llama-server


class ChatTemplate:
    """A compiled template. Raises TemplateError if it does not compile.

    control_texts: texts of the model's control tokens. bos, eos: texts of these tokens, "" for none. own:
    whether the template is the model's own; errors in one that the user gave are UsageError instead.
    """

    def __init__(
        self, source: str, control_texts: Sequence[str] = (), bos: str = "", eos: str = "", own: bool = True
    ) -> None:
        self._error: type[SpecllamaError] = TemplateError if own else UsageError
        self._names: dict[str, str | bool | None] = {"bos_token": bos, "eos_token": eos}
        if _THINKING.search(source):
            self._names["enable_thinking"] = True
        if _NONE_FOR_TOOLS.search(source) and not _DEFINED_TOOLS.search(source):
            self._names["tools"] = None
        if len(source) > MAX_SOURCE:
            raise self._error(f"the chat template has more than {MAX_SOURCE} characters", HINT)
        self._source, self._control = source, ControlTexts(control_texts)
        try:
            self._template = Sandbox().from_string(source)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever Python raises for a source
            raise self._error(f"the chat template does not compile: {_one_line(error)}", HINT) from None

    def render(self, messages: Sequence[Message], **variables: Any) -> list[PromptPart]:
        """The prompt for the next answer, in parts whose concatenated ids are the prompt's ids.

        variables: further variables of the template (tools, enable_thinking …). The text of a control token
        in messages or variables is never parsed as one, nor is one that the template assembles from pieces of
        them, unless the template itself examines the characters that control texts begin with. Raises
        TemplateError (UsageError for the user's template) if the template refuses the messages, or writes
        over 4 MB more than the messages have; UsageError for messages that are nested too deeply, or full of
        what looks like control tokens.
        """
        try:
            return self._parts(messages, variables)
        except RecursionError:
            raise nested_too_deeply() from None

    def _parts(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> list[PromptPart]:
        marks = Marks(self._control, taken=self._source)
        text = self._rendered(marks, messages, variables)
        if marks.loose:
            thorough = Marks(self._control, thorough=True, taken=self._source)
            try:
                parts = thorough.parts(self._rendered(thorough, messages, variables))
            except SpecllamaError:
                parts = []  # the template examines marked characters
            if "".join(p.text for p in parts) == "".join(p.text for p in marks.parts(text)):
                return parts
        return marks.parts(text)

    def _rendered(self, marks: Marks, messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
        shown = marks.hide(messages)
        more = {name: marks.hide(value) for name, value in variables.items()}
        today = time.localtime()  # as Llama 3's templates and FireFunction's have it, and llama.cpp
        dates = {
            "date_string": time.strftime("%d %b %Y", today),
            "datetime": time.strftime("%b %d %Y", today),
        }
        values = {"add_generation_prompt": True, **dates, **self._names, **more, "messages": shown}
        out, size = [], -len(str(shown))
        try:
            for piece in self._template.generate(values):
                size += len(piece)
                if size > MAX_CHARS:
                    raise self._error("the chat template writes over 4 MB more than the messages have", HINT)
                out.append(piece)
        except (SpecllamaError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - a template can raise whatever Python can
            message = f"the chat template refuses these messages: {_one_line(error)}"
            raise self._error(message, HINT, {"refused": True}) from None
        return "".join(out)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


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
