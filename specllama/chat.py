"""Chat templates: messages to the text a model was trained on, in a sandbox, with a deadline and a cap.

What a user writes stays text: where a message contains the text of a control token, that occurrence is
replaced by a private-use sentinel before rendering, and `Rendered.parts` says which stretches may be parsed
for control tokens.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specllama.chat_sandbox import Sandbox
from specllama.errors import SpecllamaError, TemplateError, UsageError

Message = Mapping[str, Any]
SECONDS, MAX_CHARS = 2.0, 4 * 1024 * 1024
_SENTINELS = range(0xF0000, 0xFFFFE)  # a private-use plane
_OWN = re.compile(f"[{chr(_SENTINELS[0])}-{chr(_SENTINELS[-1])}]")


class _Stop(BaseException):
    """Raised inside a template that ran too long; no template can catch it."""


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of rendered text; parse_special: whether control tokens in it are meant."""

    text: str
    parse_special: bool


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
        texts = sorted({t for t in control_texts if len(t) > 1}, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, texts))) if texts else None
        try:
            self._template = Sandbox().from_string(source)
        except Exception as error:  # noqa: BLE001 - constants are computed while compiling
            raise self._error(
                f"the chat template does not compile: {_one_line(error)}", "use --raw"
            ) from None

    def render(self, messages: Sequence[Message], **variables: Any) -> list[Part]:
        """The prompt for the next answer, in parts whose concatenated ids are the prompt's ids.

        variables: what else the template may ask for (tools, enable_thinking …). Raises
        TemplateError (UsageError where the user gave the template) where it refuses the messages, runs longer
        than 2 s or writes 4 MB more than they are.
        """
        hidden: list[str] = []
        shown = [self._hide(message, hidden) for message in messages]
        given = {name: self._hide(value, hidden) for name, value in variables.items()}
        values = {"add_generation_prompt": True, **self._names, **given, "messages": shown}
        text = _with_deadline(lambda: self._write(values), self._error)
        return list(_parts(text, hidden))

    def _hide(self, value: Any, hidden: list[str]) -> Any:
        """A copy of the value in which texts of control tokens are sentinels."""
        if isinstance(value, str):
            if self._control is None:
                return value
            clean = value if value.isascii() else _OWN.sub("\ufffd", value)
            return self._control.sub(lambda m: _sentinel(m.group(), hidden), clean)
        if isinstance(value, Mapping):
            # Roles and keys are compared with words of the template, which a vocabulary may have as tokens.
            return {
                k if _is_word(k) else self._hide(k, hidden): v
                if k == "role" and _is_word(v)
                else self._hide(v, hidden)
                for k, v in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self._hide(v, hidden) for v in value]
        return value

    def _write(self, values: Mapping[str, Any]) -> str:
        out, size = [], -len(str(values["messages"]))
        try:
            for piece in self._template.generate(values):
                size += len(piece)
                if size > MAX_CHARS:
                    raise self._error("the chat template writes 4 MB more than it was given", "use --raw")
                out.append(piece)
        except SpecllamaError:
            raise
        except Exception as error:  # noqa: BLE001 - a template can raise whatever Python can
            raise self._error(
                f"the chat template refuses these messages: {_one_line(error)}", "use --raw"
            ) from None
        return "".join(out)


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and value.isidentifier()


def _sentinel(text: str, hidden: list[str]) -> str:
    hidden.append(text)
    if len(hidden) > len(_SENTINELS):
        raise UsageError("the messages contain too many texts of control tokens")
    return chr(_SENTINELS[len(hidden) - 1])


def _parts(text: str, hidden: Sequence[str]) -> Iterator[Part]:
    if not hidden:
        yield Part(text, True)
        return
    for i, piece in enumerate(re.split(f"({_OWN.pattern})", text)):
        if i % 2:
            n = ord(piece) - _SENTINELS[0]
            yield Part(hidden[n], False) if n < len(hidden) else Part("\ufffd", False)
        elif piece:
            yield Part(piece, True)


def _with_deadline(work: Callable[[], str], error: type[SpecllamaError]) -> str:
    """Run in this thread; another raises _Stop in it when the time is up. Template loops are Python code."""
    thread, done, lock = threading.get_ident(), False, threading.Lock()

    def stop() -> None:
        with lock:
            if not done:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_Stop))

    timer = threading.Timer(SECONDS, stop)
    timer.daemon = True
    timer.start()
    try:
        try:
            return work()
        finally:
            with lock:
                done = True
            timer.cancel()
    except _Stop:  # it may also arrive when the work is just done
        raise error(f"the chat template ran for more than {SECONDS:g} s", "use --raw") from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def encode(
    parts: Sequence[Part], tokenize: Callable[[str, bool, bool], list[int]], bos_text: str, adds_bos: bool
) -> list[int]:
    """Ids of rendered parts: control tokens as the template meant them, BOS only if not written already.

    tokenize: (text, add_special, parse_special) to ids.
    """
    ids: list[int] = []
    begins = bool(parts) and bool(bos_text) and parts[0].parse_special and parts[0].text.startswith(bos_text)
    for i, part in enumerate(parts):
        ids += tokenize(part.text, i == 0 and adds_bos and not begins, part.parse_special)
    return ids
