"""What an API is to the rest of the server: a writer over the one stream of events."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Protocol

from specllama.errors import SpecllamaError
from specllama.server.events import Accumulator, Event


class DialectWriter(Protocol):
    """One answer. fold: what has come by now. media_type: of a stream. ping: bytes that a stream may carry
    anywhere between events and that no client takes for one.
    """

    fold: Accumulator
    media_type: str
    ping: bytes

    def stream(self, events: Iterable[Event], n_choices: int) -> bytes:
        """These events of an answer with so many choices, as its stream shows them."""
        ...

    def error_event(self, error: SpecllamaError) -> bytes:
        """An error after the first byte, as its stream shows it."""
        ...

    def end(self) -> bytes:
        """What stands behind everything, an error too."""
        ...

    def answer(self) -> dict[str, Any]:
        """The fold in one piece."""
        ...


_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def to_json(value: Any) -> bytes:
    """On one line, without blanks."""
    return _JSON.encode(value).encode("utf-8", "replace")
