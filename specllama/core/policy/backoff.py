"""When the planner looks away, because looking takes too long beside the decode that it is for.

Looking for something to draft takes the planner some 0.1 ms a round. Beside a decode of 20 ms that is
nothing; beside one of 0.6 ms it would be a sixth of it, round by round, where nothing is found. So it looks
away for a while, each time for longer, as an Ethernet station that met others waits for longer before it
tries again (Metcalfe and Boggs 1976); drafters that know for nearly nothing that they have something are
heard in between. Knows no drafters and no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

MINDED = 0.02  # of plain decoding; looking that takes less is never left out
SHARE = 0.005  # of it that looking takes in the end where it finds nothing
UP, DOWN = 0.1, 0.5  # rates of an average of what looking takes, at longer and at shorter times
MOST_OFF = 3.0  # a longer time counts as so often the average
AWAKE, AWAKE_BEHIND = 2, 4  # rounds in which nothing is won before it looks away; behind one that did win
LONGEST = 64  # rounds looked away from on end
LISTENING = 8  # after so many of them the drafters are told what came, and may call


class Naps:
    """Looks away for as many rounds as bring what looking takes down to SHARE; never where it takes no more
    than MINDED.

    asleep: in the round at hand. slept: rounds since the last one that was looked at. missed: by sequence,
    what the drafters were not told yet.
    """

    def __init__(self) -> None:
        self.asleep, self.slept = False, 0
        self._left, self._length, self._idle, self._bar = 0, 0, 0, 0
        self._seconds = 0.0  # average of a round's looking, low rather than high
        self._begins = True  # a text, and its prompt is looked at
        self._now = 0.0  # of the round at hand
        self.missed: dict[int, list[int]] = {}

    def start(self, seq_id: int) -> None:
        """A text begins. What looking at its prompt takes is not taken again."""
        self.missed.pop(seq_id, None)
        self._left = self._length = self._idle = self._bar = 0
        self._begins, self.slept = True, 0

    @property
    def listens(self) -> bool:
        """Whether the next round would be slept through, and a call in it be heard."""
        return self._left > 0 and (self.slept + 1) % LISTENING == 0

    def miss(self, seq_id: int, tokens: Sequence[int]) -> None:
        """The sequence went on with these ids while nobody looked."""
        self.missed.setdefault(seq_id, []).extend(tokens)

    def catch_up(self, seq_id: int) -> list[int]:
        """What was missed of the sequence since the last question."""
        return self.missed.pop(seq_id, [])

    def begin(self, call: int = 0, wanted: bool = True) -> bool:
        """A round begins; whether it is slept through. call: how likely something is to be found in it, as a
        bin of confidence. A call in vain is not answered again, but for louder ones. wanted: by somebody.
        """
        called = call > self._bar
        self.asleep, self._now = not wanted or (self._left > 0 and not called), 0.0
        if called:
            self._bar = call
        self._left = max(0, self._left - 1)
        self.slept += self.asleep
        return self.asleep

    def worked(self, seconds: float) -> None:
        """Looking took so long in the round at hand, drafters' models left aside."""
        self._now += seconds

    def end(self, found: bool, plain: float) -> None:
        """A round that was not slept through is over. found: something that was drafted was right. plain:
        seconds of a round without drafts.
        """
        self.slept = 0
        if self._begins:
            self._begins = False
            return
        now, before = self._now, self._seconds
        more = min(now, MOST_OFF * before) - before if before else now
        self._seconds += more * (DOWN if more < 0 else UP if before else 1)
        if found:
            self._left = self._length = self._bar = 0
            self._idle = AWAKE - AWAKE_BEHIND
            return
        self._idle += 1
        if self._left or self._idle < AWAKE or self._seconds <= MINDED * plain or plain <= 0:
            return
        most = min(LONGEST, ceil(AWAKE * self._seconds / (SHARE * plain)))
        self._length = self._left = min(most, max(LISTENING, 2 * self._length))
        self._idle, self._bar = 0, max(0, self._bar - 1)
