"""Images among the ids of a prompt: placeholder ids, which no vocabulary has, and what is decoded for them.

An image is a run of ids that are equal for equal images and settings, so that the prefix store,
conversations and files of prefix states compare them like those of text. A run is used whole or not at all:
its rows may see each other, and their positions need not be those of its ids (M-RoPE).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

FIRST_PLACEHOLDER = 1 << 30  # of all ids from here on; vocabularies have less than a million
_BEGIN = 1 << 29  # set in the first id of a run


def placeholder_ids(key: bytes, n_rows: int) -> list[int]:
    """The ids of an image, or of a part of it that is decoded apart. key: equal for equal images, parts and
    settings of the encoder. n_rows: at least 1.
    """
    words = np.frombuffer(hashlib.shake_256(key).digest(4 * n_rows), "<u4") & (_BEGIN - 1) | FIRST_PLACEHOLDER
    words[0] |= _BEGIN
    ids: list[int] = words.tolist()
    return ids


def image_runs(ids: Sequence[int]) -> list[tuple[int, int]]:
    """(begin, end) of each image among these ids, in order; two that follow each other are two runs."""
    if not len(ids) or max(ids) < FIRST_PLACEHOLDER:
        return []
    values = np.asarray(ids)
    is_image = values >= FIRST_PLACEHOLDER
    begins = np.flatnonzero(is_image & (values & _BEGIN != 0))
    ends = np.flatnonzero(is_image & ~np.append(is_image[1:] & (values[1:] & _BEGIN == 0), False)) + 1
    return list(zip(begins.tolist(), ends.tolist(), strict=True))


def is_begin(token: int) -> bool:
    """Whether an image begins with this id."""
    return token >= FIRST_PLACEHOLDER and bool(token & _BEGIN)


def whole_runs(ids: Sequence[int] | NDArray[np.int32], n: int) -> int:
    """The first n ids without those of an image that does not end there."""
    if not 0 < n < len(ids) or ids[n] < FIRST_PLACEHOLDER or ids[n] & _BEGIN:
        return n
    return next(i for i in range(n - 1, -1, -1) if ids[i] & _BEGIN)


def without_images(ids: Sequence[int], separator: int | None = None) -> list[int]:
    """The ids of text, with the separator in place of each image if there is one."""
    if not len(ids) or max(ids) < FIRST_PLACEHOLDER:
        return list(ids)
    begins = () if separator is None else (separator,)
    return [t for i in ids for t in ((i,) if i < FIRST_PLACEHOLDER else begins if i & _BEGIN else ())]


@dataclass(frozen=True, slots=True, eq=False)
class ImageEmbeddings:
    """What is decoded in place of the tokens of a run. rows: shape (number of rows, n_embd). positions: from
    that of the first row to those of all rows, shape (4, number of rows) as M-RoPE has them; None: one after
    the other. n_positions: that the run takes up, as many as rows without M-RoPE. causal: whether a row sees
    the rows before it alone, else all rows of the run.
    """

    rows: NDArray[np.float32]
    positions: Callable[[int], NDArray[np.int32]] | None
    n_positions: int
    causal: bool


class ImageRows(Protocol):
    """A run in a prompt, which is encoded in another thread."""

    @property
    def begin(self) -> int:
        """Index of its first id."""

    @property
    def end(self) -> int:
        """Index of the id after it."""

    def encoded(self) -> ImageEmbeddings | None:
        """What to decode; None while it is being encoded, which begins with the first call: before, decodes
        would only share the cores with it. Raises EngineError.
        """
