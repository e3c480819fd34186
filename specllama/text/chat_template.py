"""Chat templates: render messages to a prompt, in a sandbox with limits on time and memory.

A user's text stays text: parts of a message that could be parsed as control tokens are marked while the
template runs (control_tokens.py), and `PromptPart.parse_special` is False for them in the result.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from specllama.errors import SpecllamaError, TemplateError, UsageError, option
from specllama.text.control_tokens import ControlTexts, Marks, PromptPart
from specllama.text.sandbox import Sandbox

__all__ = ["ChatTemplate", "Message", "PromptPart", "encode"]
Message = Mapping[str, Any]
Value = TypeVar("Value")
SECONDS, CPU_SECONDS = 2.0, 0.75  # of one rendering: on the clock, and of its thread
COMPILE_SECONDS = 2.0  # of its thread
MAX_CHARS, MAX_BYTES = 4 * 1024 * 1024, 256 * 1024 * 1024
MAX_SOURCE = 256 * 1024  # characters of a template
_CHECK_SECONDS, _TOO_MUCH = 0.02, "allocates more than 256 MB"
_MAX_TOKEN_CHARS = 256  # of a control token
_HINT = f"use {option('raw')}"
# transformers gives tools=None where there are none; most templates ask whether tools are defined.
_NONE_FOR_TOOLS, _DEFINED_TOOLS = (
    re.compile(r"\btools is (not )?none\b"),
    re.compile(r"\btools is (not )?defined\b"),
)
_THINKING = re.compile(r"\benable_thinking\b")  # true unless a request says otherwise, as in llama-server


class _LimitReached(BaseException):
    """Raised inside a template that exceeds a limit; no template can catch it."""


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
            raise self._error(f"the chat template has more than {MAX_SOURCE} characters", _HINT)
        self._source, self._control = source, ControlTexts(control_texts)
        try:  # constants are computed while compiling
            self._template = _limited(lambda: Sandbox().from_string(source), self._error, COMPILE_SECONDS)
        except SpecllamaError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever Python raises for a source
            raise self._error(f"the chat template does not compile: {_one_line(error)}", _HINT) from None

    def render(self, messages: Sequence[Message], **variables: Any) -> list[PromptPart]:
        """The prompt for the next answer, in parts whose concatenated ids are the prompt's ids.

        variables: further variables of the template (tools, enable_thinking …). The text of a control token
        in messages or variables is never parsed as one, nor is one that the template assembles from pieces of
        them, unless the template itself examines the characters that control texts begin with. Raises
        TemplateError (UsageError for the user's template) if the template refuses the messages, computes for
        more than CPU_SECONDS, allocates more than 256 MB or writes over 4 MB more than the messages have;
        UsageError for messages that are nested too deeply, or full of what looks like control tokens.
        """
        try:
            return _limited(lambda: self._parts(messages, variables), self._error)
        except RecursionError:
            raise UsageError("the messages are nested too deeply") from None

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

    def continued(self, parts: Sequence[PromptPart], text: str) -> list[PromptPart]:
        """The parts followed by the start of an answer, in which no control token is parsed.

        The start is added to the last part, and tokenised with it, unless that would create a control text.
        """
        if not text or not parts:
            return [*parts, PromptPart(text, False)] if text else list(parts)
        last, both = parts[-1], parts[-1].text + text
        same = not last.parse_special or len(list(self._control.find(both))) == len(
            list(self._control.find(last.text))
        )
        if same:
            return [*parts[:-1], PromptPart(both, last.parse_special)]
        return [*parts, PromptPart(text, False)]

    def _rendered(self, marks: Marks, messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
        shown = marks.hide(messages)
        more = {name: marks.hide(value) for name, value in variables.items()}
        values = {"add_generation_prompt": True, **_dates(), **self._names, **more, "messages": shown}
        return self._written(values, len(str(shown)))

    def _written(self, values: Mapping[str, Any], n_given: int) -> str:
        out, size = [], -n_given
        try:
            for piece in self._template.generate(values):
                size += len(piece)
                if size > MAX_CHARS:
                    raise self._error("the chat template writes over 4 MB more than the messages have", _HINT)
                out.append(piece)
        except SpecllamaError:
            raise
        except Exception as error:  # noqa: BLE001 - a template can raise whatever Python can
            message = f"the chat template refuses these messages: {_one_line(error)}"
            raise self._error(message, _HINT, {"refused": True}) from None
        return "".join(out)


def _dates() -> dict[str, str]:
    """Today's date in the variables of Llama 3's templates and of FireFunction's, as in llama.cpp."""
    today = time.localtime()
    return {"date_string": time.strftime("%d %b %Y", today), "datetime": time.strftime("%b %d %Y", today)}


def _limited(work: Callable[[], Value], error: type[SpecllamaError], seconds: float = CPU_SECONDS) -> Value:
    """Run `work` in this thread; another thread raises _LimitReached in it after SECONDS, `seconds` of the
    processor or MAX_BYTES.

    That interrupts loops of templates, which run as Python code; sandbox.py refuses single operations that
    would take too long.
    """
    thread, lock, done, problem = threading.get_ident(), threading.Lock(), threading.Event(), ""

    def watch() -> None:
        nonlocal problem
        before, ends, cpu_ends = _private_bytes(), time.monotonic() + SECONDS, cpu_seconds() + seconds
        while not done.wait(_CHECK_SECONDS):
            late = time.monotonic() > ends or cpu_seconds() > cpu_ends
            if late or _private_bytes() - before > MAX_BYTES:
                with lock:
                    if not done.is_set():
                        problem = f"ran for more than {seconds:g} s" if late else _TOO_MUCH
                        stop = ctypes.py_object(_LimitReached)
                        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), stop)
                return

    cpu_seconds = _cpu_clock()
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        try:
            return work()
        finally:
            with lock:
                done.set()
            watcher.join()
    except _LimitReached:  # it may also arrive when the work has just finished
        raise error(f"the chat template {problem}", _HINT) from None


