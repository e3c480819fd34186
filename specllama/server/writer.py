"""The interface that writes an answer: the stream of events in the form of an API."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Protocol

from specllama.errors import SpecllamaError
from specllama.server.events import Accumulator, Event


class DialectWriter(Protocol):
    """Writes one answer.

    fold: the events so far. media_type: of a stream. ping: bytes to keep a stream alive
    between events; clients ignore them.
    """

    fold: Accumulator
    media_type: str
    ping: bytes

    def stream(self, events: Iterable[Event], n_choices: int) -> bytes:
        """The next events of an answer with n_choices choices, as part of a stream; adds them to `fold`."""
        ...

    def error_event(self, error: SpecllamaError) -> bytes:
        """An error after the first byte, as part of a stream."""
        ...

    def end(self) -> bytes:
        """The last bytes of a stream, after an error too."""
        ...

    def answer(self) -> dict[str, Any] | list[dict[str, Any]]:
        """The whole answer, from `fold`."""
        ...


_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_LINE_ENDS = {ord(c): f"\\u{ord(c):04x}" for c in "\x85\u2028\u2029"}


def to_json(value: Any) -> bytes:
    """UTF-8 without blanks between tokens, on one line for readers too that end lines as str.splitlines does:
    httpx's iter_lines, on which ollama-python builds.
    """
    text = _JSON.encode(value)
    return (text if text.isascii() else text.translate(_LINE_ENDS)).encode("utf-8", "replace")
