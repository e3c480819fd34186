"""Chat templates: messages to the text a model was trained on, in a sandbox, with limits of time and memory.

What a user writes stays text: stretches of a message that could be parsed as control tokens are marked while
the template runs (chat_marks.py), and `Part.parse_special` says in what is rendered control tokens are meant.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from specllama.errors import SpecllamaError, TemplateError, UsageError, option
from specllama.text.control_tokens import ControlTexts, Marks, TextPart
from specllama.text.sandbox import Sandbox

__all__ = ["ChatTemplate", "Message", "TextPart", "encode"]
Message = Mapping[str, Any]
Value = TypeVar("Value")
SECONDS, MAX_CHARS, MAX_BYTES = 2.0, 4 * 1024 * 1024, 512 * 1024 * 1024
_LOOK_SECONDS = 0.02
_HINT = f"use {option('raw')}"


class _Stop(BaseException):
    """Raised inside a template that took too much; no template can catch it."""


class ChatTemplate:
    """A compiled template. Raises TemplateError where the model's own does not compile.

    control_texts: texts of the model's control tokens. own: False for a template that the user gave, whose
    faults are the user's (UsageError).
    """

    def __init__(
        self, source: str, control_texts: Sequence[str] = (), bos: str = "", eos: str = "", own: bool = True
    ) -> None:
        self._error: type[SpecllamaError] = TemplateError if own else UsageError
        self._names = {"bos_token": bos, "eos_token": eos}
        self._source, self._control = source, ControlTexts(control_texts)
        try:  # constants are computed while compiling
            self._template = _limited(lambda: Sandbox().from_string(source), self._error)
        except SpecllamaError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever Python raises for a source
            raise self._error(f"the chat template does not compile: {_one_line(error)}", _HINT) from None

    def render(self, messages: Sequence[Message], **variables: Any) -> list[TextPart]:
        """The prompt for the next answer, in parts whose concatenated ids are the prompt's ids.

        variables: what else the template may ask for (tools, enable_thinking …). No text of a control token
        in messages or variables is parsed as one, and none that the template puts together from pieces of
        them either, unless it looks at what control texts begin with. Raises TemplateError (UsageError where
        the user gave the template) where it refuses the messages, runs longer than 2 s, takes more than
        512 MB or writes 4 MB more than the messages are; UsageError for messages nested too deeply.
        """
        marks = Marks(self._control, taken=self._source)
        text = self._rendered(marks, messages, variables)
        if marks.loose:
            thorough = Marks(self._control, thorough=True, taken=self._source)
            try:
                parts = thorough.parts(self._rendered(thorough, messages, variables))
            except SpecllamaError:
                parts = []  # the template looks at what was marked
            if "".join(p.text for p in parts) == "".join(p.text for p in marks.parts(text)):
                return parts
        return marks.parts(text)

    def continued(self, parts: Sequence[TextPart], text: str) -> list[TextPart]:
        """The parts with a text behind them that is never parsed for control tokens: the beginning of an
        answer. It is tokenised together with what stands before it where nothing else comes of that.
        """
        if not text or not parts:
            return [*parts, TextPart(text, False)] if text else list(parts)
        last, both = parts[-1], parts[-1].text + text
        same = not last.parse_special or len(list(self._control.find(both))) == len(
            list(self._control.find(last.text))
        )
        if same:
            return [*parts[:-1], TextPart(both, last.parse_special)]
        return [*parts, TextPart(text, False)]

    def _rendered(self, marks: Marks, messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
        def work() -> str:
            shown = marks.hide(messages)
            more = {name: marks.hide(value) for name, value in variables.items()}
            values = {"add_generation_prompt": True, **self._names, **more, "messages": shown}
            return self._written(values, len(str(shown)))

        try:
            return _limited(work, self._error)
        except RecursionError:
            raise UsageError("the messages are nested too deeply") from None

    def _written(self, values: Mapping[str, Any], n_given: int) -> str:
        out, size = [], -n_given
        try:
            for piece in self._template.generate(values):
                size += len(piece)
                if size > MAX_CHARS:
                    raise self._error("the chat template writes 4 MB more than it was given", _HINT)
                out.append(piece)
        except SpecllamaError:
            raise
        except Exception as error:  # noqa: BLE001 - a template can raise whatever Python can
            raise self._error(
                f"the chat template refuses these messages: {_one_line(error)}", _HINT
            ) from None
        return "".join(out)


def _limited(work: Callable[[], Value], error: type[SpecllamaError]) -> Value:
    """Run in this thread; another raises _Stop in it when it takes too long or too much memory.

    What templates repeat is Python code; chat_sandbox.py refuses what would be one long operation.
    """
    thread, lock, done, problem = threading.get_ident(), threading.Lock(), threading.Event(), ""

    def watch() -> None:
        nonlocal problem
        before, ends = _private_bytes(), time.monotonic() + SECONDS
        while not done.wait(_LOOK_SECONDS):
            late = time.monotonic() > ends
            if late or _private_bytes() - before > MAX_BYTES:
                with lock:
                    if not done.is_set():
                        problem = f"ran for more than {SECONDS:g} s" if late else "takes more than 512 MB"
                        stop = ctypes.py_object(_Stop)
                        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), stop)
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        try:
            return work()
        finally:
            with lock:
                done.set()
            watcher.join()
    except _Stop:  # it may also arrive when the work is just done
        raise error(f"the chat template {problem}", _HINT) from None


def _private_bytes() -> int:
    """Memory that this process has to itself; the most that it ever had where only that can be told."""
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
    parts: Sequence[TextPart], tokenize: Callable[[str, bool, bool], list[int]], bos_text: str, adds_bos: bool
) -> list[int]:
    """Ids of rendered parts: control tokens as the template meant them, BOS only if not written already.

    tokenize: (text, add_special, parse_special) to ids.
    """
    ids: list[int] = []
    begins = bool(parts) and bool(bos_text) and parts[0].parse_special and parts[0].text.startswith(bos_text)
    for i, part in enumerate(parts):
        text = part.text
        if i and parts[i - 1].parse_special and text[:1].isspace() and not part.parse_special:
            # Some control tokens take the blanks behind them along.
            blanks, token = text[: -len(text.lstrip())] or text, parts[i - 1].text[-_LONGEST:]
            if tokenize(token + blanks, False, True) == tokenize(token, False, True):
                text = text[len(blanks) :]
        ids += tokenize(text, i == 0 and adds_bos and not begins, part.parse_special)
    return ids


_LONGEST = 256  # characters of a control token
