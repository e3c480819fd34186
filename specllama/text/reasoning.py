"""The reasoning that a model writes before its answer: the tags around it, and the splitter between the two.

Works on text as it arrives, with the source of each stretch; knows nothing of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specllama.text.detokenizer import Runs

# Opening tag to closing tag.
TAGS: Mapping[str, str] = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<reasoning>": "</reasoning>",
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
}


def closing_tag(prompt: str) -> str:
    """The tag that will close the reasoning which the prompt's end has opened; "" where it opens none."""
    end = prompt.rstrip()
    return next((closing for opening, closing in TAGS.items() if end.endswith(opening)), "")


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    """A stretch of text and its runs. reasoning: whether it belongs to the reasoning or to the answer."""

    text: str
    runs: Runs
    reasoning: bool


class ReasoningSplitter:
    """Splits one generation as it arrives.

    closing: the tag that closes reasoning which the prompt has opened (see `closing_tag`); with "" the
    generation may itself begin with an opening tag. off: everything is answer. keep_tags: tags and blanks
    belong to the reasoning, so that the pieces join to the whole text; otherwise tags and the blanks around
    them belong to neither. Reasoning that is never closed lasts to the end.
    """

    def __init__(self, closing: str = "", off: bool = False, keep_tags: bool = False) -> None:
        self._closing = "" if off else closing
        self._undecided = not closing and not off
        self._keep_tags = keep_tags
        self._at_start = bool(self._closing)  # of the reasoning or of the answer after it: blanks are dropped
        self._text, self._runs = "", list[tuple[int, str]]()  # what was pushed and not returned

    def push(self, text: str, runs: Runs) -> list[ReasoningPiece]:
        """More of the generation; the pieces that are certain by now. What may be part of a tag waits.

        runs: (characters, source) of `text`, as `TokenWriter` gives them.
        """
        self._text += text
        self._runs += runs
        return self._certain(last=False)

    def finish(self) -> list[ReasoningPiece]:
        """The pieces that had to wait, at the end of the generation."""
        return self._certain(last=True)

    def _certain(self, last: bool) -> list[ReasoningPiece]:
        if self._undecided and not self._decide(last):
            return []
        pieces = self._reasoning(last) if self._closing else []
        if not self._closing:
            self._drop_blanks()
            pieces += self._piece(len(self._text), reasoning=False)
        return pieces

    def _decide(self, last: bool) -> bool:
        """Whether it is known by now if the text begins with an opening tag."""
        begun = self._text.lstrip()
        if not last and any(tag.startswith(begun) and tag != begun for tag in TAGS):
            return False
        self._undecided = False
        tag = next((tag for tag in TAGS if begun.startswith(tag)), None)
        if tag is not None:
            self._closing, self._at_start = TAGS[tag], True
            if not self._keep_tags:
                self._remove(len(self._text) - len(begun) + len(tag))
        return True

    def _reasoning(self, last: bool) -> list[ReasoningPiece]:
        self._drop_blanks()
        at = self._text.find(self._closing)
        if at >= 0:
            pieces = self._stripped(at, len(self._closing))
            self._closing, self._at_start = "", True
            return pieces
        pieces = self._stripped(len(self._text) - (0 if last else self._open_end()))
        if last:
            self._closing, self._text, self._runs = "", "", []
        return pieces

    def _stripped(self, n: int, n_tag: int = 0) -> list[ReasoningPiece]:
        """The next n characters as reasoning, without blanks at their end, and a tag of n_tag after them."""
        if self._keep_tags:
            return self._piece(n + n_tag, reasoning=True)
        end = len(self._text[:n].rstrip())
        pieces = self._piece(end, reasoning=True)
        if n_tag:
            self._remove(n - end + n_tag)
        return pieces

    def _open_end(self) -> int:
        """Characters at the end that may be the beginning of the closing tag."""
        longest = min(len(self._closing) - 1, len(self._text))
        return next((n for n in range(longest, 0, -1) if self._closing.startswith(self._text[-n:])), 0)

    def _drop_blanks(self) -> None:
        if self._at_start and not self._keep_tags:
            self._remove(len(self._text) - len(self._text.lstrip()))
            self._at_start = not self._text

    def _piece(self, n: int, reasoning: bool) -> list[ReasoningPiece]:
        text = self._text[:n]
        runs = self._remove(n)
        return [ReasoningPiece(text, runs, reasoning)] if text else []

    def _remove(self, n: int) -> list[tuple[int, str]]:
        """Remove n characters from the front; their runs."""
        self._text, removed = self._text[n:], list[tuple[int, str]]()
        while n > 0 and self._runs:
            size, source = self._runs[0]
            part = min(size, n)
            removed.append((part, source))
            n -= part
            if part == size:
                del self._runs[0]
            else:
                self._runs[0] = (size - part, source)
        return removed
