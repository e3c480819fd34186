"""What is drafted: the classical policy to the letter, the adaptive one by what it wins in a simulation."""

# ruff: noqa: ARG005
from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from specllama.core.drafting import Draft, Outcome, Policy, Round, run_drafter
from specllama.core.fixed import Fixed
from specllama.core.ports import Proposal
from specllama.core.simple import Adaptive
from specllama.errors import UsageError
from specllama.testing import ScriptedDrafter


class Confident(ScriptedDrafter):
    """Proposes 1, 2, 3 … with the given confidences, then nothing."""

    def __init__(self, confidences: list[float], name: str = "model") -> None:
        super().__init__(lambda history, draft: None, name)
        self.confidences, self.asked = confidences, 0

    def step(self, wanted):
        self.asked += 1
        return {
            seq: Proposal(len(draft) + 1, self.confidences[len(draft)])
            for seq, draft in wanted.items()
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
    policy.drop("copy")
    assert drafted(policy).sources == ["model"] * 2
    policy.drop("model")
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


# The adaptive policy


class World:
    """One sequence on a machine: t(n) of a decode of n rows, seconds per drafted token, acceptance of each.

    disturb: factor on the time of a round.
    """

    def __init__(
        self,
        t: Callable[[int], float],
        step: float,
        acceptance: float,
        disturb: Callable[[random.Random], float] = lambda rng: 1.0,
        drafters: tuple[str, ...] = ("model",),
        confidence: float = 0.9,
        seed: int = 1,
    ) -> None:
        self.t, self.step, self.acceptance, self.disturb = t, step, acceptance, disturb
        self.rng = random.Random(seed)
        made = [ScriptedDrafter(lambda history, draft: 5, name, confidence) for name in drafters]
        for drafter in made:
            drafter.histories[0] = [1]
        self.policy = Adaptive(made)
        self.lengths: list[int] = []
        self.emitted: list[int] = []
        self.seconds = 0.0

    def run(self, n_tokens: int, room: int = 99) -> float:
        """Tokens per second over the next n_tokens."""
        begin, done = self.seconds, 0
        while done < n_tokens:
            draft = self.policy.draft({0: room}).get(0, Draft())
            k = len(draft.tokens)
            n_accept = 0
            while n_accept < k and self.rng.random() < self.acceptance:
                n_accept += 1
            factor = self.disturb(self.rng)
            verify = self.t(k + 1) * factor
            drafting = (k + draft.n_discarded) * self.step * factor if "model" in draft.sources else 0.0
            outcome = Outcome(0, draft, n_accept, n_accept + 1)
            self.policy.observe(Round(k + 1, verify, drafting, verify + drafting, [outcome]))
            self.lengths.append(k)
            self.emitted.append(n_accept + 1)
            self.seconds += verify + drafting
            done += n_accept + 1
        return done / (self.seconds - begin)

    @property
    def plain_rate(self) -> float:
        return 1 / self.t(1)

    @property
    def best_fixed_rate(self) -> float:
        """What the best fixed length gives here, by the formula."""
        return max(
            sum(self.acceptance**j for j in range(k + 1)) / (self.t(k + 1) + k * self.step) for k in range(17)
        )


def cheap_rows(n: int) -> float:
    return 0.01 * (1 + 0.03 * (n - 1))


def dear_rows(n: int) -> float:
    return 0.01 * n


def test_adaptive_begins_with_two_plain_rounds():
    world = World(cheap_rows, 0.0005, 0.9)
    world.run(50)
    assert world.lengths[:2] == [0, 0]
    assert world.lengths[2] > 0


def test_adaptive_makes_a_plain_round_every_128_tokens():
    world = World(cheap_rows, 0.0005, 0.9)
    world.run(3000)
    since = 0
    for length, emitted in zip(world.lengths, world.emitted, strict=True):
        since = 0 if length == 0 else since + emitted
        assert since < 128 + 17
    assert 15 < world.lengths[2:].count(0) < 40


def test_adaptive_stops_drafting_what_is_never_accepted():
    world = World(cheap_rows, 0.002, 0.0)
    world.run(400)
    world.lengths.clear()
    rate = world.run(2000)
    assert sum(k > 0 for k in world.lengths) < 0.02 * len(world.lengths)
    assert rate > 0.98 * world.plain_rate


def test_adaptive_stops_where_rows_cost_what_tokens_cost():
    world = World(dear_rows, 0.002, 0.7)
    world.run(400)
    assert world.run(2000) > 0.97 * world.plain_rate


@pytest.mark.parametrize(("acceptance", "step"), [(0.6, 0.001), (0.8, 0.001), (0.95, 0.0005), (0.95, 0.003)])
def test_adaptive_comes_near_the_best_fixed_length(acceptance, step):
    world = World(cheap_rows, step, acceptance)
    world.run(600)
    assert world.run(4000) > 0.85 * world.best_fixed_rate


def test_adaptive_drafts_more_where_more_is_accepted():
    mean = {}
    for acceptance in (0.4, 0.7, 0.95):
        world = World(cheap_rows, 0.001, acceptance)
        world.run(600)
        world.lengths.clear()
        world.run(2000)
        mean[acceptance] = sum(world.lengths) / len(world.lengths)
    assert mean[0.4] < mean[0.7] < mean[0.95]
    assert mean[0.95] > 8


def test_adaptive_finds_back_after_a_bad_stretch():
    world = World(cheap_rows, 0.001, 0.0)
    world.run(600)
    world.acceptance = 0.95
    world.run(1500)
    assert world.run(2000) > 0.85 * world.best_fixed_rate


@pytest.mark.parametrize("seed", range(4))
def test_adaptive_bears_a_noisy_clock(seed):
    """One round in ten takes twice as long, whatever it did."""
    noisy = lambda rng: 2.0 if rng.random() < 0.1 else 1.0  # noqa: E731
    world = World(cheap_rows, 0.001, 0.8, noisy, seed=seed)
    world.run(600)
    assert world.run(4000) > 0.85 * world.best_fixed_rate / 1.1


def test_adaptive_bears_a_hung_round():
    """A laptop that slept for a minute in the middle of a round does not change what is drafted for long."""
    world = World(cheap_rows, 0.001, 0.8)
    world.run(600)
    world.disturb = lambda rng: 6000.0
    world.run(1)
    world.disturb = lambda rng: 1.0
    world.run(300)
    assert world.run(3000) > 0.85 * world.best_fixed_rate


def test_adaptive_takes_copies_without_a_model():
    world = World(cheap_rows, 0.0, 0.9, drafters=("copy",))
    world.run(2000)
    assert max(world.lengths) > 5
    assert world.run(2000) > 3 * world.plain_rate


def test_adaptive_keeps_to_the_room():
    world = World(cheap_rows, 0.0005, 0.95)
    world.run(600, room=3)
    assert max(world.lengths) == 3
    world.lengths.clear()
    world.run(100, room=0)
    assert set(world.lengths) == {0}


def test_adaptive_without_drafters_is_plain():
    world = World(cheap_rows, 0.0, 0.0, drafters=())
    world.run(300)
    assert set(world.lengths) == {0}


def test_adaptive_after_its_model_failed():
    world = World(cheap_rows, 0.0005, 0.95)
    world.run(300)
    world.policy.drop("model")
    world.lengths.clear()
    world.run(100)
    assert set(world.lengths) == {0}


def test_adaptive_serves_several_sequences():
    drafter = ScriptedDrafter(lambda history, draft: 5, "copy", 0.95)
    drafter.histories = {0: [1], 1: [1], 2: [1]}
    policy = Adaptive([drafter])
    for _ in range(2):
        assert policy.draft({0: 9, 1: 9, 2: 9}) == {}
        policy.observe(Round(3, 0.01, 0.0, 0.01, [Outcome(s, Draft(), 0, 1) for s in range(3)]))
    drafts = policy.draft({0: 9, 1: 0, 2: 9})
    assert 1 not in drafts or not drafts[1].tokens
    assert drafts[0].tokens
    assert drafts[2].tokens
    assert len(drafts[0].tokens) <= 9


def test_rounds_that_spent_nothing_on_drafts_are_plain():
    def made(draft, rows=1):
        return Round(rows, 0.01, 0.001, 0.011, [Outcome(0, draft, 0, 1)])

    assert made(Draft()).plain
    assert not made(Draft([5], ["model"]), 2).plain
    assert not made(Draft([], [], n_discarded=2)).plain
