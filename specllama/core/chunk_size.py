"""How many rows of a prompt are evaluated in one decode. Knows no sequences but their lengths."""

from __future__ import annotations

from math import inf

from specllama.core.interfaces import Context
from specllama.core.prefill_cost import PrefillCost

CHUNK = 64  # rows; kernels round groups of this size the same way in a decode of any width
CHUNK_GROWTH = 2  # at most: a chunk much larger than the one that was timed may take longer than predicted
UNSHARED_CHUNK = 1.5  # factor on the time of a prefill chunk for which no other sequence has to wait


class ChunkSize:
    """Sizes of prefill chunks in a target context, by what earlier ones took. prefill_seconds: target time of
    a chunk while other sequences wait.
    """

    def __init__(self, target: Context, prefill_seconds: float) -> None:
        self.target, self.prefill_seconds = target, prefill_seconds
        self._cost = PrefillCost()
        self._timed_rows = CHUNK  # of the decode of which that was measured

    @property
    def row_seconds(self) -> float | None:
        """Seconds of a row of a prompt, None before one was evaluated."""
        return self._cost.row_seconds

    @property
    def least_seconds(self) -> float:
        """Predicted seconds of the smallest chunk, 0 before one was evaluated."""
        return CHUNK * (self.row_seconds or 0.0)

    def observe(self, first: int, n: int, seconds: float) -> None:
        """A chunk of n rows took so many seconds. first: the position of its first row."""
        if n >= CHUNK or self.row_seconds is None:  # in a small chunk a row costs more
            self._cost.observe(first, n, seconds)
            self._timed_rows = max(n, CHUNK)

    def n_rows(
        self, first: int, rest: int, most_seconds: float = inf, round_seconds: float | None = None
    ) -> int:
        """Rows of the next chunk of a prompt. first: the position of its first row. rest: rows that are left.
        most_seconds: what the chunk may take. round_seconds: of the round that waits meanwhile; None: nothing
        waits.
        """
        if round_seconds is None:
            return self._closest(rest, UNSHARED_CHUNK * self.prefill_seconds, most_seconds, inf)
        # with their own round, the generations that wait see a gap of prefill_seconds at most
        longest = self.prefill_seconds - min(round_seconds, self.prefill_seconds / 2)
        fitting = self._cost.rows_within(first, longest)
        n = self._closest(rest, self.prefill_seconds, most_seconds, fitting)
        most_rows = CHUNK_GROWTH * self._timed_rows
        return n if n <= most_rows else most_rows // CHUNK * CHUNK

    def _closest(self, rest: int, seconds: float, most: float, fitting: float) -> int:
        """With `rest` rows left, the multiple of CHUNK whose predicted time is closest to `seconds`, at most
        `most` seconds and `fitting` rows, but CHUNK at least.

        The last decode has CHUNK rows plus the remainder (without the rows beyond a multiple of row_multiple,
        which follow by themselves), however fast the machine is: rounding depends on the width of the decode,
        and the same prompt must give the same logits.
        """
        n_batch = self.target.n_batch
        if rest < 2 * CHUNK or n_batch < 2 * CHUNK:
            n, multiple = min(rest, n_batch), self.target.row_multiple
            return n - n % multiple if n > multiple else n
        before_last = (rest // CHUNK - 1) * CHUNK
        timed = CHUNK
        if self.row_seconds is not None:
            one = self.row_seconds * CHUNK
            timed = max(1, round(seconds / one if seconds < most else max(0.0, most) // one)) * CHUNK
        timed = max(CHUNK, int(min(timed, fitting)) // CHUNK * CHUNK)
        return min(before_last, timed, n_batch // CHUNK * CHUNK)
