"""Splits what a model writes into its reasoning and its answer. Knows tags and text, no tokens."""

from __future__ import annotations

from dataclasses import dataclass

from specllama.server.events import Runs
from specllama.text.reasoning import TAGS


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    """A stretch of text that is certain. reasoning: whether it is that, or the answer."""

    text: str
    runs: Runs
    reasoning: bool


class Splitter:
    """Takes one answer as it comes. closing: the tag that ends the reasoning which the prompt has begun, ""
    where it has not; then the answer may begin with an opening tag. Tags and the blanks around them are in
    neither part. off: everything is answer.
    """

    def __init__(self, closing: str = "", off: bool = False) -> None:
        self._closing = "" if off else closing
        self._undecided = not closing and not off
        self._skip = bool(self._closing)  # blanks at the beginning of a part
        self._text, self._runs = "", list[tuple[int, str]]()

    def push(self, text: str, runs: Runs) -> list[ReasoningPiece]:
        """What is certain by now."""
        self._text += text
        self._runs += runs
        return self._certain(last=False)

    def finish(self) -> list[ReasoningPiece]:
        """What was held back, at the end."""
        return self._certain(last=True)

    def _certain(self, last: bool) -> list[ReasoningPiece]:
        if self._undecided and not self._decide(last):
            return []
        pieces = []
        if self._closing:
            pieces += self._think(last)
        if not self._closing:
            self._drop_blanks()
            pieces += self._take(len(self._text), False)
        return pieces

    def _decide(self, last: bool) -> bool:
        """Whether it is known by now that the text begins with a tag, or does not."""
        begun = self._text.lstrip()
        if not last and any(tag.startswith(begun) and tag != begun for tag in TAGS):
            return False
        self._undecided = False
        tag = next((tag for tag in TAGS if begun.startswith(tag)), None)
        if tag is not None:
            self._closing, self._skip = TAGS[tag], True
            self._cut(len(self._text) - len(begun) + len(tag))
        return True

    def _think(self, last: bool) -> list[ReasoningPiece]:
        self._drop_blanks()
        at = self._text.find(self._closing)
        if at >= 0:
            end = len(self._text[:at].rstrip())
            pieces = self._take(end, True)
            self._cut(at - end + len(self._closing))
            self._closing, self._skip = "", True
            return pieces
        keep = 0 if last else self._open_end()
        pieces = self._take(len(self._text[: len(self._text) - keep].rstrip()), True)
        if last:
            self._closing, self._text, self._runs = "", "", []
        return pieces

    def _open_end(self) -> int:
        """Characters at the end that may be the beginning of the closing tag."""
        longest = min(len(self._closing) - 1, len(self._text))
        return next((n for n in range(longest, 0, -1) if self._closing.startswith(self._text[-n:])), 0)

    def _drop_blanks(self) -> None:
        if self._skip:
            self._cut(len(self._text) - len(self._text.lstrip()))
            self._skip = not self._text

    def _take(self, n: int, reasoning: bool) -> list[ReasoningPiece]:
        text = self._text[:n]
        runs = self._cut(n)
        return [ReasoningPiece(text, runs, reasoning)] if text else []

    def _cut(self, n: int) -> list[tuple[int, str]]:
        """Take n characters off the front; where they came from."""
        self._text, taken = self._text[n:], []
        while n > 0 and self._runs:
            size, source = self._runs[0]
            part = min(size, n)
            taken.append((part, source))
            n -= part
            if part == size:
                del self._runs[0]
            else:
                self._runs[0] = (size - part, source)
        return taken
