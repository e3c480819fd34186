"""llama.cpp's `infill` sampling step, for text that fills a gap: it ends early rather than late.

A function of the candidates alone, so that drafts do not change the text. Knows the candidates that
truncation has kept, and their scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import SampledToken

_LEAST = 0.2  # probability below which a candidate is dropped
_END_WEIGHT = 3  # the text ends if this times the end tokens' probability, per candidate, exceeds the rest


@dataclass(frozen=True, slots=True)
class InfillRule:
    """The step for one vocabulary. end_ids: tokens that end a text, end_id: the one for where no candidate
    is likely. piece: from a token to its bytes, empty for control tokens.
    """

    end_ids: Collection[int]
    end_id: int
    piece: Callable[[int], bytes]

    def choose(
        self,
        ids: NDArray[np.int64],
        values: NDArray[np.float64],
        scores: NDArray[np.float64],
        legal: NDArray[np.bool_] | None = None,
    ) -> SampledToken | None:
        """The survivor with the highest score, among the legal ones; None where none is legal.

        ids, values: as for `survivors`. scores: logits with noise. legal: by token; None: all are.
        """
        kept, margin = self.survivors(ids, values)
        if legal is not None:
            kept = [i for i in kept if ids[i] < len(legal) and legal[ids[i]]]
            if not kept:
                return None
        if not kept:
            return SampledToken(self.end_id, margin)
        rest = scores[kept]
        best = int(rest.argmax())
        lead = float(rest[best] - np.delete(rest, best).max(initial=-math.inf))
        return SampledToken(int(ids[kept[best]]), min(margin, lead))

    def survivors(
        self, ids: NDArray[np.int64], values: NDArray[np.float64], n: int = 0
    ) -> tuple[list[int], float]:
        """Indices of the candidates that remain, none where the text has to end with `end_id`, and the margin
        of that decision: a change of all logits by less than half of it leaves it as it is.

        ids, values: tokens and logits, the largest first, same shape. n: the number of candidates, where more
        of them than these cannot be chosen. Candidates that truncation has cut off
        are not considered in the margin: the last ones have little probability.
        """
        weights = np.exp(values - values[0])
        p: list[float] = (weights / weights.sum()).tolist()
        tokens: list[int] = ids.tolist()
        is_end = [token in self.end_ids for token in tokens]
        p_end = sum(chance for chance, end in zip(p, is_end, strict=True) if end)
        p_text = sum(p) - p_end if p_end else 1.0
        margin = math.inf
        if p_end:
            excess = _END_WEIGHT * p_end * (n or len(p))
            if excess > p_text:
                margin = math.log(excess / p_text) if p_text > 0 else math.inf
                return [i for i, end in enumerate(is_end) if end], margin
            margin = math.log(p_text / excess)
        merged = self._merge(tokens, p)
        margin = min(margin, merged)
        kept, close = _at_least(_LEAST, range(len(p)), p, is_end)
        margin = min(margin, close)
        n_text = sum(not is_end[i] for i in kept)
        if not n_text:
            return [], margin
        total = sum(p[i] for i in kept)
        kept, close = _at_least(total / (n_text + 1), kept, p, is_end)
        return kept, min(margin, close)

    def _merge(self, tokens: list[int], p: list[float]) -> float:
        """Where a token's text begins another's, add the probability of the less likely one to the other and
        set its own to 0. Returns the margin of these decisions.
        """
        pieces = [self.piece(token) for token in tokens]
        pairs: list[tuple[int, int]] = []
        open_: list[int] = []  # those whose texts begin the one at hand; in order, they come before it
        for i in sorted((i for i, text in enumerate(pieces) if text), key=pieces.__getitem__):
            while open_ and not pieces[i].startswith(pieces[open_[-1]]):
                open_.pop()
            for short in open_:
                pairs.append((short, i))
                if pieces[short] == pieces[i]:
                    pairs.append((i, short))
            open_.append(i)
        margin = math.inf
        for i, j in sorted(pairs):
            if p[i] and p[j]:
                margin = min(margin, abs(math.log(p[i] / p[j])))
                into, gone = (j, i) if p[j] > p[i] else (i, j)
                p[into], p[gone] = p[into] + p[gone], 0.0
        return margin


def _at_least(
    least: float, among: Collection[int], p: list[float], is_end: list[bool]
) -> tuple[list[int], float]:
    """The indices with a probability of at least `least`, end tokens whatever theirs is, and the margin."""
    kept = [i for i in among if p[i] and (is_end[i] or p[i] >= least)]
    close = (abs(math.log(p[i] / least)) for i in among if p[i] and not is_end[i])
    return kept, min(close, default=math.inf)
