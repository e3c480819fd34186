"""Separates the calls of tools from the text of an answer while it arrives. Knows no messages."""

from __future__ import annotations

from collections.abc import Sequence

from specllama.calls.scanner import (
    ArgumentsPiece,
    CallReader,
    ClosePiece,
    OpenPiece,
    Piece,
    ReadCall,
    TextPiece,
    ThoughtPiece,
)
from specllama.text.detokenizer import Runs
from specllama.text.reasoning import CLOSING, OPENING, ReasoningSplitter


class CallCollector:
    """The text and the complete calls of one answer. Its reasoning, with the tags, is part of the text;
    reasoning that the model writes in a channel gets tags here.

    closing_tag: of the reasoning that the prompt has opened, "" for none.
    """

    def __init__(self, reader: CallReader, closing_tag: str) -> None:
        self.calls: list[ReadCall] = []
        self._reader, self._splitter = reader, ReasoningSplitter(closing_tag, keep_tags=True)
        self._open: ReadCall | None = None
        self._in_channel = False

    def push(self, text: str, runs: Runs, last: bool = False) -> TextPiece:
        """Add what the model has written. last: it is the end of the answer. Returns the text without calls
        that is certain by now, which may be empty.
        """
        texts: list[TextPiece] = []
        for piece in self._splitter.push(text, runs) + (self._splitter.finish() if last else []):
            if piece.reasoning:
                texts.append(TextPiece(piece.text, piece.runs))
            else:
                texts += self._texts(self._reader.push(piece.text, piece.runs))
        if last:
            texts += self._texts(self._reader.finish())
        return TextPiece(
            "".join(piece.text for piece in texts), [run for piece in texts for run in piece.runs]
        )

    def _texts(self, pieces: Sequence[Piece]) -> list[TextPiece]:
        """The texts among the pieces; the calls are kept."""
        texts: list[TextPiece] = []
        for piece in pieces:
            thought = isinstance(piece, ThoughtPiece)
            if thought is not self._in_channel:
                self._in_channel = thought
                tag = f"{OPENING}\n" if thought else f"\n{CLOSING}\n\n"
                texts.append(TextPiece(tag, [(len(tag), "target")]))
            if isinstance(piece, (TextPiece, ThoughtPiece)):
                texts.append(TextPiece(piece.text, piece.runs))
            elif isinstance(piece, OpenPiece):
                self._open = ReadCall(piece.name)
            elif isinstance(piece, ArgumentsPiece) and self._open is not None:
                self._open.arguments += piece.text
            elif isinstance(piece, ClosePiece) and self._open is not None:
                self._open.complete = True
                self.calls.append(self._open)
        return texts
