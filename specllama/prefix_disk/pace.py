"""How fast states are written, which is bounded, and how fast they are read, which is measured.

Knows no files but to sync them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from specllama.stored_figures import moved

SYNC_BYTES = 32 << 20  # written between two syncs, so that no long one follows at the end
LOAD_RATE = 1e9  # bytes a second, until it is measured
_OPEN_SECONDS = 0.002  # of opening a file and checking its header
LEAST_MEASURED = 1 << 20  # bytes, from which on a read tells the rate
_NEWEST_SHARE = 0.3  # of the last read in the measured rate
_MOST_OFF = 3.0  # times longer or shorter than predicted, as which one read counts at most
_RATES = (1e6, 1e11)  # bytes a second that a disk can have


class AbandonedError(Exception):
    """The store is closed; what is being written is given up."""


class WritePace:
    """A bound in bytes a second, lifted while somebody waits for the end of writing."""

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._rate, self._clock = rate, clock
        self._changed = threading.Condition()
        self._hurry = self._abandoned = False

    def hurry(self, on: bool) -> None:
        """Whether somebody waits for what is being written."""
        with self._changed:
            self._hurry = on
            self._changed.notify_all()

    def abandon(self) -> None:
        """End what is being written, now and later."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()

    def start(self, number: int) -> Callable[[int], None]:
        """A function for a new file, to be called with the bytes of each block that has been written to it:
        it waits, and syncs the file. It raises AbandonedError, OSError. number: a descriptor.
        """
        last, unsynced, allowed = self._clock(), 0, 0.0  # allowed: bytes, negative before a wait

        def written(n_bytes: int) -> None:
            nonlocal last, unsynced, allowed
            unsynced += n_bytes
            if unsynced >= SYNC_BYTES:
                os.fsync(number)
                unsynced = 0
            now = self._clock()
            allowed = min(0.0, allowed + (now - last) * self._rate) - n_bytes
            last = now
            with self._changed:
                self._changed.wait_for(lambda: self._hurry or self._abandoned, -allowed / self._rate)
                if self._abandoned:
                    raise AbandonedError

        return written


class LoadRate:
    """Seconds a byte as measured, in which slow reads count more than in bytes a second. rate: as stored by
    an earlier process, 0 if it is not known.
    """

    def __init__(self, rate: float = 0.0) -> None:
        self.measured = rate > 0
        self._per_byte = 1 / min(max(rate, _RATES[0]), _RATES[1]) if self.measured else 1 / LOAD_RATE

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return 1 / self._per_byte

    @property
    def is_slow(self) -> bool:
        """Whether states may not be read because of this rate, so that it would never be measured again."""
        return self.rate < LOAD_RATE / _MOST_OFF

    def seconds(self, n_bytes: int) -> float:
        """That reading so many bytes is predicted to take."""
        return _OPEN_SECONDS + n_bytes * self._per_byte

    def add(self, n_bytes: int, seconds: float) -> None:
        """So many bytes were read. A read that has stalled counts as a slow one."""
        if n_bytes >= LEAST_MEASURED and seconds > 0:
            share = _NEWEST_SHARE if self.measured else 1.0
            self._per_byte = moved(self._per_byte, seconds / n_bytes, share, _MOST_OFF)
            self.measured = True

    def tried(self, n_bytes: int, seconds: float) -> None:
        """So many bytes were read to find out whether the disk is faster than the rate says."""
        if n_bytes >= LEAST_MEASURED and seconds > 0:
            self._per_byte = min(self._per_byte, max(seconds / n_bytes, 1 / _RATES[1]))
            self.measured = True
