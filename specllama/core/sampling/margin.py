"""How far a row of logits would have to change for another choice.

A change moves every logit by less than half of the margin; then the chosen token is certain to stay the
chosen one. Tokens change places, and the truncation keeps another number of them, only as far as this
allows. Knows the rule of sampling.py, not the noise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


def truncation_slack(values: Values, top_k: int, floor: float, top_p: float, whole: float) -> Values:
    """How much the row must change until truncation decides otherwise at each position of the sorted values.

    Positive where the position is kept. top_k: 0 for no limit. floor: what lies below is cut off. whole:
    the mass that top_p is a share of, relative to that of the best. A change of m in a difference of logits
    changes the odds of any set of tokens by a factor of at most exp(m).
    """
    found = values - floor
    if top_p < 1:
        before = np.concatenate(((0.0,), np.cumsum(np.exp(values - values[0]))[:-1]))
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.minimum(found, _logit(np.asarray(top_p)) - _logit(np.minimum(before / whole, 1.0)))
    if top_k:
        found[top_k:] = -np.inf
    found[0] = np.inf
    return found


def choice_margin(values: Values, scores: Values, slack: Values, kept: int, best: int) -> float:
    """The margin of the choice at `best` among sorted candidates, the first `kept` of which survived.

    scores: values with their noise, in logits. slack: see `truncation_slack`. A token leaves or enters the
    truncation by reaching a position that is decided otherwise: it has to pass the values in between, and the
    position may have to change.
    """
    slack = np.concatenate((np.maximum(slack[:kept], 0.0), np.minimum(slack[kept:], 0.0)))
    leaving = np.maximum(values[best] - values[best:], slack[best:])
    gap = float(leaving[1:].min(initial=leaving[0]))
    rivals = np.concatenate((scores[:best], scores[best + 1 : kept]))
    gap = min(gap, float(scores[best] - rivals.max(initial=-np.inf)))
    if kept < len(values):
        outside = values[kept:]
        # values + slack falls along the positions: the cheapest way in is next to where it meets the value.
        at = np.searchsorted(-(values + slack), -outside, side="left")
        entering = np.minimum(
            np.maximum(values[at] - outside, -slack[at]),
            np.maximum(values[at - 1] - outside, -slack[at - 1]),
        )
        gap = min(gap, float(np.maximum(entering, scores[best] - scores[kept:]).min()))
    return gap


def _logit(p: Values) -> Values:
    return np.log(p) - np.log1p(-p)
