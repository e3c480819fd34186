"""The planner's decisions, one by one; what it wins is in test_replay.py."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from operator import mul

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.core.interfaces import CachingDrafter, Proposal
from specllama.core.policy.base import Draft, Round, VerifyResult
from specllama.core.policy.candidates import (
    CandidateDraft,
    RoundBudget,
    best_affordable_length,
    best_length,
    select_drafts,
)
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.planner import Planner
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.sampler import KeyedSampler
from specllama.drafters.model import ModelDrafter
from specllama.testing import ScriptedDrafter, TableContext

GREEDY = KeyedSampler(SamplingParams(temperature=0), 0, 32)


def measured(seconds: Callable[[int], float]) -> CostCurve:
    found = CostCurve()
    for n in [n for n in range(1, DEFAULT.max_rows + 1) for _ in range(DEFAULT.min_samples)]:
        found.observe(n, seconds(n))
    return found


def _five(history: Sequence[int], draft: Sequence[int]) -> int:  # noqa: ARG001
    return 5


def cheap_rows(n: int) -> float:
    return 0.01 * (1 + 0.03 * (n - 1))


def dear_rows(n: int) -> float:
    return 0.01 * n


class World:
    """Sequences on a machine of t(n) and `step` seconds a drafted token; `right` says what is accepted.

    Its drafters always propose 5; the text goes on with 5 where `right` says so and else with 6.
    """

    def __init__(
        self,
        seconds: Callable[[int], float],
        step: float = 0.001,
        right: Callable[[], bool] = lambda: True,
        names: Sequence[str] = ("model",),
        confidence: float = 0.96,
        n_sequences: int = 1,
        cold: bool = False,
        learnt: object = None,
        costs: CostCurve | None = None,
    ) -> None:
        self.now, self.seconds, self.step, self.right = 0.0, seconds, step, right
        drafters = []
        for name in names:
            guess = self._guess if name == "model" else _five
            drafters.append(ScriptedDrafter(guess, name, confidence))
        if costs is None and not cold:
            costs = measured(seconds)
        self.policy = Planner(drafters, lambda: self.now, costs, learnt)
        self.sequences = range(n_sequences)
        for seq in self.sequences:
            self.policy.start(seq, [1, 2], GREEDY)
        self.rounds: list[Round] = []

    def _guess(self, history: Sequence[int], draft: Sequence[int]) -> int:  # noqa: ARG002
        self.now += self.step
        return 5

    def round(self, room: int = 99) -> dict[int, Draft]:
        began = self.now
        drafts = self.policy.draft(dict.fromkeys(self.sequences, room))
        drafted, outcomes = self.now, []
        rows = len(self.sequences) + sum(len(d.tokens) for d in drafts.values())
        for seq in self.sequences:
            draft, n = drafts.get(seq, Draft()), 0
            while n < len(draft.tokens) and self.right():
                n += 1
            self.policy.committed(seq, [5] * n + [6 if n < len(draft.tokens) or not self.right() else 5])
            outcomes.append(VerifyResult(seq, draft, n, n + 1))
        self.now += self.seconds(rows)
        done = Round(rows, self.now - drafted, drafted - began, self.now - began, outcomes)
        self.policy.observe(done)
        self.rounds.append(done)
        return drafts

    def run(self, n_rounds: int, room: int = 99) -> float:
        """Tokens per second over the rounds."""
        began = self.now
        for _ in range(n_rounds):
            self.round(room)
        return sum(o.n_emitted for r in self.rounds[-n_rounds:] for o in r.outcomes) / (self.now - began)

    def widths(self) -> list[int]:
        return [r.n_rows for r in self.rounds]


# How much to take


def offer(*chances: float) -> CandidateDraft:
    found = CandidateDraft()
    for chance in chances:
        found.add(5, "copy", 0, chance)
    return found


def prices(
    seconds: Callable[[int], float],
    budget: float = 1e9,
    spent: float = 0.0,
    most_rows: int = DEFAULT.max_rows,
) -> RoundBudget:
    table = [seconds(n) / 2 for n in range(DEFAULT.max_rows + 1)]
    return RoundBudget(table, 2.0, seconds, budget, most_rows, spent)


def best(found: CandidateDraft, price: RoundBudget) -> tuple[int, float]:
    return best_affordable_length(found.expected, price, 1, 1)


def test_an_offer_sums_what_it_may_win():
    assert offer(0.5, 0.5, 1.0).path_probs == [0.5, 0.25, 0.25]
    assert offer(0.5, 0.5, 1.0).expected == [0.5, 0.75, 1.0]


def test_ties_go_to_no_draft():
    assert best(offer(1.0, 1.0), prices(dear_rows)) == (0, 1 / dear_rows(1))


def test_a_wider_cheaper_stair_is_reached():
    stair = {1: 1.0, 2: 2.0, 3: 2.5, 4: 1.3}
    assert best(offer(0.6, 0.6, 0.6), prices(lambda n: stair.get(n, 9.0)))[0] == 3


def test_what_is_not_affordable_is_not_taken():
    assert best(offer(*[0.99] * 9), prices(cheap_rows, cheap_rows(4) + 1e-9))[0] == 3
    assert best(offer(*[0.99] * 9), prices(cheap_rows, 0.001))[0] == 0


chances = st.lists(st.floats(0.01, 1.0), max_size=6)


@settings(max_examples=60)
@given(st.lists(chances, min_size=2, max_size=3), st.integers(0, 3))
def test_the_sorted_rule_is_the_best_of_all_prefixes(offered, spread):
    """Of all ways to take prefixes none has a better rate, whatever the staircase."""
    rng = random.Random(spread)
    steps = [0.01]
    for _ in range(20):
        steps.append(max(0.01, steps[-1] * rng.uniform(0.9, 1.4)))
    offers = {seq: offer(*found) for seq, found in enumerate(offered)}
    price, active = prices(lambda n: steps[min(n, len(steps)) - 1]), len(offers)

    def rate(counts: Mapping[int, int]) -> float:
        wins = sum(offers[seq].expected_accepted(n) for seq, n in counts.items())
        return price.rate(active + wins, active + sum(counts.values()))

    every: list[dict[int, int]] = [{}]
    for seq, found in offers.items():
        every = [{**counts, seq: n} for counts in every for n in range(len(found.tokens) + 1)]
    assert rate(select_drafts(offers, price, active)) == pytest.approx(max(map(rate, every)))


@settings(max_examples=100)
@given(
    st.dictionaries(
        st.integers(0, 9), st.lists(st.sampled_from([0.2, 0.5, 0.9, 1.0]), max_size=9), min_size=2, max_size=5
    ),
    st.integers(1, 12),
    st.floats(0.005, 0.05),
)
def test_of_several_sequences_the_likeliest_tokens_are_taken(offered, most_rows, budget):
    """The tokens of all sequences sorted by their chances; ties go to the earlier token, then the larger
    sequence.
    """
    offers, active = {seq: offer(*found) for seq, found in offered.items()}, len(offered)
    price = prices(cheap_rows, budget, most_rows=most_rows)
    every = [(-s, j, -seq) for seq, found in offers.items() for j, s in enumerate(found.path_probs)]
    best, n_best, tokens = price.rate(active, active), 0, float(active)
    for n, (chance, _, _) in enumerate(sorted(every), 1):
        tokens -= chance
        if price.allows(active + n) and price.rate(tokens, active + n) > best:
            best, n_best = price.rate(tokens, active + n), n
    taken = [-seq for _, _, seq in sorted(every)[:n_best]]
    assert select_drafts(offers, price, active) == {seq: taken.count(seq) for seq in offers}


STAIRS = st.lists(st.sampled_from([0.5, 0.9, 1.0, 1.1, 2.0]), min_size=12, max_size=12)


@settings(max_examples=100)
@given(
    st.lists(st.floats(0.1, 1.0), max_size=9), STAIRS, st.floats(0, 1), st.floats(0, 3), st.integers(1, 14)
)
def test_of_the_prefixes_that_may_be_taken_it_is_the_best(chances, steps, spent, budget, most_rows):
    found, took = offer(*chances), list(accumulate(steps, mul))
    price = prices(lambda n: took[min(n, 11)], budget, spent, most_rows)
    allowed = [k for k in range(1, len(chances) + 1) if price.allows(1 + k)]
    rates = {k: price.rate(1 + found.expected_accepted(k), 1 + k) for k in (0, *allowed)}
    length, rate = best(found, price)
    assert rate == pytest.approx(max(rates.values())) == pytest.approx(rates[length])


@settings(max_examples=100)
@given(st.lists(st.floats(0.1, 1.0), max_size=9), STAIRS, st.floats(0, 1), st.floats(0, 2))
def test_what_is_spent_makes_no_shorter_draft_better(chances, steps, spent, more):
    """Whatever a decode takes by its rows, wider ones less than narrower ones too."""
    found, took = offer(*chances), list(accumulate(steps, mul))
    first, _ = best_length(found.expected, prices(lambda n: took[min(n, 11)], spent=spent), 1, 1)
    later = prices(lambda n: took[min(n, 11)], spent=spent + more)
    assert best_length(found.expected, later, 1, 1)[1] == pytest.approx(
        best_length(found.expected, later, 1, 1, first)[1]
    )


# The policy


def test_a_machine_that_nobody_knows_is_measured_plainly_first():
    world = World(cheap_rows, cold=True)
    world.run(20)
    assert world.widths()[0] == 1
    assert max(world.widths()) > 4


def test_good_drafts_grow_long_where_rows_are_cheap():
    world = World(cheap_rows, 0.0005)
    world.run(100)
    assert world.run(200) > 4 * 100
    assert max(world.widths()) > 10


def test_nothing_is_drafted_where_rows_cost_what_tokens_cost():
    world = World(dear_rows)
    world.run(300)
    assert world.widths().count(1) > 290


def test_a_draft_that_is_always_wrong_is_given_up():
    world = World(cheap_rows, 0.001, lambda: False, confidence=0.99)
    rate = world.run(1000)
    assert rate > 0.98 * 100
    assert world.widths()[-300:].count(1) > 290


def test_it_finds_back_when_the_draft_becomes_good():
    good = [False]
    world = World(cheap_rows, 0.0005, lambda: good[0])
    world.run(600)
    good[0] = True
    world.run(600)
    assert world.run(200) > 3 * 100


def test_acceptance_is_learnt_against_the_drafters_own_opinion():
    rng = random.Random(1)
    humble = World(cheap_rows, 0.0005, lambda: rng.random() < 0.97, confidence=0.3)
    humble.run(500)
    assert humble.policy.learnt.tables["model"].chances[2] > 0.9
    assert humble.run(200) > 2.5 * 100


def test_copies_are_drafted_without_a_model_and_scored_unused():
    world = World(dear_rows, names=("copy",))
    world.run(300)
    assert set(world.widths()) == {1}
    assert max(world.policy.learnt.tables["copy"].chances) > 0.99  # it was right all the time
    assert World(cheap_rows, names=("copy",)).run(100) > 4 * 100


def test_what_a_grammar_forces_is_drafted_and_the_model_goes_on_behind():
    world = World(cheap_rows, 0.0005, names=("grammar", "model"))
    grammar = world.policy.drafters[0]
    grammar.guess = lambda history, draft: 5 if len(draft) < 3 else None  # noqa: ARG005
    world.run(100)
    assert any(
        o.draft.sources[:3] == ["grammar"] * 3 and "model" in o.draft.sources
        for r in world.rounds
        for o in r.outcomes
    )


def test_drafts_keep_to_the_room():
    world = World(cheap_rows, 0.0005)
    world.run(100, room=3)
    assert max(world.widths()) == 4
    world.run(50, room=0)
    assert set(world.widths()[-50:]) == {1}


def test_without_drafters_or_after_they_failed_it_is_plain():
    world = World(cheap_rows, names=())
    world.run(50)
    assert set(world.widths()) == {1}
    world = World(cheap_rows, 0.0005)
    world.run(100)
    world.policy.remove_drafter("model")
    world.run(50)
    assert set(world.widths()[-50:]) == {1}


def test_one_plain_round_in_a_while_keeps_the_clock_right():
    world = World(cheap_rows, 0.0005)
    world.run(600)
    since = longest = 0.0
    for done in world.rounds:
        since = 0.0 if done.plain else since + done.seconds
        longest = max(longest, since)
    assert longest < 1.1
    assert 0.005 < sum(r.plain for r in world.rounds[50:]) / 550 < 0.1


def test_a_round_that_never_came_is_no_round():
    world = World(cheap_rows, 0.0005)
    for _ in range(30):
        world.policy.draft({0: 9})
    world.run(100)
    assert max(world.widths()) > 5


def test_several_sequences_share_a_round():
    world = World(cheap_rows, 0.0005, n_sequences=4)
    world.run(100)
    for done in world.rounds[-50:]:
        assert done.n_rows <= DEFAULT.max_rows
    assert max(world.widths()) > 12
    assert world.run(50) > 4 * 4 / cheap_rows(4) / 4


def test_speculation_fades_where_many_sequences_fill_the_machine():
    """Beyond 16 rows each further one costs what the 16 do."""
    world = World(lambda n: 0.01 * max(1.0, n / 16), 0.001, n_sequences=16)
    world.run(200)
    assert world.widths()[50:].count(16) > 145


def test_a_sequence_that_may_not_be_drafted_for_shares_the_round():
    world = World(cheap_rows, 0.0, names=("copy",), n_sequences=2)
    for _ in range(10):
        drafts = world.policy.draft({0: 9, 1: 0})
        assert 1 not in drafts
        for seq in (0, 1):
            world.policy.committed(seq, [5])
        rows = 2 + sum(len(d.tokens) for d in drafts.values())
        outcomes = [VerifyResult(seq, drafts.get(seq, Draft()), 0, 1) for seq in (0, 1)]
        world.policy.observe(Round(rows, cheap_rows(rows), 0.0, cheap_rows(rows), outcomes))


def test_another_context_length_is_another_curve():
    world = World(cheap_rows, 0.0005)
    world.run(50)
    world.seconds = dear_rows
    world.policy.use_costs(measured(dear_rows))
    world.run(600)
    assert world.widths()[-100:].count(1) > 90


def test_what_was_learnt_is_stored_and_restored():
    rng = random.Random(1)
    world = World(cheap_rows, 0.0005, lambda: rng.random() < 0.8)
    world.run(400)
    data = json.loads(json.dumps(world.policy.learnt.to_dict()))
    again = World(cheap_rows, 0.0005, learnt=data).policy.learnt
    stored = again.to_dict()
    assert {name: stored[name] for name in ("tables", "after", "gains")} == {
        name: data[name] for name in ("tables", "after", "gains")
    }
    assert [width[:2] for width in stored["steps"]["widths"]] == [w[:2] for w in data["steps"]["widths"]]
    assert again.steps.predict(1, 1.0) == pytest.approx(0.0005)


def test_a_stored_curve_serves_from_the_second_round_on():
    world = World(cheap_rows, 0.0005, costs=CostCurve.from_dict(measured(cheap_rows).to_dict()))
    world.run(12)
    assert world.widths()[0] == 1  # the plain round that says how fast the machine is now
    assert max(world.widths()[1:]) > 4


def nonsense(seconds: float) -> CostCurve:
    """As a broken store could have it: well formed, and every width costs the same."""
    return CostCurve.from_dict({"widths": [[n, seconds, 1000] for n in range(1, DEFAULT.max_rows + 1)]})


@pytest.mark.parametrize("seconds", [1e-9, 1e-4, 1e6])
def test_a_stored_curve_that_is_all_wrong_does_no_harm_for_long(seconds):
    """Where rows cost what tokens cost, and the draft is never right: the worst that can be believed."""
    world = World(dear_rows, 0.001, lambda: False, confidence=0.99, costs=nonsense(seconds))
    rate = world.run(600)
    assert rate > 0.95 * 100
    assert world.widths()[-400:].count(1) > 390
    cheap = World(cheap_rows, 0.0005, costs=nonsense(seconds))
    cheap.run(200)
    assert cheap.run(100) > 4 * 100


@pytest.mark.parametrize("gain", [-1e9, -100.0, 100.0, 1e9])
def test_stored_gains_that_are_all_wrong_are_unlearnt(gain):
    good = World(cheap_rows, 0.0005, learnt={"gains": [gain] * 3})
    good.run(400)
    assert good.run(100) > 4 * 100
    bad = World(cheap_rows, 0.001, lambda: False, confidence=0.99, learnt={"gains": [gain] * 3})
    bad.run(400)
    assert bad.run(600) > 0.97 * 100


def test_what_a_request_was_offered_is_counted_used_or_not():
    rng = random.Random(1)
    world = World(dear_rows, names=("copy",), right=lambda: rng.random() < 0.5)
    world.run(200)
    tally = world.policy.offer_stats(0)
    assert tally.offered == 200
    assert 70 < tally.offered_right < 130
    assert (tally.asked, tally.named) == (0, 0)
    world.policy.forget(0)
    assert world.policy.offer_stats(0) == tally
    world.policy.start(0, [1], GREEDY)
    assert world.policy.offer_stats(0).offered == 0
    asked = World(cheap_rows, 0.0005)
    asked.run(50)
    tally = asked.policy.offer_stats(0)
    assert 40 < tally.asked == tally.named == tally.named_right
    assert tally.offered == 0


@pytest.mark.parametrize(
    "data", [None, 5, "x", [], {}, {"tables": 3, "after": [], "gains": [1], "steps": 7}, {"gains": ["a"] * 3}]
)
def test_what_was_stored_by_somebody_else_is_left_out(data):
    fresh = World(cheap_rows).policy.learnt.to_dict()
    assert World(cheap_rows, learnt=data).policy.learnt.to_dict() == fresh


# The draft model's view


def drafter_for(n_prompt: int) -> tuple[ModelDrafter, list[int]]:
    prompt = [random.Random(n_prompt).randrange(32) for _ in range(n_prompt)]
    model = ModelDrafter(TableContext(32, 4096), 32)
    model.start(0, prompt, GREEDY)
    return model, prompt


def test_the_models_view_can_be_narrowed_to_the_end():
    model, prompt = drafter_for(300)
    assert model.cache_state(0) == (0, 0, 300)
    model.restart_from_tail(0, 40)
    assert model.cache_state(0) == (260, 0, 40)
    token = model.step({0: []})[0].token
    assert model.context.widths == [40]
    assert token == model.context.rows(prompt[260:]).argmax()
    model.committed(0, [token, 3])
    assert model.cache_state(0) == (260, 40, 2)
    model.restart_from_tail(0, 10_000)
    assert model.cache_state(0) == (0, 0, 302)
    assert model.cells[0] == []


def test_a_narrow_view_ends_with_its_sequence():
    model, prompt = drafter_for(300)
    model.restart_from_tail(0, 40)
    model.step({0: []})
    model.forget(0)
    model.start(0, prompt, GREEDY)
    assert model.cache_state(0) == (0, 0, 300)


def test_a_long_prompt_is_covered_from_its_end_and_whole_when_that_is_paid_for():
    n_prompt, now = 2000, [0.0]

    class Timed(ModelDrafter):
        def step(self, drafts: Mapping[int, Sequence[int]]) -> dict[int, Proposal]:
            now[0] += 0.00003 * sum(self.cache_state(s).n_pending if not d else 1 for s, d in drafts.items())
            return super().step(drafts)

    prompt = [random.Random(1).randrange(32) for _ in range(n_prompt)]
    model = Timed(TableContext(32, 8192, n_batch=64), 32)
    assert isinstance(model, CachingDrafter)
    policy = Planner([model], lambda: now[0], measured(cheap_rows))
    policy.start(0, prompt, GREEDY)
    skipped, held = [], []
    for _ in range(400):
        began = now[0]
        draft = policy.draft({0: 99}).get(0, Draft())
        spent = now[0] - began
        skipped.append(model.cache_state(0).n_skipped)
        held.append(model.cache_state(0).n_held)
        assert spent / 0.01 <= max(DEFAULT.allowance, policy.budget.credit)  # never more than there is
        policy.committed(0, [*draft.tokens, 7])  # all right, always
        n = len(draft.tokens) + 1
        policy.observe(
            Round(n, cheap_rows(n), spent, cheap_rows(n) + spent, [VerifyResult(0, draft, n - 1, n)])
        )
        if skipped[-1] == 0 and len(skipped) > 1 and skipped[-2]:
            break
    assert DEFAULT.min_tail <= next(n for n in held if n) < n_prompt / 2
    assert skipped[-1] == 0
