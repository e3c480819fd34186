"""The result of comparing two vocabularies (overlap.py)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Overlap:
    """The tokens that a draft shares with its target.

    to_target: the target's id of each token of the draft, -1 for those that it lacks; no id occurs twice.
    n_target: tokens of the target. may_grow: by the target's id, whether the text of a token is the beginning
    of a token that the draft lacks: what the draft spells as this token and the next one may be one token of
    the target. never_drafted: tokens of the draft that stand for no text and that the target lacks. n_shared:
    ordinary tokens in both, of the n_ordinary that the draft has.
    """

    to_target: Ids
    n_target: int
    may_grow: NDArray[np.bool_]
    never_drafted: Ids
    n_shared: int
    n_ordinary: int

    @property
    def share(self) -> float:
        """Of the draft's ordinary tokens, those that the target has too."""
        return self.n_shared / max(1, self.n_ordinary)

    @property
    def label(self) -> str:
        """What it is, for people."""
        return f"{100 * self.share:.0f} % of tokens shared"
