"""The copy drafter's rules, one by one, and what must hold for any text."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.core.interfaces import Proposal
from specllama.drafters.copy import RECORD_AT_START, CopyDrafter, TokenIndex

SEQ = 3
SOURCE = list(range(100, 140))

tokens = st.integers(0, 5)  # few ids, so that texts repeat themselves
texts = st.lists(tokens, max_size=60)
commits = st.lists(st.lists(tokens, max_size=6), max_size=20)


def started(prompt: list[int]) -> CopyDrafter:
    drafter = CopyDrafter()
    drafter.start(SEQ, prompt)
    return drafter


def proposed(drafter: CopyDrafter, limit: int) -> list[int]:
    return [p.token for p in drafter.propose(SEQ, limit)]


def after(prompt: list[int], text: list[int], limit: int) -> list[int]:
    """What is proposed when the text was committed token by token."""
    drafter = started(prompt)
    for token in text:
        drafter.committed(SEQ, [token])
    return proposed(drafter, limit)


def with_names(names: list[int]) -> list[int]:
    """A text in which each name stands between twelve tokens of its own."""
    return [t for i, name in enumerate(names, 1) for t in [*range(100 * i, 100 * i + 12), name]]


def history(drafter: CopyDrafter) -> list[int]:
    return list(drafter._texts[SEQ].tokens)


class TestMatching:
    def test_goes_on_as_the_text_did_before(self) -> None:
        assert after(SOURCE, SOURCE[:3], 5) == SOURCE[3:8]

    def test_needs_three_tokens(self) -> None:
        assert after(SOURCE, SOURCE[:2], 5) == []

    @pytest.mark.parametrize("prompt", [[], [1], [1, 1], [1, 2, 3]])
    def test_proposes_nothing_without_a_repeat(self, prompt: list[int]) -> None:
        assert proposed(started(prompt), 5) == []

    def test_takes_the_longest_match_not_the_latest(self) -> None:
        prompt = [9, 1, 2, 3, 50, 0, 8, 1, 2, 3, 60, 0]
        assert after(prompt, [9, 1, 2, 3], 1) == [50]

    def test_takes_the_latest_of_equal_matches(self) -> None:
        prompt = [1, 2, 3, 50, 0, 1, 2, 3, 60, 0]
        assert after(prompt, [1, 2, 3], 1) == [60]

    def test_periodic_text_runs_on(self) -> None:
        assert proposed(started([7, 8, 9, 7, 8, 9]), 50) == [7, 8, 9] * 16 + [7, 8]

    def test_one_repeated_token_runs_on(self) -> None:
        assert proposed(started([4] * 4), 30) == [4] * 30

    def test_ids_of_the_largest_vocabulary_are_told_apart(self) -> None:
        top = 1 << 17
        assert after([top, top + 1, 9, 5, 0, 0], [top, top + 1, 9], 1) == [5]
        assert after([0, top, 9, 5, 4, 4], [1, 0, 9], 1) == []


class TestEdits:
    def test_resumes_at_once_behind_a_change(self) -> None:
        assert after(SOURCE, [*SOURCE[:10], 7], 4) == SOURCE[11:15]

    def test_resumes_behind_the_token_that_agrees_again(self) -> None:
        assert after(SOURCE, [*SOURCE[:10], 7, 8, SOURCE[11]], 4) == SOURCE[12:16]

    def test_knows_no_more_after_a_long_way_off(self) -> None:
        assert after(SOURCE, [*SOURCE[:10], *range(20)], 4) == []

    @pytest.mark.parametrize(
        ("old", "new"),
        [([1], [2]), ([1], [2, 3]), ([1, 4], [2]), ([1, 4, 5, 6], [2, 3]), ([1, 4], [2, 3, 7, 8])],
    )
    def test_makes_a_change_again(self, old: list[int], new: list[int]) -> None:
        parts = [list(range(100 * i, 100 * i + 12)) for i in range(1, 5)]
        source = [t for part in parts for t in [*part, *old]]
        edited = [t for part in parts for t in [*part, *new]]
        begun = 12 + len(new) + 3
        assert after(source, edited[:begun], 100)[: len(edited) - begun] == edited[begun:]

    def test_makes_an_insertion_again(self) -> None:
        parts = [[*range(100 * i, 100 * i + 12), 7] for i in range(1, 5)]
        source = [t for part in parts for t in part]
        edited = [t for part in parts for t in [*part, 8, 9]]
        begun = 13 + 2 + 3
        assert after(source, edited[:begun], 100)[: len(edited) - begun] == edited[begun:]

    def test_drops_an_insertion_that_was_not_made_again(self) -> None:
        source, inserted = with_names([7, 7, 7]), with_names([7])
        edited = [*inserted, 8, 9, *source[13:26]]
        assert after(source, edited, 1) == [8]
        assert after([*source, 600], [*edited, *source[26:39]], 1) == [600]

    def test_does_not_take_the_end_of_a_short_copy_for_an_insertion(self) -> None:
        source = [1, 2, 3, 7, 50, 51, 52, 53, 54, 55, 7, 56, 57]
        text = [1, 2, 3, 7, 8, 50, 51, 52, 53, 54, 55, 7]
        assert after(source, text, 2) == [56, 57]

    def test_a_change_made_differently_is_learnt_anew(self) -> None:
        parts = [list(range(100 * i, 100 * i + 12)) for i in range(1, 4)]
        source = [t for part in parts for t in [*part, 1]]
        edited = [*parts[0], 2, 3, *parts[1], 2, 4, *parts[2]]
        assert after(source, edited[: 14 + 13], 1) == [3]
        assert after(source, edited[: 14 + 14], 3) == []
        assert after(source, edited, 2) == [2, 4]

    def test_of_two_changes_the_longer_is_made(self) -> None:
        parts = [list(range(100 * i, 100 * i + 12)) for i in range(1, 5)]
        source = [*parts[0], 1, 4, *parts[1], 1, *parts[2], 1, 4, *parts[3], 1]
        edited = [*parts[0], 3, *parts[1], 2, *parts[2], 3, *parts[3], 2]
        assert after(source, edited[: 13 + 13 + 12], 14) == edited[13 + 13 + 12 :]

    def test_follows_two_renames_at_once(self) -> None:
        source, edited = with_names([1, 2, 1, 2, 1, 2]), with_names([3, 4, 3, 4, 3, 4])
        begun = 13 * 2 + 3
        assert after(source, edited[:begun], 100)[: len(edited) - begun] == edited[begun:]

    def test_drops_a_change_that_was_not_made_again(self) -> None:
        source, edited = with_names([1, 1, 1, 1]), with_names([2, 1, 1, 1])
        assert after(source, edited[: 13 * 2 - 1], 1) == [2]
        assert after(source, edited[: 13 * 2 + 2], 24) == edited[13 * 2 + 2 : 13 * 4]

    def test_the_latest_change_of_the_same_tokens_holds(self) -> None:
        source, edited = with_names([1, 1, 1]), with_names([2, 3, 0])
        assert after(source, edited[: 13 * 3 - 1], 1) == [3]

    def test_a_commit_may_end_inside_a_change(self) -> None:
        parts = [list(range(100 * i, 100 * i + 12)) for i in range(1, 4)]
        source = [t for part in parts for t in [*part, 1]]
        edited = [t for part in parts for t in [*part, 2, 3, 4]]
        assert after(source, edited[: 15 + 12 + 1], 14) == edited[15 + 12 + 1 : 15 + 12 + 15]


class TestEvidence:
    def test_length_grows_along_the_copy(self) -> None:
        drafter = started([*SOURCE, *SOURCE[:4]])
        assert [p.evidence[0] for p in drafter.propose(SEQ, 4)] == [4, 5, 6, 7]

    def test_length_tells_where_a_draft_resumed(self) -> None:
        drafter = started(SOURCE)
        drafter.committed(SEQ, [*SOURCE[:10], 7])
        assert [p.evidence[0] for p in drafter.propose(SEQ, 3)] == [1, 1, 1]
        drafter.committed(SEQ, SOURCE[11:12])
        assert [p.evidence[0] for p in drafter.propose(SEQ, 3)] == [2, 3, 4]

    def test_agreement_is_the_share_that_goes_on_the_same_way(self) -> None:
        drafter = started([1, 2, 3, 50, 1, 2, 3, 60, 1, 2, 3, 60, 1, 2, 3])
        assert drafter.propose(SEQ, 1)[0].token == 60
        assert drafter.propose(SEQ, 1)[0].evidence[1] == pytest.approx(2 / 3)

    def test_confidence_rises_with_each_kind_of_evidence(self) -> None:
        short, long = (started([*SOURCE, *SOURCE[:k]]).propose(SEQ, 1)[0] for k in (3, 12))
        divided = started([1, 2, 3, 50, 1, 2, 3, 60, 1, 2, 3]).propose(SEQ, 1)[0]
        assert short.confidence < long.confidence
        assert divided.confidence < short.confidence
        proven = started(SOURCE)
        proven.committed(SEQ, SOURCE[:12])
        assert proven.propose(SEQ, 1)[0].confidence > long.confidence

    def test_record_moves_with_what_copying_would_have_got_right(self) -> None:
        drafter = started(SOURCE)
        drafter.committed(SEQ, SOURCE[:3])
        assert drafter.record(SEQ) == RECORD_AT_START  # nothing was on offer yet
        drafter.committed(SEQ, SOURCE[3:6])
        risen = drafter.record(SEQ)
        assert risen > RECORD_AT_START
        drafter.committed(SEQ, [0])
        assert drafter.record(SEQ) < risen

    def test_record_needs_no_proposal_to_be_asked_for(self) -> None:
        asked, silent = started(SOURCE), started(SOURCE)
        for token in [*SOURCE[:8], 1, *SOURCE[9:14]]:
            asked.propose(SEQ, 4)
            asked.committed(SEQ, [token])
            silent.committed(SEQ, [token])
        assert asked.record(SEQ) == silent.record(SEQ) != RECORD_AT_START


class TestProperties:
    @given(texts, commits)
    def test_history_is_what_was_committed(self, prompt: list[int], rounds: list[list[int]]) -> None:
        drafter = started(prompt)
        for accepted in rounds:
            drafter.propose(SEQ, 4)
            drafter.committed(SEQ, accepted)
        drafter.propose(SEQ, 4)
        assert history(drafter) == [*prompt, *(t for accepted in rounds for t in accepted)]

    @given(texts, commits, st.integers(0, 20))
    def test_proposals_are_ids_of_the_history(
        self, prompt: list[int], rounds: list[list[int]], limit: int
    ) -> None:
        drafter = started(prompt)
        for accepted in rounds:
            run = drafter.propose(SEQ, limit)
            assert len(run) <= limit
            assert {p.token for p in run} <= set(history(drafter))
            assert all(0 <= p.confidence <= 1 and 0 < p.evidence[1] + 1 <= 2 for p in run)
            drafter.committed(SEQ, accepted)

    @given(texts, commits)
    def test_what_is_proposed_depends_on_the_text_alone(
        self, prompt: list[int], rounds: list[list[int]]
    ) -> None:
        at_once, one_by_one = started(prompt), started(prompt)
        at_once.committed(SEQ, [t for accepted in rounds for t in accepted])
        for accepted in rounds:
            one_by_one.propose(SEQ, 3)
            for token in accepted:
                one_by_one.committed(SEQ, [token])
        assert at_once.propose(SEQ, 12) == one_by_one.propose(SEQ, 12)

    @given(texts, commits, st.lists(st.integers(0, 9), max_size=8))
    def test_an_index_built_in_pieces_is_the_same(
        self, prompt: list[int], rounds: list[list[int]], pieces: list[int]
    ) -> None:
        in_pieces, at_once = started(prompt), started(prompt)
        left = [in_pieces.index(SEQ, n) for n in pieces]
        assert left == [max(0, len(prompt) - done) for done in accumulate(pieces)]
        for accepted in rounds:
            in_pieces.committed(SEQ, accepted)
            at_once.committed(SEQ, accepted)
            assert in_pieces.propose(SEQ, 8) == at_once.propose(SEQ, 8)

    @given(texts, st.integers(1, 12))
    def test_steps_are_the_run_token_by_token(self, prompt: list[int], n: int) -> None:
        drafter, stepped = started(prompt), list[Proposal]()
        for _ in range(n):
            answer = drafter.step({SEQ: [p.token for p in stepped]})
            stepped.extend(answer.values())
        assert stepped == started(prompt).propose(SEQ, n)

    @given(st.lists(tokens, min_size=3, max_size=60))
    def test_index_finds_the_latest_earlier_occurrences(self, text: list[int]) -> None:
        index = TokenIndex(text)
        index.build(len(text))
        ends = [e for e in range(len(text) - 1, 2, -1) if text[e - 3 : e] == text[-3:]]
        assert index.candidates() == ends[:8]

    @given(texts)
    def test_longest_is_the_longest_of_the_candidates(self, text: list[int]) -> None:
        index = TokenIndex(text)
        index.build(len(text))

        def length(end: int) -> int:
            return next((k for k in range(end) if text[end - 1 - k] != text[-1 - k]), end)

        ends = index.candidates()
        best = max((min(length(e), 32) for e in ends), default=0)
        assert index.longest() == (next((e for e in ends if min(length(e), 32) == best), 0), best)


def test_sequences_are_apart_and_forgotten() -> None:
    drafter = CopyDrafter()
    drafter.start(0, [*SOURCE, *SOURCE[:3]])
    drafter.start(1, [1, 2, 3, 4])
    assert drafter.step({0: [], 1: []}).keys() == {0}
    drafter.forget(0)
    assert not drafter.propose(1, 4)
    assert drafter._texts.keys() == {1}
    with pytest.raises(KeyError):
        drafter.step({0: []})
    drafter.forget(0)


def test_start_again_begins_anew() -> None:
    drafter = started([*SOURCE, *SOURCE[:3]])
    drafter.propose(SEQ, 4)
    drafter.start(SEQ, [5, 6, 7])
    assert proposed(drafter, 4) == []
    assert history(drafter) == [5, 6, 7]
