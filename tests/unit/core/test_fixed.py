"""What is drafted: the classical policy to the letter, and what all policies use."""

# ruff: noqa: ARG005
from __future__ import annotations

import pytest

from specllama.core.interfaces import Proposal
from specllama.core.policy.base import Draft, Policy, Round, VerifyResult
from specllama.core.policy.fixed import Fixed, run_drafter
from specllama.errors import UsageError
from specllama.testing import ScriptedDrafter


class Confident(ScriptedDrafter):
    """Proposes 1, 2, 3 … with the given confidences, then nothing."""

    def __init__(self, confidences: list[float], name: str = "model") -> None:
        super().__init__(lambda history, draft: None, name)
        self.confidences, self.asked = confidences, 0

    def step(self, drafts):
        self.asked += 1
        return {
            seq: Proposal(len(draft) + 1, self.confidences[len(draft)])
            for seq, draft in drafts.items()
            if len(draft) < len(self.confidences)
        }


def drafted(policy: Policy, room: int = 99) -> Draft:
    return policy.draft({0: room}).get(0, Draft())


# The classical policy


@pytest.mark.parametrize(
    ("n_max", "room", "expected"), [(4, 99, 4), (4, 2, 2), (16, 99, 6), (0, 99, 0), (4, 0, 0), (4, -1, 0)]
)
def test_fixed_drafts_as_many_as_there_is_room_for(n_max, room, expected):
    drafter = Confident([0.9] * 6)
    draft = drafted(Fixed([drafter], n_max), room)
    assert draft.tokens == list(range(1, expected + 1))
    assert draft.sources == ["model"] * expected
    assert draft.n_discarded == 0
    assert (drafter.asked > 0) == (expected > 0)


def test_fixed_stops_below_p_min_and_counts_what_it_looked_at():
    draft = drafted(Fixed([Confident([0.9, 0.8, 0.5, 0.9])], 8, p_min=0.6))
    assert (draft.tokens, draft.n_discarded) == ([1, 2], 1)
    assert drafted(Fixed([Confident([0.6])], 8, p_min=0.6)).tokens == [1]


def test_fixed_discards_drafts_shorter_than_n_min():
    draft = drafted(Fixed([Confident([0.9, 0.8, 0.1])], 8, n_min=3, p_min=0.6))
    assert (draft.tokens, draft.sources, draft.n_discarded) == ([], [], 3)
    assert drafted(Fixed([Confident([0.9] * 3)], 8, n_min=3)).tokens == [1, 2, 3]
    # No room for n_min tokens: what fits is fewer, so it is left out too.
    assert drafted(Fixed([Confident([0.9] * 3)], 8, n_min=3), room=2).tokens == []


def test_fixed_takes_the_first_drafter_that_has_something():
    copy, model = Confident([0.9, 0.9], "copy"), Confident([0.9] * 4)
    assert drafted(Fixed([copy, model], 8)).sources == ["copy"] * 2
    assert model.asked == 0
    assert drafted(Fixed([model, copy], 8)).sources == ["model"] * 4
    copy.confidences = []
    assert drafted(Fixed([copy, model], 8)).sources == ["model"] * 4


def test_doubtful_copies_leave_the_word_to_a_model_if_there_is_one():
    copy, model = Confident([0.3, 0.3], "copy"), Confident([0.2] * 4)
    assert drafted(Fixed([copy, model], 8)).sources == ["model"] * 4
    assert drafted(Fixed([copy], 8)).sources == ["copy"] * 2
    model.confidences = []
    assert drafted(Fixed([copy, model], 8)).tokens == []


def test_a_memory_does_not_silence_what_the_text_itself_says():
    doubtful, memory = Confident([0.3, 0.3], "copy"), Confident([0.9], "memory")
    assert drafted(Fixed([doubtful, memory], 4)).sources == ["copy"] * 2
    assert drafted(Fixed([Confident([], "copy"), memory], 4)).sources == ["memory"]
    assert drafted(Fixed([doubtful, Confident([0.3], "memory"), Confident([0.9])], 4)).sources == ["model"]


def test_discarded_copies_cost_nothing_and_are_not_counted():
    assert drafted(Fixed([Confident([0.9, 0.1], "copy")], 8, p_min=0.5)).n_discarded == 0


def test_sequences_are_drafted_together_each_with_its_own_limit():
    drafter = Confident([0.9] * 8)
    drafts = Fixed([drafter], 5).draft({0: 9, 3: 2, 7: 0})
    assert {seq: len(d.tokens) for seq, d in drafts.items()} == {0: 5, 3: 2}
    assert drafter.asked == 5


def test_each_sequence_has_the_drafter_that_knows_something_for_it():
    copy = ScriptedDrafter(lambda history, draft: 5 if history == [1] else None, "copy")
    copy.histories = {0: [1], 1: [2]}
    model = Confident([0.9] * 3)
    drafts = Fixed([copy, model], 3).draft({0: 9, 1: 9})
    assert drafts[0].sources == ["copy"] * 3
    assert drafts[1].sources == ["model"] * 3


def test_a_failed_drafter_is_dropped():
    policy = Fixed([Confident([0.9], "copy"), Confident([0.9, 0.9])], 8)
    policy.remove_drafter("copy")
    assert drafted(policy).sources == ["model"] * 2
    policy.remove_drafter("model")
    assert drafted(policy).tokens == []


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"n_max": -1}, "draft_max"),
        ({"n_max": 4, "n_min": -1}, "draft_min"),
        ({"n_max": 4, "n_min": 5}, "draft_min 5 .* draft_max 4"),
        ({"n_max": 4, "p_min": 1.1}, "draft_p_min"),
        ({"n_max": 4, "p_min": -0.1}, "draft_p_min"),
        ({"n_max": 4, "p_min": float("nan")}, "draft_p_min"),
    ],
)
def test_impossible_settings_are_refused_by_name(settings, names):
    with pytest.raises(UsageError, match=names):
        Fixed([], **settings)


def test_run_drafter_gives_each_step_what_was_drafted_so_far():
    seen = []
    drafter = ScriptedDrafter(lambda history, draft: seen.append(list(draft)) or len(draft) + 10)
    drafter.histories = {4: [1, 2]}
    assert [p.token for p in run_drafter(drafter, {4: 3}, 0.0)[4][0]] == [10, 11, 12]
    assert seen == [[], [10], [10, 11]]


def test_rounds_that_spent_nothing_on_drafts_are_plain():
    def made(draft, rows=1):
        return Round(rows, 0.01, 0.001, 0.011, [VerifyResult(0, draft, 0, 1)])

    assert made(Draft()).plain
    assert not made(Draft([5], ["model"]), 2).plain
    assert not made(Draft([], [], n_discarded=2)).plain
