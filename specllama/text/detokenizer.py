"""From the bytes of tokens to text: whole characters only, and stop strings never shown, not even in part."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

Runs = Sequence[tuple[int, str]]  # (characters, source) of the stretches of a text, in order


class TokenWriter:
    """Collects the text of one generation.

    piece: from a token id to its bytes (empty for control tokens). The first bytes of a character wait for
    the others; bytes that are not UTF-8 become U+FFFD; text that may begin a stop string waits until it is
    decided. Of several stop strings the one that is complete first ends the text, the longest of those that
    end at the same character. stopped_by: that stop string, else None.
    """

    def __init__(self, piece: Callable[[int], bytes], stops: Sequence[str] = ()) -> None:
        self._piece, self._stops = piece, tuple(stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._ready, self._held = "", ""
        self._sources: list[tuple[int, str]] = []  # runs of the text that was not taken yet
        self.stopped_by: str | None = None

    def push(self, token: int, source: str = "target") -> bool:
        """Add a token; True if it completes a stop string, which is left out with all that follows.

        source: the token's source, for `take_runs`: "target" or a drafter's name.
        """
        text = self._decoder.decode(self._piece(token))
        if text:
            self._sources.append((len(text), source))
        if not self._stops:
            self._ready += text
            return False
        text = self._held + text
        found = [(text.find(s) + len(s), -len(s), s) for s in self._stops if s in text]
        if found:  # the first that is complete, however the text is split into tokens
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
        """The text that is certain and was not taken before."""
        return self.take_runs()[0]

    def take_runs(self) -> tuple[str, list[tuple[int, str]]]:
        """As `take`, with the runs of the text."""
        text, self._ready = self._ready, ""
        return text, self._runs(len(text))

    def _runs(self, n: int) -> list[tuple[int, str]]:
        """The runs of the next n characters, neighbours of one source joined."""
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
        """The rest at the end of the generation, without an incomplete character."""
        return self.finish_runs()[0]

    def finish_runs(self) -> tuple[str, list[tuple[int, str]]]:
        """As `finish`, with the runs of the text."""
        self._ready += self._held
        self._held = ""
        return self.take_runs()

    def _open_stop(self, text: str) -> int:
        """Length of the longest suffix of `text` that begins a stop string."""
        longest = max(map(len, self._stops)) - 1
        for n in range(min(longest, len(text)), 0, -1):
            if any(s.startswith(text[-n:]) for s in self._stops):
                return n
        return 0
