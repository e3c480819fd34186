"""Which sequences of a recurrent context can be rolled back after a decode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile


def rows_to_roll_back(seq_ids: Sequence[int], max_rollback: int, n_at_once: int) -> dict[int, int]:
    """Rows of each sequence that can be rolled back after a decode of rows of these sequences, by seq_id:
    of those that it ended with, all at once. max_rollback: states kept; n_at_once: n_ubatch.

    llama.cpp computes sequences with equally many rows at once and those with fewer before
    (llama_batch_allocr::split_equal). To make room it moves the states of others, without the earlier ones
    that a rollback needs.
    """
    counts = list(Counter(seq_ids).items())  # in the order of their first rows
    if len(counts) == 1:
        return dict(counts)
    n, widest = counts[-1][1], max(n for _, n in counts)
    ending = list(takewhile(lambda count: count[1] == n, reversed(counts)))
    if widest - n > max_rollback or len(ending) * n > n_at_once:
        return {}  # one with more rows may have been computed partly with them, or not all at once
    return dict(ending)