def _cpu_clock() -> Callable[[], float]:
    """A clock of the processor time of this thread, which other threads can read; it stands still where the
    system has none.
    """
    if not hasattr(time, "pthread_getcpuclockid"):
        return lambda: 0.0
    return functools.partial(time.clock_gettime, time.pthread_getcpuclockid(threading.get_ident()))


def _private_bytes() -> int:
    """Bytes of private memory of this process; its peak if the system reports only that."""
    if sys.platform == "linux":
        with open("/proc/self/statm", "rb") as file:
            _, resident, shared, *_ = map(int, file.read().split())
        return (resident - shared) * os.sysconf("SC_PAGESIZE")
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def encode(
    parts: Sequence[PromptPart],
    tokenize: Callable[[str, bool, bool], list[int]],
    bos_text: str,
    adds_bos: bool,
) -> list[int]:
    """The ids of rendered parts: control tokens are parsed only in text of the template, and BOS is added
    unless the template has written it.

    tokenize: from (text, add_special, parse_special) to ids. bos_text: "" for none. adds_bos: whether BOS is
    to be added according to the vocabulary.
    """
    ids: list[int] = []
    begins = bool(parts) and bool(bos_text) and parts[0].parse_special and parts[0].text.startswith(bos_text)
    for i, part in enumerate(parts):
        text = part.text
        if i and parts[i - 1].parse_special and text[:1].isspace() and not part.parse_special:
            # Some control tokens absorb the whitespace that follows them.
            blanks, token = text[: -len(text.lstrip())] or text, parts[i - 1].text[-_MAX_TOKEN_CHARS:]
            if tokenize(token + blanks, False, True) == tokenize(token, False, True):
                text = text[len(blanks) :]
        ids += tokenize(text, i == 0 and adds_bos and not begins, part.parse_special)
    return ids
