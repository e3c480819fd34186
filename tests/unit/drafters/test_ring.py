"""The ring of earlier texts: which occurrences it finds, when they are overwritten, and its memory."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.drafters.ngrams import N_CANDIDATES, N_GRAM, NO_TOKEN, Ring

texts = st.lists(st.lists(st.integers(0, 3), max_size=30), max_size=8)


def indexed(ring: Ring, *added: list[int]) -> Ring:
    for text in added:
        ring.add(text)
    while ring.index_pending(1000):
        pass
    return ring


@given(texts, st.integers(3, 7), st.integers(1, 9), st.sampled_from([0, 2**32 - 30, 2**33]))
def test_finds_the_same_occurrences_as_a_full_search(added, bits, piece, start) -> None:
    """However the texts are divided into pieces and wherever positions wrap."""
    ring = Ring(bits)
    ring.end = start
    ids: list[int] = []
    for text in added:
        ring.add(text)
        while ring.index_pending(piece):
            pass
        kept = text[-(ring.size - 1) :]
        ids += [NO_TOKEN, *kept] if kept else []
    assert ring.end - start == len(ids)
    n_overwritten = max(0, len(ids) - ring.size)
    expected = [NO_TOKEN] * n_overwritten + ids[n_overwritten:]
    assert [ring[start + i] for i in range(len(ids))] == expected
    for end in range(N_GRAM, len(ids) + 1):
        gram = ids[end - N_GRAM : end]
        if NO_TOKEN in gram:
            continue
        same = [e for e in range(len(ids), N_GRAM - 1, -1) if ids[e - N_GRAM : e] == gram]
        kept = [start + e for e in same if len(ids) - e <= ring.size - N_GRAM]
        assert ring.ends(*gram) == kept[:N_CANDIDATES]


def test_ids_never_written_are_not_found() -> None:
    ring = indexed(Ring(), [1, 2, 3, 4])
    assert ring.ends(2, 3, 5) == []
    assert Ring().ends(1, 2, 3) == Ring().ends(0, 0, 0) == []
    assert [ring[-1], ring[ring.end], ring[ring.end + 2**32]] == [NO_TOKEN] * 3
    assert list(ring[0:7]) == [NO_TOKEN, 1, 2, 3, 4, NO_TOKEN, NO_TOKEN]


def test_no_chain_is_circular_where_positions_wrap() -> None:
    ring = Ring(4)
    ring.end = 2**32 - 30
    indexed(ring, [0], [0] * 3, [0] * 11, [0] * 10 + [1])
    assert len(set(ring.ends(0, 0, 0))) == len(ring.ends(0, 0, 0)) == 8


def test_large_ids_are_distinguished() -> None:
    top = 2**20 + 5
    ring = indexed(Ring(), [top, top - 1, 9, 5], [top - 1, top, 9, 6])
    assert [ring[end] for end in ring.ends(top, top - 1, 9)] == [5]
    assert [ring[end] for end in ring.ends(top - 1, top, 9)] == [6]


def test_a_match_does_not_extend_across_two_texts() -> None:
    ring = indexed(Ring(), [1, 2], [3, 4, 5])
    assert ring.ends(1, 2, 3) == []
    assert len(ring.ends(3, 4, 5)) == 1


def test_texts_are_indexed_piece_by_piece() -> None:
    ring = Ring()
    ring.add(list(range(1000)))
    left = [1000]
    while left[-1]:
        left.append(ring.index_pending(128))
        assert len(ring) == 1 + 1000 - left[-1]
    assert [a - b for a, b in pairwise(left)] == [128] * 7 + [104]
    assert ring.index_pending(128) == 0
    assert [ring.ends(i, i + 1, i + 2) for i in (0, 125, 126, 127, 997)] == [
        [4], [129], [130], [131], [1001],
    ]  # fmt: skip


def test_the_queue_of_pending_texts_is_bounded() -> None:
    ring = Ring(4)
    for i in range(100):
        ring.add([i, i, i, i, i])
    assert ring.index_pending(0) <= ring.size
    indexed(ring)
    assert ring.ends(99, 99, 99)
    assert ring.ends(50, 50, 50) == []
    ring.add(list(range(1000)))
    indexed(ring)
    assert ring[ring.end - 1] == 999
    assert len(ring.ends(990, 991, 992)) == 1


@pytest.mark.parametrize("bits", [10, 20])
def test_the_memory_of_a_ring_is_constant(bits: int) -> None:
    ring = Ring(bits)
    arrays = (ring._ids, ring._earlier, ring._latest)
    indexed(ring, *([i % 7, i % 5, i % 3, i] * 50 for i in range(40)))
    assert all(a is b for a, b in zip(arrays, (ring._ids, ring._earlier, ring._latest), strict=True))
    assert sum(array.nbytes for array in arrays) == 8 * 2**bits + 4 * 2**20
