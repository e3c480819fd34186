"""From token bytes to text: whole characters only, stop strings never shown, not even in part."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

Runs = Sequence[tuple[int, str]]  # (characters, source) of the stretches of a text, in order


class TokenWriter:
    """Collects the text of one generation.

    piece: token id to its bytes (empty for control tokens). Bytes that begin a character wait for its end;
    bytes that cannot be UTF-8 become U+FFFD; text that may begin a stop string waits until that is decided.
    Of several stop strings the one that is complete first counts, the longest of those that end together.
    """

    def __init__(self, piece: Callable[[int], bytes], stops: Sequence[str] = ()) -> None:
        self._piece, self._stops = piece, tuple(stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._ready, self._held = "", ""
        self._sources: list[tuple[int, str]] = []  # (characters, source) of what was not taken yet
        self.stopped_by: str | None = None

    def push(self, token: int, source: str = "target") -> bool:
        """Take one token; True where it completes a stop string, whose text and what follows is left out.

        source: whose token it is, for `take_runs`.
        """
        text = self._decoder.decode(self._piece(token))
        if text:
            self._sources.append((len(text), source))
        if not self._stops:
            self._ready += text
            return False
        text = self._held + text
        found = [(text.find(s) + len(s), -len(s), s) for s in self._stops if s in text]
        if found:  # the first that is complete, so that the split into tokens does not matter
            end, _, self.stopped_by = min(found)
            at = end - len(self.stopped_by)
            self._ready += text[:at]
            self._held = ""
            return True
        waiting = self._open_stop(text)
        self._ready += text[: len(text) - waiting]
        self._held = text[len(text) - waiting :]
        return False

    def take(self) -> str:
        """The text that is certain by now and was not taken before."""
        return self.take_runs()[0]

    def take_runs(self) -> tuple[str, list[tuple[int, str]]]:
        """As `take`, with (characters, source) of each stretch of the text."""
        text, self._ready = self._ready, ""
        return text, self._runs(len(text))

    def _runs(self, n: int) -> list[tuple[int, str]]:
        """The sources of the next n characters, neighbours of one source joined."""
        runs: list[tuple[int, str]] = []
        while n > 0:
            size, source = self._sources.pop(0)
            if size > n:
                self._sources.insert(0, (size - n, source))
            size = min(size, n)
            n -= size
            if runs and runs[-1][1] == source:
                runs[-1] = (runs[-1][0] + size, source)
            else:
                runs.append((size, source))
        return runs

    def finish(self) -> str:
        """The rest at the end of the generation; a character that was cut short is left out."""
        return self.finish_runs()[0]

    def finish_runs(self) -> tuple[str, list[tuple[int, str]]]:
        """As `finish`, with (characters, source) of each stretch of the text."""
        self._ready += self._held
        self._held = ""
        return self.take_runs()

    def _open_stop(self, text: str) -> int:
        """Length of the longest end of `text` that a stop string begins with."""
        longest = max(map(len, self._stops)) - 1
        for n in range(min(longest, len(text)), 0, -1):
            if any(s.startswith(text[-n:]) for s in self._stops):
                return n
        return 0
