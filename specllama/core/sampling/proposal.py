"""The proposal of a draft model or a head from a row of its logits: its choice, and what it would choose if
it could not choose that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from specllama.core.interfaces import Alternative, DecodeError, Mask, Proposal, Row, Sampler
from specllama.core.sampling import native
from specllama.core.sampling.rows import top_ids
from specllama.core.sampling.sampler import NOTHING_LEGAL


def probability(row: Row, token: int) -> float:
    """The token's probability in the softmax of the raw row."""
    if (known := native.probability(row, token)) is not None:
        return known
    weights = row - row.max()
    np.exp(weights, out=weights)
    return float(weights[token] / weights.sum())


def top_logprobs(row: Row, token: int, n: int) -> tuple[float, list[tuple[int, float]]]:
    """Natural-log probability of the token in the softmax of the raw row, and the n most likely (id, log
    probability), best first.
    """
    top = float(row.max())
    log_sum = top + math.log(float(np.exp(row - np.float32(top)).sum(dtype=np.float64)))
    ids = top_ids(row, min(n, len(row))) if n else ()
    return float(row[token]) - log_sum, [(int(i), float(row[i]) - log_sum) for i in ids]


CERTAIN = 0.95  # a first choice this likely leaves no second one that would pay for its row


def propose(
    sampler: Sampler,
    row: Row,
    history: Sequence[int],
    mask: Mask | None = None,
    ahead: Sequence[int] = (),
    *,
    confident: bool = True,
    alternatives: bool = False,
) -> Proposal | None:
    """The choice after `history` and `ahead`, with its probability in the softmax of the row; None where the
    grammar leaves no token. row: as for `Sampler.choose`. confident: False for a confidence of 1 (0.07 ms
    less at a vocabulary of 128k). alternatives: with a second choice, where the first is not almost certain.
    """
    token = sampler.choose(row, history, mask=mask, ahead=ahead).token
    if token == NOTHING_LEGAL:
        return None
    chance = probability(row, token) if confident or alternatives else 1.0
    other = None
    if alternatives and chance < CERTAIN:
        other = _second(sampler, row, token, history, mask, ahead)
    return Proposal(token, chance if confident else 1.0, other)


def _second(
    sampler: Sampler, row: Row, first: int, history: Sequence[int], mask: Mask | None, ahead: Sequence[int]
) -> Alternative | None:
    """The choice without the token `first`; None where there is none."""
    kept = row[first]
    row[first] = -np.inf
    try:
        token = sampler.choose(row, history, mask=mask, ahead=ahead).token
    except DecodeError:  # no other token can be chosen
        return None
    finally:
        row[first] = kept
    return None if token in (NOTHING_LEGAL, first) else Alternative((token,), probability(row, token))
