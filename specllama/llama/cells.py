"""The order of cells in the saved state of a sequence, and the positions of cells where images have others
than their ids.

llama.cpp saves cells in the order of the cache, and restores them in this order. Attention sums cells in the
order in which they were written (native/cell_order.h), or in that of the cache, so a text whose cells are not
in the order of its tokens, as in the ring of a sliding window, would be rounded differently afterwards. Here
they are put into the order of their positions. Knows the format of llama-kv-cache.cpp (`state_write`), and
leaves whatever it does not know as it is.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import BatchRow

_HEADER = 8  # bytes: magic number, sequence
_EXT_BYTES = (0, 12)  # of a cell's llama_kv_cell_ext, which models with M-RoPE have
_MAX_LAYERS, _MAX_ROW = 4096, 1 << 24
_Bytes = NDArray[np.uint8]


class _UnknownFormatError(Exception):
    """The bytes are not those of a KV cache."""


class _Reader:
    """Reads fields from `at` on."""

    def __init__(self, data: _Bytes, at: int) -> None:
        self.data, self.at = data, at

    def take(self, size: int) -> _Bytes:
        if size < 0 or self.at + size > len(self.data):
            raise _UnknownFormatError
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, form: str = "<I") -> int:
        return int(struct.unpack(form, self.take(struct.calcsize(form)).tobytes())[0])


def order_cells(state: bytearray | mmap.mmap) -> None:
    """Put the cells of the KV caches in a saved sequence into the order of their positions, in place."""
    data = np.frombuffer(state, np.uint8)
    at = _HEADER
    try:
        while at < len(data):
            at = _order_cache(data, at)
    except _UnknownFormatError:
        return


def _order_cache(data: _Bytes, at: int) -> int:
    """Order the cells of the cache that begins there; where it ends. Raises _UnknownFormatError."""
    reader = _Reader(data, at)
    if reader.number() != 1:  # streams
        raise _UnknownFormatError
    n = reader.number()
    if not n:
        return reader.at
    metadata, order = _metadata(reader, n)
    blocks = _blocks(reader, n)
    if not np.array_equal(order, np.arange(n)):
        metadata[:] = metadata[order]
        for block, by_element in blocks:
            block[:] = block[:, order] if by_element else block[order]
    return reader.at


def _metadata(reader: _Reader, n: int) -> tuple[_Bytes, NDArray[np.intp]]:
    """(The metadata of n cells, one a row; the cells in the order of their positions.)"""
    begin = reader.at
    for ext in _EXT_BYTES:
        reader.at, width = begin, 12 + ext
        rows = reader.take(n * width).reshape(n, width)
        fields = np.ascontiguousarray(rows).view(np.int32)
        places = fields[:, (0, 3, 2)] if ext else fields[:, :1]  # cells of an image differ in y and x
        of_one = (fields[:, 1] == 1).all() and (fields[:, -1] == fields[0, -1]).all()
        if of_one and (places >= 0).all() and len(np.unique(places, axis=0)) == n:
            return rows, np.lexsort(places.T[::-1])
    raise _UnknownFormatError


def _blocks(reader: _Reader, n: int) -> list[tuple[_Bytes, bool]]:
    """The data of n cells: (bytes, whether they are stored by element: shape (elements, n, bytes), else (n,
    bytes)).
    """
    transposed, n_layer = reader.number(), reader.number()
    if transposed > 1 or not 1 <= n_layer <= _MAX_LAYERS:
        raise _UnknownFormatError
    blocks = list[tuple[_Bytes, bool]]()
    for _ in range(n_layer):
        blocks.append((_rows(reader, n), False))
    if _has_values(reader, n, bool(transposed)):
        for _ in range(n_layer):
            blocks.append((_elements(reader, n), True) if transposed else (_rows(reader, n), False))
    return blocks


def _has_values(reader: _Reader, n: int, transposed: bool) -> bool:
    """Whether values follow the keys; caches of latent attention have none."""
    at = reader.at
    try:
        _elements(reader, n) if transposed else _rows(reader, n)
    except _UnknownFormatError:
        return False
    finally:
        reader.at = at
    return True


def _rows(reader: _Reader, n: int) -> _Bytes:
    kind, size = reader.number("<i"), reader.number("<Q")
    if not 0 <= kind < 64 or not 1 <= size <= _MAX_ROW:
        raise _UnknownFormatError
    return reader.take(n * size).reshape(n, size)


def _elements(reader: _Reader, n: int) -> _Bytes:
    kind, size, n_elements = reader.number("<i"), reader.number(), reader.number()
    if not 0 <= kind < 64 or not 1 <= size <= 16 or not 1 <= n_elements <= _MAX_ROW:
        raise _UnknownFormatError
    return reader.take(n_elements * n * size).reshape(n_elements, n, size)


# With M-RoPE an image of n rows takes up as many positions as its longer side has rows, and all of its cells
# have the first of them. Contexts count ids; here they become positions, and the other way round.


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
