"""The protocol of writers: an answer in the form of an API, from the stream of events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from specllama.errors import SpecllamaError
from specllama.server.events import Accumulator, Event


class DialectWriter(Protocol):
    """Writes one answer. fold: accumulates the events. media_type: of a stream. ping: bytes that keep an idle
    stream alive; clients ignore them.
    """

    fold: Accumulator
    media_type: str
    ping: bytes

    def stream(self, events: Iterable[Event], n_choices: int) -> bytes:
        """The part of a stream for the next events, which are added to `fold`. n_choices: of the answer."""
        ...

    def error_event(self, error: SpecllamaError) -> bytes:
        """An error after the first byte, as a part of a stream."""
        ...

    def end(self) -> bytes:
        """The last bytes of a stream, after an error too."""
        ...

    def answer(self) -> Mapping[str, object] | Sequence[Mapping[str, object]]:
        """The whole answer, from `fold`."""
        ...


_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_LINE_ENDS = {ord(c): f"\\u{ord(c):04x}" for c in "\x85\u2028\u2029"}


def to_json(value: Any) -> bytes:
    """Compact JSON in UTF-8, on one line also for readers that split lines as str.splitlines does (httpx's
    iter_lines, and so ollama-python).
    """
    text = _JSON.encode(value)
    return (text if text.isascii() else text.translate(_LINE_ENDS)).encode("utf-8", "replace")


def data_event(data: Mapping[str, object]) -> bytes:
    """A server-sent event without a name."""
    return b"data: " + to_json(data) + b"\n\n"
