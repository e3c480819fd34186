"""Separates the reasoning, the text and the calls of an answer while it arrives. Knows no messages."""

from __future__ import annotations

from specllama.calls import scanner
from specllama.text.detokenizer import Runs
from specllama.text.reasoning import CLOSING, OPENING, ReasoningSplitter


class PieceReader:
    """Separates the pieces of one answer: reasoning, text, and the calls that `reader` finds, None for none.

    closing_tag, off: see ReasoningSplitter. keep_tags: reasoning in tags is text, with its tags. tags: around
    the reasoning. has_text: whether text has begun after the latest reasoning.
    """

    def __init__(
        self,
        reader: scanner.CallReader | None = None,
        closing_tag: str = "",
        off: bool = False,
        keep_tags: bool = False,
    ) -> None:
        self._reader, self._splitter = reader, ReasoningSplitter(closing_tag, off, keep_tags)
        self._keep_tags, self.has_text = keep_tags, False

    @property
    def tags(self) -> tuple[str, str]:
        return self._splitter.tags

    def push(self, text: str, runs: Runs, last: bool = False) -> list[scanner.Piece]:
        """Add text; returns the pieces that are certain by now. last: it is the end of the answer."""
        pieces: list[scanner.Piece] = []
        for one in self._splitter.push(text, runs) + (self._splitter.finish() if last else []):
            if one.reasoning:
                kind = scanner.TextPiece if self._keep_tags else scanner.ThoughtPiece
                pieces.append(kind(one.text, one.runs))
                continue
            self.has_text = True
            if self._reader is None:
                pieces.append(scanner.TextPiece(one.text, one.runs))
            else:
                pieces += self._found(self._reader.push(one.text, one.runs))
        if last and self._reader is not None:
            pieces += self._found(self._reader.finish())
        return pieces

    def _found(self, pieces: list[scanner.Piece]) -> list[scanner.Piece]:
        self.has_text = self.has_text and not any(isinstance(piece, scanner.ThoughtPiece) for piece in pieces)
        return pieces


class CallCollector:
    """The text and the complete calls of one answer. Its reasoning, with the tags, is part of the text;
    reasoning that the model writes in a channel gets tags here.

    closing_tag: of the reasoning that the prompt has opened, "" for none.
    """

    def __init__(self, reader: scanner.CallReader, closing_tag: str) -> None:
        self.calls: list[scanner.ReadCall] = []
        self._pieces = PieceReader(reader, closing_tag, keep_tags=True)
        self._open: scanner.ReadCall | None = None
        self._in_channel = False

    def push(self, text: str, runs: Runs, last: bool = False) -> scanner.TextPiece:
        """Add what the model has written. last: the end. Returns the text that is certain, maybe empty."""
        texts: list[scanner.TextPiece | scanner.ThoughtPiece] = []
        for piece in self._pieces.push(text, runs, last):
            thought = isinstance(piece, scanner.ThoughtPiece)
            if thought is not self._in_channel:
                self._in_channel = thought
                tag = f"{OPENING}\n" if thought else f"\n{CLOSING}\n\n"
                texts.append(scanner.TextPiece(tag, [(len(tag), "target")]))
            if isinstance(piece, (scanner.TextPiece, scanner.ThoughtPiece)):
                texts.append(piece)
            elif isinstance(piece, scanner.OpenPiece):
                self._open = scanner.ReadCall(piece.name)
            elif isinstance(piece, scanner.ArgumentsPiece) and self._open is not None:
                self._open.arguments += piece.text
            elif isinstance(piece, scanner.ClosePiece) and self._open is not None:
                self._open.complete = True
                self.calls.append(self._open)
        return scanner.TextPiece(
            "".join(one.text for one in texts), [run for one in texts for run in one.runs]
        )
