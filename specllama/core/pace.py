"""How often thinking of a draft is worth its own time.

Beside a target that decodes in less than a millisecond, a fast machine's or a small one, the time that it
takes to look through the text for something to copy is a part of the round that can be felt.
"""

from __future__ import annotations

SHARE = 0.02  # of plain decoding, that thinking in vain may take in the long run
GROWTH = 1.25  # of what thinking is believed to take, at most, from one time to the next: clocks are noisy


class Pace:
    """Counts the rounds in which nobody thinks: none after a thought that led to a draft; after one that was
    in vain as many as make up for it, but no more than there were in vain on end, so that a text in which
    drafts have paid is watched closely.
    """

    def __init__(self) -> None:
        self._in_vain = self._left = 0
        self._seconds = float("inf")

    def rests(self) -> bool:
        """Whether to let the round at hand go by."""
        if not self._left:
            return False
        self._left -= 1
        return True

    def thought(self, seconds: float, plain_seconds: float, in_vain: bool) -> None:
        """Thinking took so long, and a plain round takes plain_seconds."""
        self._seconds = min(seconds, GROWTH * self._seconds)
        self._in_vain = self._in_vain + 1 if in_vain else 0
        self._left = min(self._in_vain, int(self._seconds / (SHARE * plain_seconds)))
