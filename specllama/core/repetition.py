"""Whether a text goes on repeating itself, which small models do until the context is full.

Decided from the tokens alone, so that a text ends at the same one with every draft and without. A cycle need
not be exact: sampling varies the order of the same few sentences. What has a new token in every period, as
counting, the rows of a table, or objects with ids have, is none: whatever the period, n tokens then have
about 2 * sqrt(RUN * n) different runs of RUN tokens or more.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

RUN = 16  # tokens
MOST_RUNS = 128  # different runs of RUN tokens in a text that repeats itself
NOTICED, ENDED = 512, 1024  # repeated tokens after which a note is shown; after which the text ends
EVERY = 128  # tokens between two looks, which take 0.2 ms


def repeats(ids: Sequence[int], n: int) -> bool:
    """Whether the last n ids, of at least as many, are a repetition."""
    if len(ids) < n:
        return False
    tail = array("i", ids[len(ids) - n :])
    size, data = RUN * tail.itemsize, tail.tobytes()
    runs = {data[at : at + size] for at in range(0, len(data) - size + 1, tail.itemsize)}
    return len(runs) <= MOST_RUNS
