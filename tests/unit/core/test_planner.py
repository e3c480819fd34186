"""The planner's decisions, one by one; what it gains is in test_replay.py."""

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
from specllama.core.stats import FREE
from specllama.drafters.model import ModelDrafter
from specllama.testing import TableContext
from tests.support.examples import examples
from tests.support.scripted import ScriptedDrafter

GREEDY = KeyedSampler(SamplingParams(temperature=0), 0, 32)


def measured(seconds: Callable[[int], float]) -> CostCurve:
    costs = CostCurve()
    for n in [n for n in range(1, DEFAULT.max_rows + 1) for _ in range(DEFAULT.min_samples)]:
        costs.observe(n, seconds(n))
    return costs


def _five(history: Sequence[int], draft: Sequence[int]) -> int:  # noqa: ARG001
    return 5


def cheap_rows(n: int) -> float:
    return 0.01 * (1 + 0.03 * (n - 1))


def costly_rows(n: int) -> float:
    return 0.01 * n


class Machine:
    """A planner on a simulated machine with decodes of `seconds(n)` and draft model steps of `step` seconds.

    Its drafters always propose 5; the text continues with 5 where `right()` is true, else with 6.
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
        start = self.now
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
        done = Round(rows, self.now - drafted, drafted - start, self.now - start, outcomes)
        self.policy.observe(done)
        self.rounds.append(done)
        return drafts

    def run(self, n_rounds: int, room: int = 99) -> float:
        """Tokens per second over the rounds."""
        start = self.now
        for _ in range(n_rounds):
            self.round(room)
        return sum(o.n_emitted for r in self.rounds[-n_rounds:] for o in r.outcomes) / (self.now - start)

    def widths(self) -> list[int]:
        return [r.n_rows for r in self.rounds]


# How much of a candidate to verify


def candidate(*chances: float) -> CandidateDraft:
    draft = CandidateDraft()
    for chance in chances:
        draft.add(5, "copy", 0, chance)
    return draft


def round_budget(
    seconds: Callable[[int], float],
    max_seconds: float = 1e9,
    spent: float = 0.0,
    max_rows: int = DEFAULT.max_rows,
) -> RoundBudget:
    table = [seconds(n) / 2 for n in range(DEFAULT.max_rows + 1)]
    return RoundBudget(table, 2.0, seconds, max_seconds, max_rows, spent)


def best(draft: CandidateDraft, limits: RoundBudget) -> tuple[int, float]:
    return best_affordable_length(draft.expected, limits, 1, 1)


def test_a_candidate_sums_the_expected_accepted_tokens():
    assert candidate(0.5, 0.5, 1.0).path_probs == [0.5, 0.25, 0.25]
    assert candidate(0.5, 0.5, 1.0).expected == [0.5, 0.75, 1.0]


def test_no_draft_wins_ties():
    assert best(candidate(1.0, 1.0), round_budget(costly_rows)) == (0, 1 / costly_rows(1))


def test_a_wider_and_cheaper_decode_is_found():
    times = {1: 1.0, 2: 2.0, 3: 2.5, 4: 1.3}
    assert best(candidate(0.6, 0.6, 0.6), round_budget(lambda n: times.get(n, 9.0)))[0] == 3


def test_an_unaffordable_length_is_not_chosen():
    assert best(candidate(*[0.99] * 9), round_budget(cheap_rows, cheap_rows(4) + 1e-9))[0] == 3
    assert best(candidate(*[0.99] * 9), round_budget(cheap_rows, 0.001))[0] == 0


chances = st.lists(st.floats(0.01, 1.0), max_size=6)


@settings(max_examples=examples(60))
@given(st.lists(chances, min_size=2, max_size=3), st.integers(0, 3))
def test_select_drafts_finds_the_best_of_all_prefixes(chances_by_seq, spread):
    """No other choice of prefixes has a better rate, whatever the staircase."""
    rng = random.Random(spread)
    steps = [0.01]
    for _ in range(20):
        steps.append(max(0.01, steps[-1] * rng.uniform(0.9, 1.4)))
    candidates = {seq: candidate(*chances) for seq, chances in enumerate(chances_by_seq)}
    limits, active = round_budget(lambda n: steps[min(n, len(steps)) - 1]), len(candidates)

    def rate(counts: Mapping[int, int]) -> float:
        accepted = sum(candidates[seq].expected_accepted(n) for seq, n in counts.items())
        return limits.rate(active + accepted, active + sum(counts.values()))

    every: list[dict[int, int]] = [{}]
    for seq, draft in candidates.items():
        every = [{**counts, seq: n} for counts in every for n in range(len(draft.tokens) + 1)]
    assert rate(select_drafts(candidates, limits, active)) == pytest.approx(max(map(rate, every)))


@settings(max_examples=examples(100))
@given(
    st.dictionaries(
        st.integers(0, 9), st.lists(st.sampled_from([0.2, 0.5, 0.9, 1.0]), max_size=9), min_size=2, max_size=5
    ),
    st.integers(1, 12),
    st.floats(0.005, 0.05),
)
def test_the_most_likely_tokens_of_all_sequences_are_selected(chances_by_seq, max_rows, max_seconds):
    """All tokens sorted by their probability; of equal ones the earlier token, then the larger sequence."""
    candidates, active = (
        {seq: candidate(*chances) for seq, chances in chances_by_seq.items()},
        len(chances_by_seq),
    )
    limits = round_budget(cheap_rows, max_seconds, max_rows=max_rows)
    every = [(-s, j, -seq) for seq, draft in candidates.items() for j, s in enumerate(draft.path_probs)]
    best, n_best, tokens = limits.rate(active, active), 0, float(active)
    for n, (chance, _, _) in enumerate(sorted(every), 1):
        tokens -= chance
        if limits.allows(active + n) and limits.rate(tokens, active + n) > best:
            best, n_best = limits.rate(tokens, active + n), n
    selected = [-seq for _, _, seq in sorted(every)[:n_best]]
    assert select_drafts(candidates, limits, active) == {seq: selected.count(seq) for seq in candidates}


STEPS = st.lists(st.sampled_from([0.5, 0.9, 1.0, 1.1, 2.0]), min_size=12, max_size=12)


@settings(max_examples=examples(100))
@given(st.lists(st.floats(0.1, 1.0), max_size=9), STEPS, st.floats(0, 1), st.floats(0, 3), st.integers(1, 14))
def test_the_best_affordable_length_has_the_best_rate_of_all_allowed(
    chances, steps, spent, max_seconds, max_rows
):
    draft, times = candidate(*chances), list(accumulate(steps, mul))
    limits = round_budget(lambda n: times[min(n, 11)], max_seconds, spent, max_rows)
    allowed = [k for k in range(1, len(chances) + 1) if limits.allows(1 + k)]
    rates = {k: limits.rate(1 + draft.expected_accepted(k), 1 + k) for k in (0, *allowed)}
    length, rate = best(draft, limits)
    assert rate == pytest.approx(max(rates.values())) == pytest.approx(rates[length])


@settings(max_examples=examples(100))
@given(st.lists(st.floats(0.1, 1.0), max_size=9), STEPS, st.floats(0, 1), st.floats(0, 2))
def test_time_spent_never_makes_a_shorter_draft_better(chances, steps, spent, more):
    """For any times by rows, even where wider decodes are faster."""
    draft, times = candidate(*chances), list(accumulate(steps, mul))
    first, _ = best_length(draft.expected, round_budget(lambda n: times[min(n, 11)], spent=spent), 1, 1)
    later = round_budget(lambda n: times[min(n, 11)], spent=spent + more)
    assert best_length(draft.expected, later, 1, 1)[1] == pytest.approx(
        best_length(draft.expected, later, 1, 1, first)[1]
    )


# The policy


def test_an_unmeasured_machine_starts_with_plain_rounds():
    machine = Machine(cheap_rows, cold=True)
    machine.run(20)
    assert machine.widths()[0] == 1
    assert max(machine.widths()) > 4


def test_good_drafts_become_long_where_rows_are_cheap():
    machine = Machine(cheap_rows, 0.0005)
    machine.run(100)
    assert machine.run(200) > 4 * 100
    assert max(machine.widths()) > 10


def test_nothing_is_drafted_where_rows_cost_as_much_as_decodes():
    machine = Machine(costly_rows)
    machine.run(300)
    assert machine.widths().count(1) > 290


def test_a_drafter_that_is_always_wrong_is_not_used_for_long():
    machine = Machine(cheap_rows, 0.001, lambda: False, confidence=0.99)
    rate = machine.run(1000)
    assert rate > 0.98 * 100
    assert machine.widths()[-300:].count(1) > 290


def test_drafting_resumes_when_the_drafter_becomes_good():
    good = [False]
    machine = Machine(cheap_rows, 0.0005, lambda: good[0])
    machine.run(600)
    good[0] = True
    machine.run(600)
    assert machine.run(200) > 3 * 100


def test_learnt_acceptance_overrides_the_drafters_confidence():
    rng = random.Random(1)
    modest = Machine(cheap_rows, 0.0005, lambda: rng.random() < 0.97, confidence=0.3)
    modest.run(500)
    assert modest.policy.learnt.tables["model"].chances[2] > 0.9
    assert modest.run(200) > 2.5 * 100


def test_copies_are_drafted_without_a_model_and_observed_unused():
    machine = Machine(costly_rows, names=("copy",))
    machine.run(300)
    assert set(machine.widths()) == {1}
    assert max(machine.policy.learnt.tables["copy"].chances) > 0.99  # it was always right
    assert Machine(cheap_rows, names=("copy",)).run(100) > 4 * 100


def test_the_model_continues_after_forced_tokens():
    machine = Machine(cheap_rows, 0.0005, names=("grammar", "model"))
    grammar = machine.policy.drafters[0]
    grammar.guess = lambda history, draft: 5 if len(draft) < 3 else None  # noqa: ARG005
    machine.run(100)
    assert any(
        o.draft.sources[:3] == ["grammar"] * 3 and "model" in o.draft.sources
        for r in machine.rounds
        for o in r.outcomes
    )


def test_drafts_do_not_exceed_the_room():
    machine = Machine(cheap_rows, 0.0005)
    machine.run(100, room=3)
    assert max(machine.widths()) == 4
    machine.run(50, room=0)
    assert set(machine.widths()[-50:]) == {1}


def test_rounds_are_plain_without_drafters_or_after_their_removal():
    machine = Machine(cheap_rows, names=())
    machine.run(50)
    assert set(machine.widths()) == {1}
    machine = Machine(cheap_rows, 0.0005)
    machine.run(100)
    machine.policy.remove_drafter("model")
    machine.run(50)
    assert set(machine.widths()[-50:]) == {1}


def test_regular_plain_rounds_keep_t1_known():
    machine = Machine(cheap_rows, 0.0005)
    machine.run(600)
    since = longest = 0.0
    for done in machine.rounds:
        since = 0.0 if done.plain else since + done.seconds
        longest = max(longest, since)
    assert longest < 1.1
    assert 0.005 < sum(r.plain for r in machine.rounds[50:]) / 550 < 0.1


def test_drafts_that_are_never_verified_have_no_effect():
    machine = Machine(cheap_rows, 0.0005)
    for _ in range(30):
        machine.policy.draft({0: 9})
    machine.run(100)
    assert max(machine.widths()) > 5


def test_several_sequences_share_a_round():
    machine = Machine(cheap_rows, 0.0005, n_sequences=4)
    machine.run(100)
    for done in machine.rounds[-50:]:
        assert done.n_rows <= DEFAULT.max_rows
    assert max(machine.widths()) > 12
    assert machine.run(50) > 4 * 4 / cheap_rows(4) / 4


def test_drafting_stops_where_many_sequences_fill_the_machine():
    """Beyond 16 rows, time grows in proportion to the rows."""
    machine = Machine(lambda n: 0.01 * max(1.0, n / 16), 0.001, n_sequences=16)
    machine.run(200)
    assert machine.widths()[50:].count(16) > 145


def test_a_sequence_without_room_shares_the_round():
    machine = Machine(cheap_rows, 0.0, names=("copy",), n_sequences=2)
    for _ in range(10):
        drafts = machine.policy.draft({0: 9, 1: 0})
        assert 1 not in drafts
        for seq in (0, 1):
            machine.policy.committed(seq, [5])
        rows = 2 + sum(len(d.tokens) for d in drafts.values())
        outcomes = [VerifyResult(seq, drafts.get(seq, Draft()), 0, 1) for seq in (0, 1)]
        machine.policy.observe(Round(rows, cheap_rows(rows), 0.0, cheap_rows(rows), outcomes))


def test_use_costs_switches_the_cost_curve():
    machine = Machine(cheap_rows, 0.0005)
    machine.run(50)
    machine.seconds = costly_rows
    machine.policy.use_costs(measured(costly_rows))
    machine.run(600)
    assert machine.widths()[-100:].count(1) > 90


def test_the_learnt_state_is_stored_and_restored():
    rng = random.Random(1)
    machine = Machine(cheap_rows, 0.0005, lambda: rng.random() < 0.8)
    machine.run(400)
    data = json.loads(json.dumps(machine.policy.learnt.to_dict()))
    restored = Machine(cheap_rows, 0.0005, learnt=data).policy.learnt
    stored = restored.to_dict()
    assert stored["tables"] == data["tables"]
    now, before = stored["priced"]["model"], data["priced"]["model"]
    assert (now["after"], now["explore"]) == (before["after"], before["explore"])
    for weights, stored_weights in zip(now["first"], before["first"], strict=True):
        assert weights == pytest.approx(stored_weights, abs=1e-3)
    assert (stored["runs"], stored["credit"]) == (data["runs"], min(data["credit"], DEFAULT.stored_credit[1]))
    assert [width[:2] for width in now["steps"]["widths"]] == [w[:2] for w in before["steps"]["widths"]]
    assert restored.models["model"].steps.predict(1, 1.0) == pytest.approx(0.0005)


@pytest.mark.parametrize("slower", [0.5, 1.0, 3.0])
def test_a_stored_curve_is_used_from_the_first_round_on(slower):
    """A decode at loading sets its scale; the machine may be slower than in the earlier process."""
    costs = CostCurve.from_dict(measured(lambda n: cheap_rows(n) / slower).to_dict())
    costs.set_scale(1, cheap_rows(1))
    machine = Machine(cheap_rows, 0.0005, costs=costs)
    machine.run(1)
    assert machine.widths()[0] > 1
    assert machine.run(20) > 4 * 100


def wrong_curve(seconds: float) -> CostCurve:
    """A stored curve that is well formed, but has the same time for every width."""
    return CostCurve.from_dict({"widths": [[n, seconds, 1000] for n in range(1, DEFAULT.max_rows + 1)]})


@pytest.mark.parametrize("seconds", [1e-9, 1e-4, 1e6])
def test_a_wrong_stored_curve_is_corrected_quickly(seconds):
    """The worst case: rows cost as much as decodes, and the drafter is never right."""
    machine = Machine(costly_rows, 0.001, lambda: False, confidence=0.99, costs=wrong_curve(seconds))
    machine.policy.costs.set_scale(1, costly_rows(1))  # as loading does
    rate = machine.run(600)
    assert rate > 0.95 * 100
    assert machine.widths()[-400:].count(1) > 390
    cheap = Machine(cheap_rows, 0.0005, costs=wrong_curve(seconds))
    cheap.policy.costs.set_scale(1, cheap_rows(1))
    cheap.run(200)
    assert cheap.run(100) > 4 * 100


@pytest.mark.parametrize("explore", [-1e9, -100.0, 100.0, 1e9])
@pytest.mark.parametrize("first", [0, 12, 13])
def test_a_wrong_record_of_a_draft_is_unlearnt(explore, first):
    """As if its first token had always been unsure, or sure, or as if it never had one."""
    weights = [float(i == first) for i in range(14)]
    learnt = {"priced": {"model": {"first": [weights] * 2, "explore": explore}}}
    good = Machine(cheap_rows, 0.0005, learnt=learnt)
    good.run(400)
    assert good.run(100) > 4 * 100
    bad = Machine(cheap_rows, 0.001, lambda: False, confidence=0.99, learnt=learnt)
    bad.run(400)
    assert bad.run(600) > 0.97 * 100


def test_candidates_are_counted_whether_used_or_not():
    rng = random.Random(1)
    machine = Machine(costly_rows, names=("copy",), right=lambda: rng.random() < 0.5)
    machine.run(200)
    stats = machine.policy.offer_stats(0)
    assert stats.drafted == {FREE: 200}
    assert 70 < stats.right[FREE] < 130
    assert not stats.used
    machine.policy.forget(0)
    assert machine.policy.offer_stats(0) == stats
    machine.policy.start(0, [1], GREEDY)
    assert machine.policy.offer_stats(0).drafted[FREE] == 0
    machine = Machine(cheap_rows, 0.0005)
    machine.run(50)
    stats = machine.policy.offer_stats(0)
    assert 40 < stats.used["model"] == stats.drafted["model"] == stats.right["model"]
    assert stats.drafted[FREE] == 0


@pytest.mark.parametrize(
    "data",
    [
        None,
        5,
        "x",
        [],
        {},
        {"tables": 3, "priced": 7},
        {"priced": []},
        {"priced": {"model": 5, "other": "x"}},
        {"priced": {"model": {"after": [], "first": [1], "steps": 7, "explore": "x"}}},
        {"priced": {"model": {"first": [["a"] * 14, [True] * 14], "explore": True}}},
        {"priced": {"model": {"first": [[0.0] * 14] * 2, "explore": float("nan")}}},
        {"runs": 3, "credit": "x"},
        {"runs": [{"right": [2.0], "seen": [1.0], "draft": 0.1}, {"right": [1.0], "seen": [1.0]}]},
        {"gains": [1.0] * 3, "steps": {}},
    ],
)
def test_invalid_stored_data_is_ignored(data):
    fresh = Machine(cheap_rows).policy.learnt.to_dict()
    assert Machine(cheap_rows, learnt=data).policy.learnt.to_dict() == fresh


# The draft model's cache


def drafter_for(n_prompt: int) -> tuple[ModelDrafter, list[int]]:
    prompt = [random.Random(n_prompt).randrange(32) for _ in range(n_prompt)]
    model = ModelDrafter(TableContext(32, 4096), 32)
    model.start(0, prompt, GREEDY)
    return model, prompt


def test_the_models_cache_can_restart_from_the_tail():
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


def test_a_new_sequence_starts_with_a_full_cache():
    model, prompt = drafter_for(300)
    model.restart_from_tail(0, 40)
    model.step({0: []})
    model.forget(0)
    model.start(0, prompt, GREEDY)
    assert model.cache_state(0) == (0, 0, 300)


def test_a_long_prompt_is_read_from_its_tail_and_fully_once_gains_pay_for_it():
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
        start = now[0]
        draft = policy.draft({0: 99}).get(0, Draft())
        spent = now[0] - start
        skipped.append(model.cache_state(0).n_skipped)
        held.append(model.cache_state(0).n_held)
        assert spent / 0.01 <= max(DEFAULT.allowance, policy.budget.credit)  # never more than the credit
        policy.committed(0, [*draft.tokens, 7])  # every draft token is right
        n = len(draft.tokens) + 1
        policy.observe(
            Round(n, cheap_rows(n), spent, cheap_rows(n) + spent, [VerifyResult(0, draft, n - 1, n)])
        )
        if skipped[-1] == 0 and len(skipped) > 1 and skipped[-2]:
            break
    assert DEFAULT.min_tail <= next(n for n in held if n) < n_prompt / 2
    assert skipped[-1] == 0
