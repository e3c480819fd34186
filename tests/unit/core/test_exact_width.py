"""Exact by width: on a device that rounds by width, the text is the same with and without drafts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.core.engine import Engine
from specllama.core.exact import ExactRows, best_chunk, best_width
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.fixed import Fixed
from specllama.core.policy.planner import Planner
from specllama.core.replay.simulator import ChangingDevice, SimulatedClock
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Generation, Request
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.model import ModelDrafter
from tests.support.devices import DeviceContext, curves
from tests.support.examples import examples

ROWS = ExactRows(8, 64)


def engine_on_device(
    kind: str,
    rows: ExactRows | None = ROWS,
    memory: str = "full",
    n_slots: int = 1,
    n_ctx: int = 1024,
    **more,
) -> Engine:
    """kind: which drafter drafts, "none" for none."""
    clock = SimulatedClock()
    one = ChangingDevice.from_dict(curves()["padded 4B Q4_0"])
    target = DeviceContext(one, clock, n_ctx=n_ctx, n_seq_max=n_slots, memory=memory, n_spare=256, **more)
    draft = DeviceContext(
        ChangingDevice(lambda n: 0.0002),  # noqa: ARG005
        clock,
        noise=0.5,
        n_ctx=n_ctx,
        n_seq_max=n_slots,
    )
    drafters = [CopyDrafter(), ModelDrafter(draft, target.n_vocab)]
    policy = {
        "none": lambda: Fixed([], 0),
        "fixed": lambda: Fixed(drafters, 5),
        "long": lambda: Fixed(drafters, 30),
        "planner": lambda: Planner(drafters, clock.clock),
    }[kind]()
    return Engine(target, policy, end_ids=(3,), clock=clock.clock, exact=rows is not None, exact_rows=rows)


def written(engine: Engine, *requests: Request) -> list[Generation]:
    generations = [engine.submit(request) for request in requests]
    for _ in range(100_000):
        if not engine.busy:
            return generations
        engine.step()
        assert sum(g.exact_rows is not None for g in engine.active) <= 1
    raise AssertionError("the engine does not end")


def request(prompt, seed=1, n=150, temperature=0.8, **more) -> Request:
    return Request(
        prompt, SamplingParams(temperature=temperature, max_tokens=n, ignore_eos=True), seed, **more
    )


PROMPT = [5, 6, 7, 8, 9, 10, 11]


@pytest.mark.parametrize("memory", ["full", "rollback"])
@pytest.mark.parametrize("kind", ["fixed", "long", "planner"])
@pytest.mark.parametrize("temperature", [0, 0.8])
@pytest.mark.parametrize("n_prompt", [7, 250, 600])
def test_the_text_is_the_same_with_and_without_drafts(memory, kind, temperature, n_prompt):
    """Behind long prompts, across steps of visible cells, to the end of the context."""
    prompt = [4 + i * 7 % 27 for i in range(n_prompt)]
    for seed in range(3):
        one = request(prompt, seed, 300, temperature)
        expected = written(engine_on_device("none", memory=memory), one)[0]
        got = written(engine_on_device(kind, memory=memory), one)[0]
        assert got.output == expected.output
        assert got.stats.n_drafted > 0
        assert set(got.stats.round_seconds) == {ROWS.width}


def test_without_it_the_text_differs():
    """The device that the other tests rely on does round differently."""
    texts = [
        [written(engine_on_device(kind, None), request(PROMPT, seed))[0].output for seed in range(5)]
        for kind in ("none", "fixed")
    ]
    assert texts[0] != texts[1]


@pytest.mark.parametrize("kind", ["fixed", "planner"])
def test_the_end_of_a_full_context_is_the_same_as_with_room(kind):
    prompt = [4 + i * 5 % 27 for i in range(100)]
    small = written(engine_on_device(kind, n_ctx=256), request(prompt, 2, -1))[0]
    large = written(engine_on_device("none", n_ctx=1024), request(prompt, 2, 400))[0]
    assert small.finish_reason == "context"
    assert len(small.history) == 256
    assert small.output == large.output[: len(small.output)]


def test_without_spare_cells_a_text_ends_before_rows_would_not_fit():
    for kind in ("none", "fixed"):
        engine = engine_on_device(kind, n_ctx=256)
        engine.target.n_spare = 0
        (generation,) = written(engine, request(PROMPT, 2, -1))
        assert (generation.finish_reason, len(generation.history)) == ("context", 256 - ROWS.width + 1)


@settings(max_examples=examples(12), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60), st.booleans(), st.integers(0, 3)), min_size=2, max_size=5))
def test_conversations_of_several_turns_are_the_same(turns):
    """Each turn continues the text, or leaves a part of it out; the prefix is reused in both."""
    conversations = []
    for kind in ("none", "fixed"):
        engine, history, texts = engine_on_device(kind), list(PROMPT), []
        for n, shorter, seed in turns:
            (one,) = written(engine, request(history, seed, n))
            texts.append(one.output)
            history = [*one.history[: len(one.history) // (2 if shorter else 1)], 4 + seed]
        conversations.append((texts, engine.active))
    assert conversations[0] == conversations[1]


def test_requests_that_ask_for_it_are_decoded_one_after_another():
    wanted = [request([5 + i, *PROMPT], i, 60, exact=i % 2 == 0) for i in range(6)]
    outputs = []
    for kind in ("none", "fixed"):
        engine = engine_on_device(kind, n_slots=4)
        engine.exact = False
        generations = written(engine, *wanted)
        outputs.append([g.output for g in generations[::2]])
        assert all(g.finish_reason == "length" for g in generations)
    assert outputs[0] == outputs[1]
    alone = [written(engine_on_device("none"), one)[0].output for one in wanted[::2]]
    assert outputs[0] == alone


def test_a_cache_that_others_have_used_is_not_reused():
    engine = engine_on_device("fixed", n_slots=2)
    engine.exact = False
    (first,) = written(engine, request(PROMPT, 1, 90))
    again = request([*first.history, 5], 2, 40, exact=True)
    (got,) = written(engine, again)
    assert got.stats.n_reused == 0
    assert got.output == written(engine_on_device("none"), again)[0].output
    (next_turn,) = written(engine, request([*got.history, 6], 3, 40, exact=True))
    assert next_turn.stats.n_reused == len(again.prompt) // ROWS.chunk * ROWS.chunk > 0


def test_cancelled_requests_make_way():
    engine = engine_on_device("fixed", n_slots=2)
    first, second = engine.submit(request(PROMPT, 1, 200)), engine.submit(request(PROMPT, 2, 30))
    for _ in range(5):
        engine.step()
    assert second.seq_id < 0
    engine.cancel(first)
    while engine.busy:
        engine.step()
    assert second.output == written(engine_on_device("none"), request(PROMPT, 2, 30))[0].output


# The rows


@given(st.integers(0, 5000), st.integers(1, 64))
def test_rows_are_kept_while_a_decode_of_their_own_would_see_as_many_cells(pos, width):
    rows = ExactRows(width)
    kept = rows.n_kept(pos)

    def seen(q: int) -> int:
        return -(-(q + width) // 256)

    assert 1 <= kept <= width
    assert all(seen(pos + i) == seen(pos) for i in range(kept))
    assert kept == width or seen(pos + kept) != seen(pos)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("8B Q4_K_M", 16), ("MoE 128/8, 16 layers, Q4_K_M", 6), ("padded 4B Q4_0", 16), ("laptop card, 8B", 16)],
)
def test_the_best_width_is_that_of_replayed_texts(name, expected):
    """In replays of recorded texts these single widths were the fastest."""
    one, curve = ChangingDevice.from_dict(curves()[name]), CostCurve()
    for n in (1, 2, 3, 4, 6, 8, 9, 12, 16, 24, 32):
        for _ in range(3):
            curve.observe(n, one.steady(n))
    assert best_width(curve, 64) == expected
    assert best_width(curve, 4) <= 4
    assert best_width(CostCurve(), 64) is None


def test_the_best_chunk_takes_half_a_second_at_most():
    assert best_chunk(0.0001, 2048) == 512
    assert best_chunk(0.0001, 100) == 64
    assert best_chunk(0.003, 512) == 128
    assert best_chunk(1.0, 512) == 64
    assert best_chunk(float("inf"), 32) == 32
