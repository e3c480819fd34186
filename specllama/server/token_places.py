"""Which characters of an output each token wrote, so that figures of tokens stay with their text.

A token's bytes may end within a character, which a later token completes; text is held back, split into
reasoning, text and calls, and some of it is left out. So the characters are labelled with the number of the
token that completed them: the label takes the place of the source in the runs that go through the splitters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from specllama.client.protocol import PositionLogprobs
from specllama.server.events import Runs

_BETWEEN = ":"  # a label is the token's number and the source


class TokenPlaces:
    """The tokens of one output whose characters have not been taken yet."""

    def __init__(self) -> None:
        self._n_groups = 0
        self._groups: dict[int, list[PositionLogprobs]] = {}  # tokens by the number of the one that has text
        self._lengths: deque[tuple[int, int]] = deque()  # (number, characters that have not arrived)
        self._open: list[PositionLogprobs] = []  # tokens after the last one that completed a character

    def push(self, entries: Sequence[PositionLogprobs]) -> None:
        """Add the next tokens. Those that complete no character belong to the next one that does."""
        for entry in entries:
            self._open.append(entry)
            if entry.length:
                self._groups[self._n_groups], self._open = self._open, []
                self._lengths.append((self._n_groups, entry.length))
                self._n_groups += 1

    def label(self, runs: Runs) -> list[tuple[int, str]]:
        """The runs of the next text, labelled."""
        found = []
        for n, source in runs:
            while n > 0 and self._lengths:
                number, left = self._lengths[0]
                part = min(n, left)
                found.append((part, f"{number}{_BETWEEN}{source}"))
                n -= part
                if part == left:
                    self._lengths.popleft()
                else:
                    self._lengths[0] = number, left - part
            if n > 0:
                found.append((n, source))
        return found

    def take(self, runs: Runs) -> tuple[list[tuple[int, str]], list[PositionLogprobs]]:
        """The runs of a text without labels, and the tokens that wrote it. A token is returned once, with the
        first text that has characters of it.
        """
        plain: list[tuple[int, str]] = []
        entries: list[PositionLogprobs] = []
        for n, label in runs:
            number, between, source = label.partition(_BETWEEN)
            if between:
                entries += self._groups.pop(int(number), ())
            source = source if between else label
            if plain and plain[-1][1] == source:
                plain[-1] = plain[-1][0] + n, source
            else:
                plain.append((n, source))
        return plain, entries

    def rest(self) -> list[PositionLogprobs]:
        """The tokens at the end of the output that complete no character; none after text that was left out,
        such as a stop string.
        """
        return [] if self._lengths else self._open
