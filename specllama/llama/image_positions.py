"""Positions of sequences with images whose rows have other positions than their ids.

With M-RoPE an image of n rows takes up as many positions as its longer side has rows, and all of its cells
have the first of them. Contexts count ids; here they become positions, and the other way round.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from specllama.core.interfaces import BatchRow

_MARK = b"spllimgs"  # at the end of a saved sequence with images
_RUN, _COUNT = struct.Struct("<III"), struct.Struct("<I8s")


@dataclass(frozen=True, slots=True)
class _Run:
    """The rows of an image: ids from begin to end - 1, which take up n positions."""

    begin: int
    end: int
    n: int


class ImagePositions:
    """The images of the sequences of a context, in order."""

    def __init__(self) -> None:
        self._runs: dict[int, list[_Run]] = {}

    def __bool__(self) -> bool:
        """Whether any index is not the position."""
        return bool(self._runs)

    def add(self, seq_id: int, begin: int, end: int, n_positions: int) -> None:
        """The sequence goes on with an image."""
        if n_positions != end - begin:
            self._runs.setdefault(seq_id, []).append(_Run(begin, end, n_positions))

    def position(self, seq_id: int, index: int) -> int:
        """The position of an id; of one within an image that of the next id after it."""
        before = (run for run in self._runs.get(seq_id, ()) if run.begin < index)
        return index - sum(run.end - run.begin - run.n for run in before)

    def index(self, seq_id: int, position: int) -> int:
        """How many ids a sequence has whose last cell is before `position`."""
        for run in self._runs.get(seq_id, ()):
            if position <= run.begin:
                break
            position = max(run.end, position + run.end - run.begin - run.n)
        return position

    def placed(self, rows: Sequence[BatchRow]) -> Sequence[BatchRow]:
        """The rows with positions in place of indices."""
        if not self._runs:
            return rows
        return [row._replace(pos=self.position(row.seq_id, row.pos)) for row in rows]

    def keep(self, seq_id: int, n: int) -> None:
        """The sequence has only its first n ids."""
        kept = [run for run in self._runs.pop(seq_id, ()) if run.end <= n]
        if kept:
            self._runs[seq_id] = kept

    def copy(self, src: int, dst: int, n: int) -> None:
        """Another sequence has the first n ids of this one."""
        self._runs[dst] = list(self._runs.get(src, ()))
        self.keep(dst, n)

    def saved(self, seq_id: int) -> bytes:
        """What to put after the saved state of a sequence; nothing for one without images."""
        runs = self._runs.get(seq_id, ())
        packed = b"".join(_RUN.pack(run.begin, run.end, run.n) for run in runs)
        return packed + _COUNT.pack(len(runs), _MARK) if runs else b""

    def restore(self, seq_id: int, saved: memoryview) -> int:
        """Set the images of a sequence to those after a saved state; returns the bytes of the state alone."""
        self._runs.pop(seq_id, None)
        end = len(saved) - _COUNT.size
        n, mark = _COUNT.unpack_from(saved, end) if end >= 0 else (0, b"")
        if mark != _MARK or not 0 < n * _RUN.size <= end:
            return len(saved)
        begin = end - int(n) * _RUN.size
        self._runs[seq_id] = [_Run(*run) for run in _RUN.iter_unpack(saved[begin:end])]
        return begin
