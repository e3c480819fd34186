"""Replay: deterministic, exact where it can be computed by hand; the planner keeps its bounds there."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from specllama import wire
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.fixed import Fixed
from specllama.core.policy.planner import Planner
from specllama.core.replay.forecast import record, write_text
from specllama.core.replay.simulator import CATCH_UP, Replay, Trace, curve, undisturbed
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.history import HistoryDrafter
from specllama.drafters.ngrams import RequestHistory
from specllama.testing import TableContext
from tests.support.machines import MACHINES

HERE = Path(__file__).parent
CONFIDENCES = (0.3, 0.6, 0.9, 0.99, 0.999)


def load(path: Path) -> dict[str, list[Trace]]:
    return wire.from_text(dict[str, list[Trace]], path.read_text())


OWN = load(HERE / "traces" / "pydoc.json")


def known(points: dict[int, float]) -> CostCurve:
    seconds, costs = curve(points), CostCurve()
    for n in [n for n in range(1, DEFAULT.max_rows + 1) for _ in range(DEFAULT.min_samples)]:
        costs.observe(n, seconds(n))
    return costs


def session(
    machine: str, step: float | None, cold: bool = False, disturb=undisturbed, learnt: object = None
) -> Replay:
    points = MACHINES[machine]
    return Replay(
        lambda drafters, clock: Planner(drafters, clock, None if cold else known(points), learnt),
        curve(points), step, CopyDrafter, disturb,
    )  # fmt: skip


def mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def ids(n: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(5, 4000), k=n)


def mostly_wrong(prompt: list[int], text: list[int], seed: int = 1, right=lambda i: False) -> Trace:  # noqa: ARG005
    """A confident draft that is right only where `right(i)` is true."""
    rng = random.Random(seed)
    draft = [x if right(i) else x + 1 for i, x in enumerate(text)]
    return Trace(prompt, text, draft, rng.choices(CONFIDENCES, k=len(text)))


# Replaying


def test_plain_decoding_takes_one_row_per_token():
    points = MACHINES["B f16"]
    replayed = Replay(lambda d, clock: Fixed(d, 0), curve(points), 0.1, None).replay(OWN["json"])  # noqa: ARG005
    n = sum(len(t.text) for t in OWN["json"])
    assert (replayed.tokens, replayed.rounds, replayed.n_drafted) == (n, n, 0)
    assert replayed.seconds == pytest.approx(n) == pytest.approx(replayed.measured)


def test_a_fixed_length_takes_the_time_computed_by_hand():
    """Each round drafts two tokens, the second of which is wrong."""
    text = list(range(10, 19))
    trace = Trace([1, 2, 3], text, [t if i % 2 == 0 else 0 for i, t in enumerate(text)], [0.9] * 9)
    points = {1: 1.0, 2: 1.25, 3: 1.5}
    replayed = Replay(lambda d, clock: Fixed(d, 2), curve(points), 0.1, None).replay([trace])  # noqa: ARG005
    rounds = 4 * (1.5 + 0.2) + 1.0  # two tokens per round, then a single one
    assert replayed.rounds == 5
    assert (replayed.n_drafted, replayed.n_accept) == (8, 4)
    assert replayed.seconds == pytest.approx(rounds)


def test_the_draft_model_catches_up_with_copied_tokens():
    period = ids(6, 1)
    trace = Trace(period * 3, period * 4, period * 4, [0.9] * 24)
    points = {1: 1.0, 2: 1.0}
    replay = Replay(lambda d, clock: Fixed(d, 5), curve(points), 0.1, CopyDrafter)  # noqa: ARG005
    replay.replay([trace])
    assert replay.model is not None
    assert (
        replay.model.cache_state(0).n_pending == 1 + 24 - 0
    )  # all was copied; it has the prompt but its last id
    assert replay.model.step({0: []}) == {}
    assert replay.machine.quiet == pytest.approx(4 + 0.1 * (1 + CATCH_UP * 24))


def test_a_replay_is_deterministic():
    first, second = (session("A Q4_0", 0.07, cold=True).replay(OWN["edit"]) for _ in range(2))
    assert first == second


def test_disturbance_is_measured_but_not_counted():
    replayed = session("GPU", 0.07, disturb=lambda now: 3.0).replay(OWN["json"])  # noqa: ARG005
    assert replayed.measured == pytest.approx(3 * replayed.seconds)


@pytest.mark.parametrize(
    "change", [{"prompt": []}, {"text": [1]}, {"conf": [2.0] * 3}, {"conf": [math.nan] * 3}, {"draft": 5}]
)
def test_rejects_invalid_traces(change):
    valid = {"prompt": [1], "text": [1, 2, 3], "draft": [1, 2, 3], "conf": [0.5] * 3}
    trace = wire.from_plain(Trace, valid)
    assert wire.from_plain(Trace, json.loads(wire.to_json(trace))) == trace
    with pytest.raises(ValueError, match=r"trace|a list expected"):
        wire.from_plain(Trace, valid | change)
    with pytest.raises(ValueError, match="is missing"):
        wire.from_plain(Trace, {"prompt": [1]})


def test_recording_evaluates_the_draft_at_every_position():
    target, draft = TableContext(32, 128), TableContext(32, 128, n_batch=8)
    prompt = [5, 6, 7, 8, 9] * 4
    text = write_text(target, prompt, 40, {0})
    assert 1 <= len(text) <= 40
    trace = record(prompt, text, draft)
    for i in range(len(text)):
        row = draft.rows([*prompt, *text[:i]])
        assert trace.draft[i] == row.argmax()
        assert 0 < trace.conf[i] <= 1
    assert trace.draft == text  # the same table: the draft is the target


# The planner's bounds


def test_the_planner_is_deterministic():
    states = []
    for _ in range(2):
        replay = session("B Q8_0", 0.07)
        replay.replay(OWN["edit"])
        states.append(replay.policy.learnt.to_dict())
    assert states[0] == states[1]


def adversaries() -> dict[str, list[Trace]]:
    source, copied = ids(600, 1), []
    for block in range(8):
        copied += source[block * 70 : block * 70 + 50] if block % 2 == 0 else ids(50, block + 100)
    rng, repeated, misleading = random.Random(3), ids(12, 5), []
    for _ in range(60):
        i = rng.randrange(6)
        misleading += [*repeated[i : i + 4], rng.randrange(5, 4000)]
    return {
        "random draft": [mostly_wrong(ids(50, k), ids(300, k + 9), k) for k in range(3)],
        "switching every 50 tokens": [
            mostly_wrong(source, copied),
            mostly_wrong(source, copied, 2, lambda i: i // 50 % 2 == 1),
        ],
        "acceptance drops": [mostly_wrong(ids(50, k), ids(400, k), k, lambda i: i < 150) for k in range(2)],
        "misleading copies": [mostly_wrong(repeated * 3, misleading)],
        "short texts": [mostly_wrong(ids(50, k), ids(20, k), k) for k in range(15)],
    }


def noisy(now: float, rng=random.Random(1)) -> float:  # noqa: ARG001
    return 2.0 if rng.random() < 0.1 else 1.0


def throttling(now: float) -> float:
    return 1.0 if now < 100 else 2.5


@pytest.mark.parametrize("cold", [False, True], ids=["known machine", "unknown machine"])
@pytest.mark.parametrize("disturb", ["nothing", "one round in ten twice as slow", "throttling"])
@pytest.mark.parametrize("name", adversaries())
def test_never_slower(name, disturb, cold):
    """Never more than 1 % plus four plain decodes slower than plain decoding, with any draft and clock."""
    for machine in ("A f16", "A Q4_K_M", "B Q8_0", "GPU"):
        for step in (0.02, 0.15):
            rng = random.Random(7)
            factor = {
                "nothing": undisturbed,
                "one round in ten twice as slow": lambda now, rng=rng: noisy(now, rng),
                "throttling": throttling,
            }[disturb]
            replay, took, n = session(machine, step, cold, factor), 0.0, 0
            for trace in adversaries()[name]:
                took += replay.replay([trace]).seconds
                n += len(trace.text)
                assert took <= 1.01 * n + 4, (machine, step)


@pytest.mark.parametrize("name", adversaries())
def test_never_slower_with_one_process_per_text(name):
    """The allowance is granted once, not once per process; one process cannot lose all earlier gains."""
    for machine in ("A f16", "A Q4_K_M", "B Q8_0", "GPU"):
        for step in (0.02, 0.15):
            learnt, took, n = None, 0.0, 0
            for trace in adversaries()[name] * 2:
                replay = session(machine, step, learnt=learnt)
                once = replay.replay([trace]).seconds
                assert once <= 1.01 * len(trace.text) + DEFAULT.stored_credit[1] + 0.5, (machine, step)
                took, n, learnt = took + once, n + len(trace.text), replay.policy.learnt.to_dict()
                assert took <= 1.01 * n + 4, (machine, step)


@pytest.mark.parametrize("machine", ["A f16", "B Q4_K_M", "GPU"])
def test_several_sequences_are_faster_than_plain_decoding(machine):
    seconds, texts = curve(MACHINES[machine]), [t for ts in OWN.values() for t in ts]
    for n_slots in (2, 4, 8):
        plain = Replay(lambda d, clock: Fixed(d, 0), seconds, None, None).replay(texts, n_slots)  # noqa: ARG005
        replayed = session(machine, 0.07).replay(texts, n_slots)
        assert replayed.tokens == plain.tokens
        assert replayed.seconds < plain.seconds


# With a request history


def forms(n: int) -> list[Trace]:
    """Texts with the same form: new values between parts that are always the same."""
    rng, form, traces = random.Random(1), ids(60, 2), []
    for _ in range(n):
        values = [rng.choices(range(5000, 9000), k=rng.randint(1, 3)) for _ in range(6)]
        text = [t for i, value in enumerate(values) for t in (*form[10 * i : 10 * i + 10], *value)]
        traces.append(Trace([1, 2], text, [0] * len(text), [0.0] * len(text)))
    return traces


def unrelated(n: int) -> list[Trace]:
    """Texts of the same few hundred ids without anything else in common."""
    rng = random.Random(3)
    return [Trace([1, 2], rng.choices(range(5, 300), k=90), [0] * 90, [0.0] * 90) for _ in range(n)]


def with_and_without_history(machine: str, traces: list[Trace], n_slots: int = 1) -> tuple[float, float]:
    """Seconds with copies from the text itself alone, and with a request history."""
    took, points = [], MACHINES[machine]
    for enabled in (False, True):
        memory = RequestHistory()
        more = [HistoryDrafter(memory)] if enabled else []
        replay = Replay(
            lambda drafters, clock, more=more: Planner([*drafters, *more], clock, known(points)),
            curve(points), None, CopyDrafter,
            ended=lambda t, memory=memory: memory.keep("", [*t.prompt, *t.text], len(t.prompt)),
        )  # fmt: skip
        took.append(replay.replay(traces, n_slots).seconds)
    return took[0], took[1]


@pytest.mark.parametrize("n_slots", [1, 4])
def test_the_history_pays_where_requests_are_similar(n_slots):
    gains = [
        alone / both
        for alone, both in (with_and_without_history(name, forms(30), n_slots) for name in MACHINES)
    ]
    assert mean(gains) > (1.25 if n_slots == 1 else 1.05)
    assert min(gains) > 0.99


@pytest.mark.parametrize("machine", MACHINES)
def test_the_history_costs_almost_nothing_where_texts_are_unrelated(machine):
    alone, both = with_and_without_history(machine, unrelated(30))
    assert both < 1.01 * alone


@pytest.mark.parametrize("n_prompt", [20, 25, 30, 35, 134])
def test_the_draft_model_is_used_although_a_second_row_costs_as_much_as_the_first(n_prompt):
    """As with AMX: with the whole prompt to catch up with, no round could afford a draft."""
    points = {1: 1, 2: 1.95, 3: 2.19, 4: 2.24, 5: 2.58, 6: 2.65, 8: 3.3, 12: 4.65, 16: 5.94}
    text = ids(64, 1)
    trace = Trace(ids(n_prompt, 2), text, text, [0.97] * 64)

    def make(drafters, clock):
        return Planner(drafters, clock, known(points))

    replay = Replay(make, curve(points), 0.15, CopyDrafter, prefilled=False)
    assert replay.replay([trace]).seconds < 64 / 1.3
