"""The rules of the copy drafter, one by one, and properties that hold for any text."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.core.interfaces import Proposal
from specllama.drafters.copy import INITIAL_HIT_RATE, CopiedText, CopyDrafter, confidence
from specllama.drafters.ngrams import TokenIndex

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
    """The tokens proposed after the text was committed token by token."""
    drafter = started(prompt)
    for token in text:
        drafter.committed(SEQ, [token])
    return proposed(drafter, limit)


def with_names(names: list[int]) -> list[int]:
    """A text with twelve tokens of its own before each name."""
    return [t for i, name in enumerate(names, 1) for t in [*range(100 * i, 100 * i + 12), name]]


def copied_text(drafter: CopyDrafter) -> CopiedText:
    text = drafter._texts[SEQ]
    text.start()
    return text


def history(drafter: CopyDrafter) -> list[int]:
    return list(drafter._texts[SEQ].tokens)


def hit_rate(drafter: CopyDrafter) -> float:
    return copied_text(drafter).hit_rate


def confidences(drafter: CopyDrafter, lengths: list[int], agreement: float = 1.0) -> list[float]:
    """The confidences of a draft whose tokens follow matches of these lengths."""
    rate = hit_rate(drafter)
    return [confidence(length, agreement, rate, first=i == 0) for i, length in enumerate(lengths)]


class TestMatching:
    def test_continues_as_the_text_did_before(self) -> None:
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

    def test_a_periodic_text_is_continued_without_end(self) -> None:
        assert proposed(started([7, 8, 9, 7, 8, 9]), 50) == [7, 8, 9] * 16 + [7, 8]

    def test_a_repeated_token_is_continued_without_end(self) -> None:
        assert proposed(started([4] * 4), 30) == [4] * 30

    def test_large_ids_are_distinguished(self) -> None:
        top = 1 << 17
        assert after([top, top + 1, 9, 5, 0, 0], [top, top + 1, 9], 1) == [5]
        assert after([0, top, 9, 5, 4, 4], [1, 0, 9], 1) == []


class TestEdits:
    def test_resumes_right_after_an_edit(self) -> None:
        assert after(SOURCE, [*SOURCE[:10], 7], 4) == SOURCE[11:15]

    def test_resumes_after_a_token_that_agrees_again(self) -> None:
        assert after(SOURCE, [*SOURCE[:10], 7, 8, SOURCE[11]], 4) == SOURCE[12:16]

    def test_a_long_divergence_ends_the_copy(self) -> None:
        assert after(SOURCE, [*SOURCE[:10], *range(20)], 4) == []

    @pytest.mark.parametrize(
        ("old", "new"),
        [([1], [2]), ([1], [2, 3]), ([1, 4], [2]), ([1, 4, 5, 6], [2, 3]), ([1, 4], [2, 3, 7, 8])],
    )
    def test_repeats_an_edit(self, old: list[int], new: list[int]) -> None:
        parts = [list(range(100 * i, 100 * i + 12)) for i in range(1, 5)]
        source = [t for part in parts for t in [*part, *old]]
        edited = [t for part in parts for t in [*part, *new]]
        n = 12 + len(new) + 3
        assert after(source, edited[:n], 100)[: len(edited) - n] == edited[n:]

    def test_repeats_an_insertion(self) -> None:
        parts = [[*range(100 * i, 100 * i + 12), 7] for i in range(1, 5)]
        source = [t for part in parts for t in part]
        edited = [t for part in parts for t in [*part, 8, 9]]
        n = 13 + 2 + 3
        assert after(source, edited[:n], 100)[: len(edited) - n] == edited[n:]

    def test_forgets_an_insertion_that_was_not_repeated(self) -> None:
        source, inserted = with_names([7, 7, 7]), with_names([7])
        edited = [*inserted, 8, 9, *source[13:26]]
        assert after(source, edited, 1) == [8]
        assert after([*source, 600], [*edited, *source[26:39]], 1) == [600]

    def test_the_end_of_a_short_copy_is_not_an_insertion(self) -> None:
        source = [1, 2, 3, 7, 50, 51, 52, 53, 54, 55, 7, 56, 57]
        text = [1, 2, 3, 7, 8, 50, 51, 52, 53, 54, 55, 7]
        assert after(source, text, 2) == [56, 57]

    def test_an_edit_made_differently_is_replaced(self) -> None:
        parts = [list(range(100 * i, 100 * i + 12)) for i in range(1, 4)]
        source = [t for part in parts for t in [*part, 1]]
        edited = [*parts[0], 2, 3, *parts[1], 2, 4, *parts[2]]
        assert after(source, edited[: 14 + 13], 1) == [3]
        assert after(source, edited[: 14 + 14], 3) == []
        assert after(source, edited, 2) == [2, 4]

    def test_the_longer_of_two_matching_edits_is_repeated(self) -> None:
        parts = [list(range(100 * i, 100 * i + 12)) for i in range(1, 5)]
        source = [*parts[0], 1, 4, *parts[1], 1, *parts[2], 1, 4, *parts[3], 1]
        edited = [*parts[0], 3, *parts[1], 2, *parts[2], 3, *parts[3], 2]
        assert after(source, edited[: 13 + 13 + 12], 14) == edited[13 + 13 + 12 :]

    def test_follows_two_renames_at_once(self) -> None:
        source, edited = with_names([1, 2, 1, 2, 1, 2]), with_names([3, 4, 3, 4, 3, 4])
        n = 13 * 2 + 3
        assert after(source, edited[:n], 100)[: len(edited) - n] == edited[n:]

    def test_forgets_an_edit_that_was_not_repeated(self) -> None:
        source, edited = with_names([1, 1, 1, 1]), with_names([2, 1, 1, 1])
        assert after(source, edited[: 13 * 2 - 1], 1) == [2]
        assert after(source, edited[: 13 * 2 + 2], 24) == edited[13 * 2 + 2 : 13 * 4]

    def test_the_latest_edit_of_the_same_tokens_wins(self) -> None:
        source, edited = with_names([1, 1, 1]), with_names([2, 3, 0])
        assert after(source, edited[: 13 * 3 - 1], 1) == [3]

    def test_a_commit_may_end_within_an_edit(self) -> None:
        parts = [list(range(100 * i, 100 * i + 12)) for i in range(1, 4)]
        source = [t for part in parts for t in [*part, 1]]
        edited = [t for part in parts for t in [*part, 2, 3, 4]]
        assert after(source, edited[: 15 + 12 + 1], 14) == edited[15 + 12 + 1 : 15 + 12 + 15]


class TestConfidence:
    def test_the_match_length_grows_along_the_copy(self) -> None:
        drafter = started([*SOURCE, *SOURCE[:4]])
        assert [p.confidence for p in drafter.propose(SEQ, 7)] == confidences(drafter, [*range(4, 11)])

    def test_the_match_length_starts_over_where_a_draft_resumed(self) -> None:
        drafter = started(SOURCE)
        drafter.committed(SEQ, [*SOURCE[:10], 7])
        assert [p.confidence for p in drafter.propose(SEQ, 3)] == confidences(drafter, [1, 1, 1])
        drafter.committed(SEQ, SOURCE[11:12])
        assert [p.confidence for p in drafter.propose(SEQ, 3)] == confidences(drafter, [2, 3, 4])

    def test_agreement_is_the_share_of_candidates_with_the_same_continuation(self) -> None:
        drafter = started([1, 2, 3, 50, 1, 2, 3, 60, 1, 2, 3, 60, 1, 2, 3])
        proposal = drafter.propose(SEQ, 1)[0]
        assert proposal.token == 60
        assert copied_text(drafter)._agreement() == pytest.approx(2 / 3)
        length = copied_text(drafter)._length
        assert [proposal.confidence] == pytest.approx(confidences(drafter, [length], 2 / 3))

    def test_confidence_rises_with_length_agreement_and_hit_rate(self) -> None:
        short, long = (started([*SOURCE, *SOURCE[:k]]).propose(SEQ, 1)[0] for k in (3, 12))
        divided = started([1, 2, 3, 50, 1, 2, 3, 60, 1, 2, 3]).propose(SEQ, 1)[0]
        assert short.confidence < long.confidence
        assert divided.confidence < short.confidence
        proven = started(SOURCE)
        proven.committed(SEQ, SOURCE[:12])
        assert proven.propose(SEQ, 1)[0].confidence > long.confidence

    def test_the_hit_rate_follows_the_predictions_of_copying(self) -> None:
        drafter = started(SOURCE)
        drafter.committed(SEQ, SOURCE[:3])
        assert hit_rate(drafter) == INITIAL_HIT_RATE  # copying has predicted no token yet
        drafter.committed(SEQ, SOURCE[3:6])
        risen = hit_rate(drafter)
        assert risen > INITIAL_HIT_RATE
        drafter.committed(SEQ, [0])
        assert hit_rate(drafter) < risen

    def test_the_hit_rate_does_not_depend_on_proposals(self) -> None:
        drafting, silent = started(SOURCE), started(SOURCE)
        for token in [*SOURCE[:8], 1, *SOURCE[9:14]]:
            drafting.propose(SEQ, 4)
            drafting.committed(SEQ, [token])
            silent.committed(SEQ, [token])
        assert hit_rate(drafting) == hit_rate(silent) != INITIAL_HIT_RATE


class TestProperties:
    @given(texts, commits)
    def test_the_history_is_prompt_and_commits(self, prompt: list[int], rounds: list[list[int]]) -> None:
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
            assert all(0 <= p.confidence <= 1 for p in run)
            assert 0 <= copied_text(drafter)._agreement() <= 1
            drafter.committed(SEQ, accepted)

    @given(texts, commits)
    def test_proposals_depend_on_the_text_alone(self, prompt: list[int], rounds: list[list[int]]) -> None:
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
        left = [in_pieces._texts[SEQ].index.build(n) for n in pieces]
        assert left == [max(0, len(prompt) - done) for done in accumulate(pieces)]
        for accepted in rounds:
            in_pieces.committed(SEQ, accepted)
            at_once.committed(SEQ, accepted)
            assert in_pieces.propose(SEQ, 8) == at_once.propose(SEQ, 8)

    @given(texts, st.integers(1, 12))
    def test_step_proposes_the_same_tokens_as_propose(self, prompt: list[int], n: int) -> None:
        drafter, stepped = started(prompt), list[Proposal]()
        for _ in range(n):
            proposals = drafter.step({SEQ: [p.token for p in stepped]})
            stepped.extend(proposals.values())
        assert stepped == started(prompt).propose(SEQ, n)

    @given(st.lists(tokens, min_size=3, max_size=60))
    def test_candidates_are_the_latest_earlier_occurrences(self, text: list[int]) -> None:
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


def test_sequences_are_independent_and_forgotten() -> None:
    drafter = CopyDrafter()
    drafter.start(0, [*SOURCE, *SOURCE[:3]])
    drafter.start(1, [1, 2, 3, 4])
    assert drafter.step({0: [], 1: []}).keys() == {0}
    drafter.forget(0)
    assert not drafter.propose(1, 4)
    assert drafter._texts.keys() == {1}
    assert drafter.step({0: []}) == {}
    drafter.forget(0)


def test_start_replaces_an_earlier_sequence() -> None:
    drafter = started([*SOURCE, *SOURCE[:3]])
    drafter.propose(SEQ, 4)
    drafter.start(SEQ, [5, 6, 7])
    assert proposed(drafter, 4) == []
    assert history(drafter) == [5, 6, 7]
