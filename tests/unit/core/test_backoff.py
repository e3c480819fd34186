"""Where looking for drafts takes long beside a decode the planner looks away, and misses little by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from specllama.core.interfaces import Mask, Proposal
from specllama.core.policy.backoff import AWAKE_BEHIND, LISTENING, LONGEST, MINDED, SHARE, Naps
from specllama.core.policy.base import Draft, Round, VerifyResult
from specllama.core.policy.cost_curve import FIRST, WIDEST, CostCurve
from specllama.core.policy.planner import Planner
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.sampler import Sampler
from specllama.drafters.grammar import GrammarDrafter
from specllama.testing import ScriptedDrafter, TableMask

GREEDY = Sampler(SamplingParams(temperature=0), 0, 32)
T1 = 0.001  # seconds of a decode of one row


def seconds(n: int) -> float:
    return T1 * (1 + 0.1 * (n - 1))


class Slow(ScriptedDrafter):
    """Takes its time with every question, and copies: says for nothing how sure it is."""

    def __init__(self, world: World, name: str = "copy") -> None:
        super().__init__(lambda history, draft: self._next(len(history) + len(draft)), name, 0.96)
        self.world, self.n_asked = world, 0
        self.told: dict[int, list[list[int]]] = {}

    def _next(self, at: int) -> int | None:
        return 5 if self.world.repeats(at) else None

    def step(self, wanted: Mapping[int, Sequence[int]]) -> dict[int, Proposal]:
        self.n_asked += 1
        if not any(wanted.values()):
            self.world.now += self.world.looking
        return super().step(wanted)

    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:
        self.told.setdefault(seq_id, []).append(list(tokens))
        super().committed(seq_id, tokens)

    def peek_confidence(self, seq_id: int) -> float:
        return 0.96 if self._next(len(self.histories[seq_id])) is not None else 0.0


class World:
    """Texts that go on with 5 where they repeat something, else with 6; `looking` seconds a question."""

    def __init__(
        self,
        looking: float,
        repeats: Callable[[int], bool] = lambda at: False,  # noqa: ARG005
        n_sequences: int = 1,
        mask: Mask | None = None,
    ) -> None:
        self.now, self.looking, self.repeats = 0.0, looking, repeats
        self.drafter = Slow(self)
        self.costs = CostCurve()
        for n in [n for n in range(1, WIDEST + 1) for _ in range(FIRST)]:
            self.costs.observe(n, seconds(n))
        self.policy = Planner([self.drafter, GrammarDrafter()], lambda: self.now, self.costs)
        self.texts: dict[int, list[int]] = {}
        for seq in range(n_sequences):
            self.begin(seq, mask)
        self.asked: list[bool] = []  # by round

    def begin(self, seq: int, mask: Mask | None = None) -> None:
        self.policy.start(seq, [1, 2, 3], GREEDY, mask)
        self.texts[seq] = [1, 2, 3]

    def round(self, room: int = 99) -> dict[int, Draft]:
        began, before = self.now, self.drafter.n_asked
        drafts = self.policy.draft(dict.fromkeys(self.texts, room))
        drafted, outcomes = self.now, []
        rows = len(self.texts) + sum(len(d.tokens) for d in drafts.values())
        self.now += seconds(rows)
        decoded = self.now
        for seq, text in self.texts.items():
            draft, n = drafts.get(seq, Draft()), 0
            while n < len(draft.tokens) and self.repeats(len(text) + n):
                n += 1
            new = [5] * n + [5 if self.repeats(len(text) + n) else 6]
            text += new
            self.policy.committed(seq, new)
            outcomes.append(VerifyResult(seq, draft, n, n + 1))
        self.policy.observe(Round(rows, decoded - drafted, drafted - began, self.now - began, outcomes))
        self.asked.append(self.drafter.n_asked > before)
        return drafts

    def run(self, n_rounds: int, room: int = 99) -> float:
        """Tokens of the first sequence per T1."""
        began, n = self.now, len(self.texts[0])
        for _ in range(n_rounds):
            self.round(room)
        return (len(self.texts[0]) - n) * T1 / (self.now - began)


@pytest.mark.parametrize("looking", [0.03, 0.1, 0.2, 0.5])
@pytest.mark.parametrize("n_sequences", [1, 3])
def test_where_nothing_is_found_looking_takes_next_to_nothing(looking, n_sequences):
    """The dearer looking is, the less of it is done: 0.98 x plain and better, however dear it is."""
    world = World(looking * T1 / n_sequences, n_sequences=n_sequences)
    world.run(40)
    assert world.run(400) > 0.98 * T1 / seconds(n_sequences)
    assert any(world.asked[-LONGEST - 4 :])


def test_looking_that_costs_little_is_never_left_out():
    world = World(0.9 * MINDED * T1)
    world.run(100)
    assert all(world.asked)


def test_what_looking_at_a_prompt_takes_is_not_held_against_it():
    world = World(0.5 * T1)
    world.round()
    world.looking = 0.005 * T1
    world.run(50)
    assert all(world.asked)


def test_one_disturbed_round_does_not_send_it_to_sleep_for_long():
    world = World(0.01 * T1)
    world.run(20)
    world.looking = 50 * T1
    world.round()
    world.looking = 0.01 * T1
    world.run(30)
    assert world.asked.count(False) <= 2 * LISTENING
    assert all(world.asked[-10:])


@pytest.mark.parametrize("at", range(100, 100 + LISTENING))
def test_a_copy_that_begins_meanwhile_is_heard(at):
    """Within LISTENING rounds, wherever it begins."""
    world = World(0.1 * T1, repeats=lambda position: position >= at)
    while len(world.texts[0]) < at:
        world.round()
    waited = 0
    while not world.round():
        waited += 1
    assert waited <= LISTENING
    assert world.run(20) > 3


def test_a_call_in_vain_is_not_answered_round_by_round():
    """A drafter that is always sure and always wrong costs little more than a silent one."""
    world = World(0.1 * T1)
    world.drafter.peek_confidence = lambda seq_id: 0.96  # type: ignore[method-assign]  # noqa: ARG005
    world.run(40)
    assert world.run(400) > 0.975


def test_a_louder_call_is_answered_though_one_was_in_vain():
    naps = Naps()
    naps.start(0)
    for _ in range(3):
        naps.begin()
        naps.worked(0.1)
        naps.end(found=False, plain=1.0)
    assert naps.begin()
    assert not naps.begin(call=5)  # in vain
    naps.worked(0.1)
    naps.end(found=False, plain=1.0)
    assert naps.begin(call=5)
    assert not naps.begin(call=6)


def test_behind_what_was_won_it_stays_awake_a_little_longer():
    naps = Naps()
    naps.start(0)
    for found in (False, False, True):
        naps.begin()
        naps.worked(0.1)
        naps.end(found, plain=1.0)
    for _ in range(AWAKE_BEHIND):
        assert not naps.begin()
        naps.worked(0.1)
        naps.end(found=False, plain=1.0)
    assert naps.begin()


def test_the_share_of_looking_is_what_is_said():
    naps, n_awake, n = Naps(), 0, 5000
    for _ in range(n):
        if not naps.begin():
            n_awake += 1
            naps.worked(0.1)
            naps.end(found=False, plain=1.0)
    assert 0.5 * SHARE < 0.1 * n_awake / n < 1.1 * SHARE


def test_the_drafters_are_told_everything_once_and_in_order():
    world = World(0.1 * T1, repeats=lambda at: at % 90 > 60, n_sequences=2)
    world.run(200)
    assert not all(world.asked)
    for _ in range(LONGEST):
        world.round()
    while not world.asked[-1]:
        world.round()
    for seq, text in world.texts.items():
        told = [token for tokens in world.drafter.told[seq] for token in tokens]
        assert told == text[3:]


def test_a_text_that_begins_is_looked_at_and_not_told_the_last_one():
    world = World(0.1 * T1)
    while not world.policy.naps.asleep:
        world.round()
    world.begin(0)
    world.drafter.told.clear()
    world.round()
    assert world.asked[-1]
    assert world.drafter.told[0] == [world.texts[0][3:]]


def test_rounds_of_an_earlier_text_are_none_without_a_look():
    """They would have the draft model read a whole prompt for what was not forgone."""
    world = World(0.1 * T1)
    world.run(100, room=0)
    assert world.policy.naps.slept == 100
    world.begin(0)
    assert world.policy.naps.slept == 0


def test_a_text_that_ends_meanwhile_is_forgotten():
    world = World(0.1 * T1, n_sequences=2)
    while not world.policy.naps.asleep:
        world.round()
    world.policy.forget(1)
    del world.texts[1]
    assert world.policy.naps.catch_up(1) == []
    world.run(3 * LISTENING)
    assert list(world.drafter.histories) == [0]


def test_where_a_grammar_may_force_something_every_round_is_looked_at():
    world = World(0.1 * T1, mask=TableMask(32, lambda out: {5, 6}))  # noqa: ARG005
    world.run(50)
    assert all(world.asked)


def test_nobody_is_asked_for_texts_that_want_no_drafts():
    """And what a plain round takes is learnt all the same."""
    world = World(0.1 * T1, repeats=lambda at: True)  # noqa: ARG005
    before = world.costs.count(1)
    world.run(50, room=0)
    assert not any(world.asked)
    assert world.costs.count(1) > before
    assert world.run(20) > 3  # as soon as they want some


def looks(looking: float) -> int:
    """How often the draft model, which names nothing, is asked in 1000 rounds."""
    world, n = World(looking), 0

    def counted(wanted: Mapping[int, Sequence[int]]) -> dict[int, Proposal]:  # noqa: ARG001
        nonlocal n
        n += 1
        world.now += 0.3 * T1
        return {}

    model = ScriptedDrafter(lambda history, draft: None, "model")  # noqa: ARG005
    model.step = counted  # type: ignore[method-assign]
    world.policy = Planner([world.drafter, model], lambda: world.now, world.costs)
    world.begin(0)
    world.run(1000)
    return n


def test_looks_at_a_model_wait_hardly_longer_for_it():
    """Rounds that were slept through count as rounds without a look."""
    assert looks(0.1 * T1) >= 0.6 * looks(0.0) > 5
