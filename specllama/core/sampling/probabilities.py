"""Probabilities of tokens in the softmax of a raw row of logits, whatever the sampling parameters."""

from __future__ import annotations

import math

import numpy as np

from specllama.core.interfaces import Row
from specllama.core.sampling.top_k import top_ids


def probability(row: Row, token: int) -> float:
    """The token's probability in the softmax of the raw row."""
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
