"""Separates the calls of tools from the text of an answer while it arrives. Knows no messages."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from specllama.api.outputs import ToolCall
from specllama.calls.pieces import ArgumentsPiece, CallReader, ClosePiece, OpenPiece, Piece, TextPiece
from specllama.text.detokenizer import Runs
from specllama.text.reasoning import ReasoningSplitter


class CallCollector:
    """The text and the calls of one answer. closing_tag: of the reasoning that the prompt has opened, "" for
    none. Reasoning is part of the text.
    """

    def __init__(self, reader: CallReader, closing_tag: str) -> None:
        self.text = ""
        self.calls: list[ToolCall] = []
        self._reader, self._splitter = reader, ReasoningSplitter(closing_tag, keep_tags=True)
        self._name, self._arguments = "", ""

    def push(self, text: str, runs: Runs, last: bool = False) -> None:
        """Add text. last: it is the end of the answer."""
        pieces = self._splitter.push(text, runs) + (self._splitter.finish() if last else [])
        for piece in pieces:
            if piece.reasoning:
                self.text += piece.text
            else:
                self._add(self._reader.push(piece.text, piece.runs))
        if last:
            self._add(self._reader.finish())

    def _add(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            if isinstance(piece, TextPiece):
                self.text += piece.text
            elif isinstance(piece, OpenPiece):
                self._name, self._arguments = piece.name, ""
            elif isinstance(piece, ArgumentsPiece):
                self._arguments += piece.text
            elif isinstance(piece, ClosePiece):
                self.calls.append(ToolCall(f"call_{secrets.token_hex(12)}", self._name, self._arguments))
