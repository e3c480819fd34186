"""The reasoning that a model writes before its answer: its tags, and a splitter that separates the two.

Works on text as it arrives, with the source of each run; knows nothing about tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specllama.text.detokenizer import RunBuffer, Runs

# Opening tag to closing tag.
TAGS: Mapping[str, str] = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<reasoning>": "</reasoning>",
    "<seed:think>": "</seed:think>",
    "<think:opensource>": "</think:opensource>",
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
    "<|START_THINKING|>": "<|END_THINKING|>",
}

OPENING, CLOSING = "<think>", TAGS["<think>"]
"""Around reasoning that a model writes in a channel, where text is shown as a whole."""


def closing_tag(prompt: str) -> str:
    """The tag that closes the reasoning opened at the end of the prompt; "" if none is open there."""
    end = prompt.rstrip()
    return next((closing for opening, closing in TAGS.items() if end.endswith(opening)), "")


def thought_apart(text: str) -> tuple[str, str] | None:
    """(Reasoning, rest) of an answer that begins with reasoning in tags, closed or not; None for others."""
    begun = text.lstrip()
    opening = next((tag for tag in TAGS if begun.startswith(tag)), None)
    if opening is None:
        return None
    thought, closing, rest = begun[len(opening) :].partition(TAGS[opening])
    return (thought.strip(), rest.lstrip()) if closing else (thought.lstrip(), "")


def is_over(prompt: str, channel: tuple[str, str] | None = None) -> bool:
    """Whether the prompt ends after reasoning, maybe empty. channel: the family's tags besides TAGS."""
    return prompt.rstrip().endswith((*TAGS.values(), *(channel or ())[1:]))


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    """A piece of text and its runs. reasoning: whether it is part of the reasoning or of the answer."""

    text: str
    runs: Runs
    reasoning: bool


class ReasoningSplitter:
    """Splits one generation as it arrives.

    closing: the tag that closes the reasoning that the prompt has opened (see `closing_tag`); if it is "",
    the generation may itself start with an opening tag. off: everything is answer. keep_tags: tags and white
    space are part of the reasoning, so that the pieces add up to the whole text; otherwise tags and the white
    space around them are dropped. Reasoning that is never closed lasts to the end. tags: around it.
    """

    def __init__(self, closing: str = "", off: bool = False, keep_tags: bool = False) -> None:
        self._closing = "" if off else closing
        self._undecided = not closing and not off
        self.tags = next((tags for tags in TAGS.items() if tags[1] == closing), (OPENING, CLOSING))
        self._keep_tags = keep_tags
        self._at_start = bool(self._closing)  # of reasoning or answer, where white space is dropped
        self._buffer = RunBuffer()  # what was pushed and not yet returned

    def push(self, text: str, runs: Runs) -> list[ReasoningPiece]:
        """Add text. Returns the pieces that are certain by now: text that may be part of a tag is held back.

        runs: (characters, source) of `text`, as `TokenWriter` gives them.
        """
        self._buffer.push(text, runs)
        return self._certain(last=False)

    def finish(self) -> list[ReasoningPiece]:
        """The pieces held back until the end of the generation."""
        return self._certain(last=True)

    def _certain(self, last: bool) -> list[ReasoningPiece]:
        if self._undecided and not self._decide(last):
            return []
        pieces = self._reasoning(last) if self._closing else []
        if not self._closing:
            self._drop_blanks()
            pieces += self._piece(len(self._buffer.text), reasoning=False)
        return pieces

    def _decide(self, last: bool) -> bool:
        """Look for an opening tag at the start; False if more text is needed to decide."""
        begun = self._buffer.text.lstrip()
        if not last and any(tag.startswith(begun) and tag != begun for tag in TAGS):
            return False
        self._undecided = False
        tag = next((tag for tag in TAGS if begun.startswith(tag)), None)
        if tag is not None:
            self._closing, self._at_start = TAGS[tag], True
            self.tags = tag, TAGS[tag]
            if not self._keep_tags:
                self._buffer.take(len(self._buffer.text) - len(begun) + len(tag))
        return True

    def _reasoning(self, last: bool) -> list[ReasoningPiece]:
        self._drop_blanks()
        at = self._buffer.text.find(self._closing)
        if at >= 0:
            pieces = self._stripped(at, len(self._closing))
            self._closing, self._at_start = "", True
            return pieces
        pieces = self._stripped(
            len(self._buffer.text) - (0 if last else self._buffer.open_end((self._closing,)))
        )
        if last:
            self._closing, self._buffer = "", RunBuffer()
        return pieces

    def _stripped(self, n: int, n_tag: int = 0) -> list[ReasoningPiece]:
        """The next n characters as reasoning, without trailing white space and the n_tag characters after."""
        if self._keep_tags:
            return self._piece(n + n_tag, reasoning=True)
        end = len(self._buffer.text[:n].rstrip())
        pieces = self._piece(end, reasoning=True)
        if n_tag:
            self._buffer.take(n - end + n_tag)
        return pieces

    def _drop_blanks(self) -> None:
        if self._at_start and not self._keep_tags:
            self._buffer.take(len(self._buffer.text) - len(self._buffer.text.lstrip()))
            self._at_start = not self._buffer.text

    def _piece(self, n: int, reasoning: bool) -> list[ReasoningPiece]:
        text, runs = self._buffer.take(n)
        return [ReasoningPiece(text, runs, reasoning)] if text else []
