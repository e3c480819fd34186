"""The policy with a fixed draft length, and the helpers that all policies share."""

# ruff: noqa: ARG005
from __future__ import annotations

import pytest

from specllama.core.interfaces import Proposal
from specllama.core.policy.base import Draft, Policy, Round, VerifyResult
from specllama.core.policy.fixed import Fixed, run_drafter
from tests.support.scripted import ScriptedDrafter


class Counting(ScriptedDrafter):
    """Proposes 1, 2, 3 … with the given confidences, then nothing."""

    def __init__(self, confidences: list[float], name: str = "model") -> None:
        super().__init__(lambda history, draft: None, name)
        self.confidences, self.n_steps = confidences, 0

    def step(self, drafts):
        self.n_steps += 1
        return {
            seq: Proposal(len(draft) + 1, self.confidences[len(draft)])
            for seq, draft in drafts.items()
            if len(draft) < len(self.confidences)
        }


def drafted(policy: Policy, room: int = 99) -> Draft:
    return policy.draft({0: room}).get(0, Draft())


# Fixed


@pytest.mark.parametrize(
    ("n_max", "room", "expected"), [(4, 99, 4), (4, 2, 2), (16, 99, 6), (0, 99, 0), (4, 0, 0), (4, -1, 0)]
)
def test_fixed_drafts_up_to_its_limit_and_the_room(n_max, room, expected):
    drafter = Counting([0.9] * 6)
    draft = drafted(Fixed([drafter], n_max), room)
    assert draft.tokens == list(range(1, expected + 1))
    assert draft.sources == ["model"] * expected
    assert draft.n_discarded == 0
    assert (drafter.n_steps > 0) == (expected > 0)


def test_fixed_stops_below_p_min_and_counts_the_discarded_token():
    draft = drafted(Fixed([Counting([0.9, 0.8, 0.5, 0.9])], 8, p_min=0.6))
    assert (draft.tokens, draft.n_discarded) == ([1, 2], 1)
    assert drafted(Fixed([Counting([0.6])], 8, p_min=0.6)).tokens == [1]


def test_fixed_discards_drafts_shorter_than_n_min():
    draft = drafted(Fixed([Counting([0.9, 0.8, 0.1])], 8, n_min=3, p_min=0.6))
    assert (draft.tokens, draft.sources, draft.n_discarded) == ([], [], 3)
    assert drafted(Fixed([Counting([0.9] * 3)], 8, n_min=3)).tokens == [1, 2, 3]
    # The room is less than n_min, so the shorter draft is discarded too.
    assert drafted(Fixed([Counting([0.9] * 3)], 8, n_min=3), room=2).tokens == []


def test_fixed_uses_the_first_drafter_with_a_draft():
    copy, model = Counting([0.9, 0.9], "copy"), Counting([0.9] * 4)
    assert drafted(Fixed([copy, model], 8)).sources == ["copy"] * 2
    assert model.n_steps == 0
    assert drafted(Fixed([model, copy], 8)).sources == ["model"] * 4
    copy.confidences = []
    assert drafted(Fixed([copy, model], 8)).sources == ["model"] * 4


def test_unlikely_copies_are_ignored_if_there_is_a_model():
    copy, model = Counting([0.3, 0.3], "copy"), Counting([0.2] * 4)
    assert drafted(Fixed([copy, model], 8)).sources == ["model"] * 4
    assert drafted(Fixed([copy], 8)).sources == ["copy"] * 2
    model.confidences = []
    assert drafted(Fixed([copy, model], 8)).tokens == []


def test_memory_drafts_only_where_copy_has_no_draft():
    unlikely, memory = Counting([0.3, 0.3], "copy"), Counting([0.9], "memory")
    assert drafted(Fixed([unlikely, memory], 4)).sources == ["copy"] * 2
    assert drafted(Fixed([Counting([], "copy"), memory], 4)).sources == ["memory"]
    assert drafted(Fixed([unlikely, Counting([0.3], "memory"), Counting([0.9])], 4)).sources == ["model"]


def test_discarded_copies_are_not_counted():
    assert drafted(Fixed([Counting([0.9, 0.1], "copy")], 8, p_min=0.5)).n_discarded == 0


def test_sequences_are_stepped_together_each_with_its_own_limit():
    drafter = Counting([0.9] * 8)
    drafts = Fixed([drafter], 5).draft({0: 9, 3: 2, 7: 0})
    assert {seq: len(d.tokens) for seq, d in drafts.items()} == {0: 5, 3: 2}
    assert drafter.n_steps == 5


def test_each_sequence_uses_the_first_drafter_with_a_draft_for_it():
    copy = ScriptedDrafter(lambda history, draft: 5 if history == [1] else None, "copy")
    copy.histories = {0: [1], 1: [2]}
    model = Counting([0.9] * 3)
    drafts = Fixed([copy, model], 3).draft({0: 9, 1: 9})
    assert drafts[0].sources == ["copy"] * 3
    assert drafts[1].sources == ["model"] * 3


def test_a_priced_drafter_without_a_draft_leaves_the_sequence_to_the_next_one():
    """The first one is out of room for one sequence, and not confident about another."""

    class Outgrown(Counting):
        def step(self, drafts):
            proposals = super().step({seq: draft for seq, draft in drafts.items() if seq != 1})
            return {seq: Proposal(p.token, 0.1 if seq == 2 else p.confidence) for seq, p in proposals.items()}

    model, head = Outgrown([0.9] * 9, "model"), Counting([0.8] * 9, "head")
    drafts = Fixed([Counting([0.4] * 9, "copy"), model, head], 3, p_min=0.3).draft({0: 9, 1: 9, 2: 9})
    assert {seq: draft.sources for seq, draft in drafts.items()} == {
        0: ["model"] * 3, 1: ["head"] * 3, 2: ["head"] * 3,
    }  # fmt: skip
    assert {seq: draft.n_discarded for seq, draft in drafts.items()} == {0: 0, 1: 0, 2: 1}
    assert head.n_steps == 3


def test_a_failed_drafter_is_removed():
    policy = Fixed([Counting([0.9], "copy"), Counting([0.9, 0.9])], 8)
    policy.remove_drafter("copy")
    assert drafted(policy).sources == ["model"] * 2
    policy.remove_drafter("model")
    assert drafted(policy).tokens == []


def test_run_drafter_passes_the_draft_so_far_to_each_step():
    seen = []
    drafter = ScriptedDrafter(lambda history, draft: seen.append(list(draft)) or len(draft) + 10)
    drafter.histories = {4: [1, 2]}
    assert [p.token for p in run_drafter(drafter, {4: 3}, 0.0)[4][0]] == [10, 11, 12]
    assert seen == [[], [10], [10, 11]]


def test_rounds_without_drafted_tokens_are_plain():
    def round_of(draft, rows=1):
        return Round(rows, 0.01, 0.001, 0.011, [VerifyResult(0, draft, 0, 1)])

    assert round_of(Draft()).plain
    assert not round_of(Draft([5], ["model"]), 2).plain
    assert not round_of(Draft([], [], n_discarded=2)).plain
