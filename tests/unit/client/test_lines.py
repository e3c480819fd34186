"""Lines from a stream of bytes, however it is cut."""

from __future__ import annotations

import time

import pytest

from specllama.client import child
from specllama.client.child import LineBuffer, LineTooLongError


def test_lines_that_arrive_in_any_parts() -> None:
    text = b"one\n\ntwo three\nfour\nend"
    for size in range(1, len(text) + 1):
        buffer = LineBuffer()
        child = [line for i in range(0, len(text), size) for line in buffer.add(text[i : i + size])]
        assert child == [b"one", b"", b"two three", b"four"], size


def test_a_long_line_takes_linear_time() -> None:
    """Joining what has arrived with every new part would copy 30 GB for 60 MB in parts of 64 kB."""
    buffer, part = LineBuffer(), b"x" * 65536
    began = time.monotonic()
    for _ in range(960):
        assert buffer.add(part) == []
    (line,) = buffer.add(b"\n")
    assert len(line) == 960 * 65536
    assert time.monotonic() - began < 4


def test_an_endless_line_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "MAX_BYTES", 100)
    buffer = LineBuffer()
    assert buffer.add(b"x" * 100 + b"\n") == [b"x" * 100]
    assert buffer.add(b"x" * 100) == []
    with pytest.raises(LineTooLongError):
        buffer.add(b"x")
