"""The planner with a draft model and a head: the better one drafts, and a poor one costs next to nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pytest

from specllama.core.interfaces import DecodeError, Drafter, Proposal
from specllama.core.policy.base import Draft
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.planner import Planner
from specllama.core.policy.posterior import PairState
from specllama.core.replay.simulator import (
    MakePolicy,
    Replay,
    Trace,
    TraceDrafter,
    TraceHead,
    curve,
    steps_at,
)

POINTS = {1: 1.0, 2: 1.2, 4: 1.4, 8: 1.9, 16: 3.0, 64: 12.0}  # t(1) by rows
N_PROMPT, N_TEXT, N_TEXTS, N_LEARNT = 60, 160, 10, 4
Quality = Callable[[float], float]  # from the place in a text, 0 to 1, to the mean acceptance of a token


def planner(drafters: Sequence[Drafter], clock: Callable[[], float]) -> Planner:
    costs, seconds = CostCurve(), curve(POINTS)
    for n in range(1, DEFAULT.max_rows + 1):
        for _ in range(DEFAULT.min_samples):
            costs.observe(n, seconds(n))
    return Planner(drafters, clock, costs)


def choices(rng: random.Random, text: Sequence[int], quality: Quality) -> tuple[list[int], list[float]]:
    """Choices of this mean acceptance and their confidences, which are right: sure or unsure ones."""
    tokens, confidences = [], []
    for i, token in enumerate(text):
        mean, sure = quality(i / len(text)), 0.98
        unsure = min(mean, 0.4)
        confidence = sure if rng.random() * (sure - unsure) < mean - unsure else unsure
        tokens.append(token if rng.random() < confidence else token + 1)
        confidences.append(confidence)
    return tokens, confidences


class Texts:
    """Texts with the choices of a draft model and a head of these qualities."""

    def __init__(self, model: Quality, head: Quality, seed: int = 1) -> None:
        rng, self.by_text = random.Random(seed), dict[int, Trace]()
        self.model: list[Trace] = []
        for _ in range(N_TEXTS):
            prompt, text = ([rng.randrange(1000) for _ in range(n)] for n in (N_PROMPT, N_TEXT))
            trace = Trace(prompt, text, *choices(rng, text, model))
            self.model.append(trace)
            self.by_text[id(trace)] = Trace(prompt, text, *choices(rng, text, head))

    def head_of(self, trace: Trace) -> Trace:
        return self.by_text[id(trace)]


head = partial(TraceHead, n_kept=256)


class Beside(TraceHead):
    """A head beside a draft model, with its own choices for the same texts. step: its seconds for one id."""

    def __init__(self, model: TraceDrafter, step: float, texts: Texts) -> None:
        super().__init__(model.machine, steps_at(step), n_kept=256)
        self._model, self._texts = model, texts

    def start(self, seq_id: int, *_: object) -> None:
        self.begin(seq_id, self._texts.head_of(self._model.traces[seq_id]), True)


def with_head(texts: Texts, step: float, kind: type[Beside] = Beside) -> MakePolicy:
    """The planner with such a head."""

    def make(drafters: list[Drafter], clock: Callable[[], float]) -> Planner:
        (model,) = drafters
        assert isinstance(model, TraceDrafter)
        return planner([model, kind(model, step, texts)], clock)

    return make


def sessions(texts: Texts, model: float, of_head: float) -> tuple[Replay, Replay, Replay]:
    """The draft model alone, the head alone, and both. model, of_head: seconds of a step of each."""
    seconds = curve(POINTS)
    return (
        Replay(planner, seconds, model, None),
        Replay(planner, seconds, of_head, None, draft=head),
        Replay(with_head(texts, of_head), seconds, model, None),
    )


def rates(texts: Texts, model: float, of_head: float, n_slots: int = 1) -> list[float]:
    """Tokens per second after N_LEARNT texts: of the draft model alone, of the head alone, of both."""
    found = []
    of_heads = [texts.head_of(trace) for trace in texts.model]
    all_texts = (texts.model, of_heads, texts.model)
    for session, some in zip(sessions(texts, model, of_head), all_texts, strict=True):
        session.replay(some[:N_LEARNT], n_slots)
        done = session.replay(some[N_LEARNT:], n_slots)
        assert done.tokens == N_TEXT * (N_TEXTS - N_LEARNT)
        found.append(done.tokens / done.seconds)
    return found


CASES: dict[str, tuple[Quality, float, Quality, float]] = {  # acceptance and step of the model, of the head
    "a good head, a poor model": (lambda _: 0.3, 0.1, lambda _: 0.85, 0.05),
    "a poor head, a good model": (lambda _: 0.9, 0.07, lambda _: 0.2, 0.05),
    "a useless head, a good model": (lambda _: 0.9, 0.07, lambda _: 0.0, 0.05),
    "a good head, a useless model": (lambda _: 0.0, 0.1, lambda _: 0.85, 0.05),
    "a cheaper head": (lambda _: 0.85, 0.15, lambda _: 0.85, 0.03),
    "a cheaper model": (lambda _: 0.85, 0.03, lambda _: 0.85, 0.1),
    "first the head": (lambda x: 0.9 if x > 0.5 else 0.1, 0.07, lambda x: 0.85 if x < 0.5 else 0.1, 0.05),
    "a far better and cheaper head, a good model": (lambda _: 0.9, 0.07, lambda _: 0.97, 0.02),
    "first the model": (lambda x: 0.9 if x < 0.5 else 0.1, 0.07, lambda x: 0.85 if x > 0.5 else 0.1, 0.05),
}


@pytest.mark.parametrize("case", CASES)
def test_both_are_as_fast_as_the_better_one(case: str) -> None:
    model, step, of_head, head_step = CASES[case]
    *alone, both = rates(Texts(model, of_head), step, head_step)
    assert both >= 0.97 * max(1.0, *alone)


@pytest.mark.parametrize("useless", ["model", "head"])
def test_a_useless_one_of_two_costs_at_most_two_percent(useless: str) -> None:
    good, bad = (lambda _: 0.88), (lambda _: 0.0)
    qualities = (bad, good) if useless == "model" else (good, bad)
    found = [rates(Texts(*qualities, seed), 0.07, 0.05) for seed in (1, 2, 3)]
    alone, both = (sum(max(rate[:2]) for rate in found), sum(rate[2] for rate in found))
    assert both >= 0.98 * alone


def test_two_useless_ones_cost_no_more_than_the_budget() -> None:
    texts = Texts(lambda _: 0.0, lambda _: 0.0)
    *_, both = sessions(texts, 0.1, 0.05)
    done = both.replay(texts.model)
    assert done.seconds <= done.tokens * (1 + DEFAULT.overhead) + DEFAULT.allowance + 0.5


def test_several_sequences_may_use_different_ones() -> None:
    """Half of the texts suit the draft model, half of them the head."""
    texts = Texts(lambda _: 0.9, lambda _: 0.1)
    others = Texts(lambda _: 0.1, lambda _: 0.9, seed=2)
    texts.by_text |= others.by_text
    mixed = [trace for two in zip(texts.model, others.model, strict=True) for trace in two]
    *_, session = sessions(texts, 0.07, 0.05)
    assert isinstance(session.policy, Planner)
    draft, together = session.policy.draft, []

    def recorded(*given: object) -> dict[int, Draft]:
        drafts: dict[int, Draft] = draft(*given)  # type: ignore[arg-type]
        together.append({source for one in drafts.values() for source in one.sources})
        return drafts

    session.policy.draft = recorded  # type: ignore[method-assign]
    done = session.replay(mixed, n_slots=4)
    assert done.tokens == 2 * N_TEXT * N_TEXTS
    assert sum(used == {"model", "head"} for used in together) > 20
    assert done.tokens / done.seconds > 1.8


def test_one_without_proposals_leaves_the_sequence_to_the_other() -> None:
    """As a draft model whose context a sequence has outgrown: it is asked again only after a while."""

    class Silent(TraceDrafter):
        n_steps = 0

        def step(self, drafts: Mapping[int, Sequence[int]]) -> dict[int, Proposal]:
            self.n_steps += 1
            return super().step(drafts) if self.n_steps < 60 else {}

    texts = Texts(lambda _: 0.97, lambda _: 0.6)
    session = Replay(with_head(texts, 0.05), curve(POINTS), 0.03, None, draft=Silent)
    session.replay(texts.model[:1])
    assert isinstance(session.model, Silent)
    session.model.n_steps = 60
    done = session.replay(texts.model[1:])
    assert session.model.n_steps - 60 < 6 * len(texts.model)
    assert done.tokens / done.seconds > 1.3


class FailingHead(Beside):
    """Fails at its 30th step."""

    n_steps = 0

    def step(self, drafts: Mapping[int, Sequence[int]]) -> dict[int, Proposal]:
        self.n_steps += 1
        if self.n_steps == 30:
            raise DecodeError("device lost")
        return super().step(drafts)


def test_a_failure_changes_nothing_that_is_learnt_and_the_model_continues() -> None:
    texts = Texts(lambda _: 0.85, lambda _: 0.9)
    session = Replay(with_head(texts, 0.03, FailingHead), curve(POINTS), 0.07, None)
    policy = session.policy
    assert isinstance(policy, Planner)
    draft, learnt = policy.draft, list[list[list[float]]]()

    def guarded(*given: object) -> dict[int, Draft]:
        before = [weights[:] for name in ("model", "head") for weights in policy.learnt.models[name].first]
        try:
            found: dict[int, Draft] = draft(*given)  # type: ignore[arg-type]
        except DecodeError:
            learnt.append(before)
            policy.remove_drafter("head")
            return {}
        if len(learnt) == 1:  # the round after the failure
            learnt.append(before)
        return found

    policy.draft = guarded  # type: ignore[method-assign]
    session.replay(texts.model[:3])
    assert learnt[0] == learnt[1]
    assert policy.model_sources == {"model"}
    done = session.replay(texts.model[3:])
    assert done.tokens / done.seconds > 1.5


def test_the_other_one_continues_when_one_is_removed() -> None:
    texts = Texts(lambda _: 0.9, lambda _: 0.9)
    for name in ("model", "head"):
        *_, session = sessions(texts, 0.07, 0.05)
        session.replay(texts.model[:2])
        session.policy.remove_drafter(name)
        assert session.policy.model_sources == {"model", "head"} - {name}
        done = session.replay(texts.model[2:6])
        assert done.tokens / done.seconds > 1.5


def test_what_is_learnt_is_stored_for_each() -> None:
    model, step, of_head, head_step = CASES["first the head"]
    texts = Texts(model, of_head)
    *_, session = sessions(texts, step, head_step)
    session.replay(texts.model)
    assert isinstance(session.policy, Planner)
    learnt = session.policy.learnt
    assert [learnt.models[name].steps.predict(1, 1.0) for name in ("model", "head")] == pytest.approx(
        [step, head_step], rel=1e-3
    )
    again = PairState(session.policy.drafters)
    again.restore(learnt.to_dict())
    assert again.to_dict()["priced"].keys() == {"model", "head"}
    for name, state in again.models.items():
        for weights, before in zip(state.first, learnt.models[name].first, strict=True):
            assert weights == pytest.approx(before, abs=1e-3)
        assert state.explore == max(DEFAULT.stored_explore, learnt.models[name].explore)
        assert state.steps.predict(1, 1.0) == pytest.approx(learnt.models[name].steps.predict(1, 1.0))
    one = PairState([d for d in session.policy.drafters if d.name == "model"])
    stored = learnt.to_dict()
    one.restore(stored)
    assert one.to_dict()["priced"]["head"] == stored["priced"]["head"], "it is kept"
