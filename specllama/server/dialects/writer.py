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


def to_json(value: Any) -> bytes:
    """UTF-8 on one line, without blanks between tokens."""
    return _JSON.encode(value).encode("utf-8", "replace")
