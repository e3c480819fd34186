"""Turns the bytes of tokens into text: whole characters, no stop string, no line indented too little."""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Runs = Sequence[tuple[int, str]]  # (number of characters, source) of consecutive runs of a text
SHOWN = "\ufdd0"
"""Precedes the text of a control token that is part of the output: a noncharacter of Unicode, so that the
same letters in ordinary tokens differ from it. The writer replaces it in all other text.
"""

MAX_HEADER = 400  # characters


class RunBuffer:
    """A queue of characters that have arrived and not left, and the source of each run. text: all of it."""

    def __init__(self) -> None:
        self.text = ""
        self._runs: list[tuple[int, str]] = []

    def push(self, text: str, runs: Runs) -> None:
        """Add text at the end. runs: (characters, source) of `text`."""
        self.text += text
        self._runs += runs

    def take(self, n: int) -> tuple[str, list[tuple[int, str]]]:
        """Remove the first n characters. Returns them and their runs."""
        taken, self.text = self.text[:n], self.text[n:]
        removed: list[tuple[int, str]] = []
        while n > 0 and self._runs:
            size, source = self._runs[0]
            part = min(size, n)
            removed.append((part, source))
            n -= part
            if part == size:
                del self._runs[0]
            else:
                self._runs[0] = (size - part, source)
        return taken, removed

    def open_end(self, texts: tuple[str, ...], start: int = 0) -> int:
        """Number of characters at the end, after `start`, that may be the beginning of one of these texts."""
        longest = min(max(map(len, texts), default=1) - 1, len(self.text) - start)
        ends = (n for n in range(longest, 0, -1) if any(t.startswith(self.text[-n:]) for t in texts))
        return next(ends, 0)


@dataclass(frozen=True, slots=True)
class Headers:
    """Headers between the parts of an output. begins: control tokens, as they are written; ends: the text
    with which a header ends. What has more than MAX_HEADER characters is none.
    """

    begins: Collection[str]
    ends: str


class TokenWriter:
    """Collects the text of one generation.

    piece: from a token id to its bytes (empty for control tokens). An incomplete character, and text that may
    be the start of a stop string, are held back; bytes that are not UTF-8 become U+FFFD. Of several stop
    strings the first to be complete ends the text, the longest if several end at the same character.
    stopped_by: that stop string, else None. shown: control tokens that are written, and their texts.
    n_indent: blanks and tabs with which each line after the first begins; the text ends before the first
    other character of a line with fewer. finish_reason: why the text ended, "length" for its indentation.
    headers: those in which no stop string counts. stop_ids: tokens that end the text, and are no part of it.
    min_tokens: no stop string counts that is complete within so many tokens. controls: control tokens,
    written or not, and their texts; one whose text is a stop string completes it.
    lengths: of the text that each token pushed so far has completed, in characters.
    """

    def __init__(
        self,
        piece: Callable[[int], bytes],
        stops: Sequence[str] = (),
        shown: Mapping[int, str] | None = None,
        n_indent: int = 0,
        headers: Headers | None = None,
        stop_ids: Collection[int] = (),
        min_tokens: int = 0,
        controls: Mapping[int, str] | None = None,
    ) -> None:
        self._min_tokens = min_tokens
        self._stop_tokens = {id_: text for id_, text in (controls or {}).items() if text in stops}
        self._stop_ids = frozenset(stop_ids)
        self._piece, self._stops, self._shown = piece, tuple(stops), shown or {}
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._buffer, self._n_ready = RunBuffer(), 0  # text not yet taken; characters that are not held back
        self.lengths: list[int] = []
        self.stopped_by: str | None = None
        self.finish_reason: Literal["stop", "length"] = "stop"
        self._n_indent = n_indent
        self._headers, self._header = headers, ""  # of the output; the one that has begun and not ended
        self._indented: int | None = None  # blanks so far at the beginning of a line after the first

    def push(self, token: int, source: str = "target") -> bool:
        """Add a token. Returns True if it ends the text: it completes a stop string, which is left out with
        all text after it, or is a stop token, or a line is indented too little.

        source: the token's source, for `take`: "target" or a drafter's name.
        """
        if token in self._stop_ids:
            return True
        if token in self._stop_tokens and len(self.lengths) >= self._min_tokens:
            self.stopped_by = self._stop_tokens[token]
            return True
        if (text := self._shown.get(token)) is None:
            text = self._decoder.decode(self._piece(token)).replace(SHOWN, "\ufffd")
        ends = False
        if self._n_indent:
            n = self._n_allowed(text)
            text, ends = text[:n], n < len(text)
        self.lengths.append(len(text))
        if text:
            self._buffer.push(text, [(len(text), source)])
        if self._stops and self._completes_stop(text):
            return True
        if not self._stops:
            self._n_ready = len(self._buffer.text)
        if ends:
            self.finish_reason = "length"
        return ends

    def _completes_stop(self, text: str) -> bool:
        n_new = len(self._after_header(text))
        text = self._buffer.text[self._n_ready :]
        before = len(text) - n_new  # with no end of a stop string that counts
        ends = [(text.find(s, max(0, before + 1 - len(s))), s) for s in self._stops]
        counts = len(self.lengths) > self._min_tokens
        matches = [(at + len(s), -len(s), s) for at, s in ends if at >= 0 and counts]
        if matches:  # the first that is complete, however the text is split into tokens
            end, _, self.stopped_by = min(matches)
            self._n_ready += end - len(self.stopped_by)
            self._buffer.text = self._buffer.text[: self._n_ready]
            return True
        self._n_ready = len(self._buffer.text) - self._buffer.open_end(self._stops, self._n_ready)
        return False

    def _after_header(self, text: str) -> str:
        """The part of the next text that belongs to no header; what belongs to one is ready."""
        if self._headers is None or not (self._header or text in self._headers.begins):
            return text
        before, self._n_ready = len(self._header), len(self._buffer.text)
        self._header += text
        end = self._header.find(self._headers.ends)
        if end < 0 and len(self._header) <= MAX_HEADER:
            return ""
        n = len(text) if end < 0 else end + len(self._headers.ends) - before
        self._header = ""
        self._n_ready -= len(text) - n
        return text[n:]

    def _n_allowed(self, text: str) -> int:
        """How many characters of the next text precede the first that is indented too little."""
        for i, character in enumerate(text):
            if self._indented is not None and character in " \t":
                self._indented += 1
            elif self._indented is not None and self._indented < self._n_indent:
                return i
            else:
                self._indented = 0 if character == "\n" else None
        return len(text)

    def take(self) -> tuple[str, list[tuple[int, str]]]:
        """The text since the last call and its runs, without the text that is held back."""
        text, runs = self._buffer.take(self._n_ready)
        self._n_ready = 0
        by_source = itertools.groupby(runs, key=lambda run: run[1])  # neighbours with the same are joined
        return text, [(sum(n for n, _ in group), source) for source, group in by_source]

    def finish(self) -> tuple[str, list[tuple[int, str]]]:
        """As `take`, with the text held back until the end of the generation, but no incomplete character."""
        self._n_ready = len(self._buffer.text)
        return self.take()
