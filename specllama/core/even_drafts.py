"""Drafts of several texts on recurrent states, which llama.cpp rolls back only where a decode ends with them.

It computes texts with equally many rows together, those with fewer before, and may move a state afterwards,
without the earlier ones that a rollback needs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from specllama.core.policy.base import Draft


def make_even(drafts: Mapping[int, Draft], without: Collection[int] = ()) -> None:
    """Truncate all drafts to the length that keeps most tokens. Shorter drafts are dropped, and so are those
    of the sequences `without`, which decode other rows as well.
    """
    lengths = {seq: 0 if seq in without else len(draft.tokens) for seq, draft in drafts.items()}
    length = max(lengths.values(), key=lambda n: (n * sum(m >= n for m in lengths.values()), n), default=0)
    for seq, draft in drafts.items():
        n = length if lengths[seq] >= length else 0
        draft.n_discarded += len(draft.tokens) - n
        draft.cut(n)
