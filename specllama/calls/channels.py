"""Calls in another form than that of the model's family, in the text of its channels."""

from __future__ import annotations

from collections.abc import Sequence

from specllama.calls.pieces import CallReader, Piece, TextPiece
from specllama.text.detokenizer import Runs


class ChannelReader:
    """Implements CallReader. channels: separates reasoning from text; calls: reads that text."""

    def __init__(self, channels: CallReader, calls: CallReader) -> None:
        self._channels, self._calls = channels, calls

    def push(self, text: str, runs: Runs) -> list[Piece]:
        return self._read(self._channels.push(text, runs))

    def finish(self) -> list[Piece]:
        return self._read(self._channels.finish()) + self._calls.finish()

    def _read(self, pieces: Sequence[Piece]) -> list[Piece]:
        read: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, TextPiece):
                read += self._calls.push(piece.text, piece.runs)
            else:
                read.append(piece)
        return read
