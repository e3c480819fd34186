"""Assigns characters of an output to the tokens that generated them, so that per-token figures stay with
their text.

The bytes of a token may end within a character, which a later token completes; text is held back, split into
reasoning, text and calls, and partly dropped. Characters are therefore labelled with the number of the token
that completed them: in the runs that pass through the splitters, the label replaces the source.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from specllama.client.protocol import PositionLogprobs
from specllama.server.events import Runs

_BETWEEN = ":"  # a label is the token's number and the source


class TokenSpans:
    """The tokens of one output whose characters have not been taken."""

    def __init__(self) -> None:
        self._n_groups = 0
        self._groups: dict[int, list[PositionLogprobs]] = {}  # tokens by the number of the one that has text
        self._lengths: deque[tuple[int, int]] = deque()  # (number, characters that have not arrived)
        self._open: list[PositionLogprobs] = []  # tokens after the last one that completed a character

    def push(self, entries: Sequence[PositionLogprobs]) -> None:
        """Add tokens. Tokens that complete no character belong to the next one that does."""
        for entry in entries:
            self._open.append(entry)
            if entry.length:
                self._groups[self._n_groups], self._open = self._open, []
                self._lengths.append((self._n_groups, entry.length))
                self._n_groups += 1

    def label(self, runs: Runs) -> list[tuple[int, str]]:
        """The runs of the next text, labelled."""
        labelled = []
        for n, source in runs:
            while n > 0 and self._lengths:
                number, left = self._lengths[0]
                part = min(n, left)
                labelled.append((part, f"{number}{_BETWEEN}{source}"))
                n -= part
                if part == left:
                    self._lengths.popleft()
                else:
                    self._lengths[0] = number, left - part
            if n > 0:
                labelled.append((n, source))
        return labelled

    def take(self, runs: Runs) -> tuple[list[tuple[int, str]], list[PositionLogprobs]]:
        """The runs of a text without labels, and the tokens that generated it. Each token is returned once,
        with the first text that has a character of it.
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
        """The last tokens of the output, which complete no character; none after dropped text such as a stop
        string.
        """
        return [] if self._lengths else self._open
