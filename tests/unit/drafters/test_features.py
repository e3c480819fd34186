"""Which features of a target are kept, and for which texts they count."""

from __future__ import annotations

import numpy as np

from specllama.core.interfaces import BatchRow
from specllama.drafters.feature_drafter import FeatureRows


def decoded(kept: FeatureRows, ids: list[int], first: int, seq_id: int = 0) -> None:
    batch = [BatchRow(token, first + i, seq_id, True) for i, token in enumerate(ids)]
    kept.record(batch, np.array([[first + i, token] for i, token in enumerate(ids)], np.float32))


def test_the_features_of_the_latest_tokens_are_kept() -> None:
    kept, ids = FeatureRows(1, 2, kept=4), [9, 8, 7, 6, 5, 4]
    decoded(kept, ids, 0)
    assert kept.known_from(0, ids, 6, 0) == 2
    assert kept.rows(0, 2, 6).tolist() == [[2, 7], [3, 6], [4, 5], [5, 4]]
    decoded(kept, [3], 6)
    assert kept.known_from(0, [*ids, 3], 7, 0) == 3
    assert kept.known_from(0, [*ids, 3], 7, 5) == 5


def test_those_of_rejected_drafts_do_not_count() -> None:
    kept = FeatureRows(1, 2, kept=8)
    decoded(kept, [1, 2, 3, 4], 0)  # 3 and 4 are drafted, 3 is rejected
    assert kept.known_from(0, [1, 2, 5], 2, 0) == 0
    assert kept.known_from(0, [1, 2, 5], 3, 0) == 3  # the last token is not known
    decoded(kept, [5], 2)
    assert kept.known_from(0, [1, 2, 5], 3, 0) == 0
    assert kept.known_from(0, [7, 2, 5], 3, 0) == 1


def test_sequences_are_apart() -> None:
    kept = FeatureRows(2, 2, kept=8)
    decoded(kept, [1, 2, 3], 0, seq_id=1)
    assert kept.known_from(0, [1, 2, 3], 3, 0) == 3
    assert kept.known_from(1, [1, 2, 3], 3, 0) == 0


def test_a_wide_decode_of_a_prompt_leaves_its_end() -> None:
    kept, ids = FeatureRows(1, 2, kept=4), list(range(100))
    decoded(kept, ids, 0)
    assert kept.known_from(0, ids, 100, 0) == 96
    assert kept.known_from(0, ids, 0, 0) == 0
