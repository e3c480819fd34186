"""The ring of earlier texts: what it finds, what it has forgotten, and what it takes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.drafters.ngram_index import N_CANDIDATES, N_GRAM
from specllama.drafters.ring import NOTHING, Ring

texts = st.lists(st.lists(st.integers(0, 3), max_size=30), max_size=8)


def filed(ring: Ring, *given_texts: list[int]) -> Ring:
    for text in given_texts:
        ring.add(text)
    while ring.index_pending(1000):
        pass
    return ring


@given(texts, st.integers(3, 7), st.integers(1, 9), st.sampled_from([0, 2**32 - 30, 2**33]))
def test_it_finds_what_stands_there_and_has_not_been_overwritten(wrote, bits, piece, begun) -> None:
    """As a search through everything does, however the texts are filed and wherever positions wrap."""
    ring = Ring(bits)
    ring.end = begun
    whole: list[int] = []
    for text in wrote:
        ring.add(text)
        while ring.index_pending(piece):
            pass
        kept = text[-(ring.size - 1) :]
        whole += [NOTHING, *kept] if kept else []
    assert ring.end - begun == len(whole)
    window = max(0, len(whole) - ring.size)
    assert [ring[begun + i] for i in range(len(whole))] == [NOTHING] * window + whole[window:]
    for end in range(N_GRAM, len(whole) + 1):
        run = whole[end - N_GRAM : end]
        if NOTHING in run:
            continue
        same = [e for e in range(len(whole), N_GRAM - 1, -1) if whole[e - N_GRAM : e] == run]
        kept = [begun + e for e in same if len(whole) - e <= ring.size - N_GRAM]
        assert ring.ends(*run) == kept[:N_CANDIDATES]


def test_what_was_never_written_is_not_there() -> None:
    ring = filed(Ring(), [1, 2, 3, 4])
    assert ring.ends(2, 3, 5) == []
    assert Ring().ends(1, 2, 3) == Ring().ends(0, 0, 0) == []
    assert [ring[-1], ring[ring.end], ring[ring.end + 2**32]] == [NOTHING] * 3
    assert list(ring[0:7]) == [NOTHING, 1, 2, 3, 4, NOTHING, NOTHING]


def test_no_chain_leads_round_in_a_circle_where_positions_wrap() -> None:
    ring = Ring(4)
    ring.end = 2**32 - 30
    filed(ring, [0], [0] * 3, [0] * 11, [0] * 10 + [1])
    assert len(set(ring.ends(0, 0, 0))) == len(ring.ends(0, 0, 0)) == 8


def test_large_ids_are_told_apart() -> None:
    top = 2**20 + 5
    ring = filed(Ring(), [top, top - 1, 9, 5], [top - 1, top, 9, 6])
    assert [ring[end] for end in ring.ends(top, top - 1, 9)] == [5]
    assert [ring[end] for end in ring.ends(top - 1, top, 9)] == [6]


def test_a_run_does_not_reach_from_one_text_into_the_next() -> None:
    ring = filed(Ring(), [1, 2], [3, 4, 5])
    assert ring.ends(1, 2, 3) == []
    assert len(ring.ends(3, 4, 5)) == 1


def test_texts_are_filed_piece_by_piece() -> None:
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


def test_what_waits_is_bounded_too() -> None:
    ring = Ring(4)
    for i in range(100):
        ring.add([i, i, i, i, i])
    assert ring.index_pending(0) <= ring.size
    filed(ring)
    assert ring.ends(99, 99, 99)
    assert ring.ends(50, 50, 50) == []
    ring.add(list(range(1000)))
    filed(ring)
    assert ring[ring.end - 1] == 999
    assert len(ring.ends(990, 991, 992)) == 1


@pytest.mark.parametrize("bits", [10, 20])
def test_it_never_grows(bits: int) -> None:
    ring = Ring(bits)
    before = ring.n_bytes
    filed(ring, *([i % 7, i % 5, i % 3, i] * 50 for i in range(40)))
    assert ring.n_bytes == before == 8 * 2**bits + 4 * 2**20
