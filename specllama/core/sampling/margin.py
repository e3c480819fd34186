"""The margin of a choice: how much a row of logits may change without changing the chosen token.

If every logit changes by less than half of the margin, the choice is certain to stay the same, whatever
happens to the order of the other tokens and to the number that truncation keeps. Knows the truncation of
sampler.py, not the noise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


def truncation_slack(values: Values, top_k: int, floor: float, top_p: float, total_mass: float) -> Values:
    """By how much differences of logits must change before truncation decides otherwise, for each position of
    the sorted values; positive where the position is kept, negative where it is cut off. Shape of `values`.

    top_k: 0 for no limit. floor: logits below it are cut off. total_mass: the mass of which top_p keeps a
    share, relative to that of the best token. A change of m in differences of logits changes the odds of any
    set of tokens by a factor of at most exp(m).
    """
    slack = values - floor
    if top_p < 1:
        before = np.concatenate(((0.0,), np.cumsum(np.exp(values - values[0]))[:-1]))
        with np.errstate(divide="ignore", invalid="ignore"):
            slack = np.minimum(slack, _logit(np.asarray(top_p)) - _logit(np.minimum(before / total_mass, 1)))
    if top_k:
        slack[top_k:] = -np.inf
    slack[0] = np.inf
    return slack


def choice_margin(values: Values, scores: Values, slack: Values, n_kept: int, best: int) -> float:
    """The margin of the choice at index `best` of the sorted candidates, the first `n_kept` of which survived
    truncation.

    scores: values plus noise, in logits. slack: see `truncation_slack`. A token leaves or enters the kept set
    by moving to a position that truncation treats differently: it has to pass the values in between, and the
    decision at that position may have to change too.
    """
    slack = np.concatenate((np.maximum(slack[:n_kept], 0.0), np.minimum(slack[n_kept:], 0.0)))
    leaving = np.maximum(values[best] - values[best:], slack[best:])
    margin = float(leaving[1:].min(initial=leaving[0]))
    rivals = np.concatenate((scores[:best], scores[best + 1 : n_kept]))
    margin = min(margin, float(scores[best] - rivals.max(initial=-np.inf)))
    if n_kept < len(values):
        outside = values[n_kept:]
        # values + slack falls along the positions: the cheapest way in is next to where it meets the value.
        at = np.searchsorted(-(values + slack), -outside, side="left")
        entering = np.minimum(
            np.maximum(values[at] - outside, -slack[at]),
            np.maximum(values[at - 1] - outside, -slack[at - 1]),
        )
        margin = min(margin, float(np.maximum(entering, scores[best] - scores[n_kept:]).min()))
    return margin


def _logit(p: Values) -> Values:
    return np.log(p) - np.log1p(-p)
