"""Drafts of another vocabulary: what is read, what is proposed, and the engine's output with them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.core.engine import Engine
from specllama.core.policy.fixed import Fixed
from specllama.core.policy.planner import Planner
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.sampler import KeyedSampler
from specllama.core.sequence import Generation, Request
from specllama.core.translation import KeptTokens, whole_characters
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.foreign import MAX_STEPS, MAX_TAIL, ForeignDrafter, Retokenization, RetokenizedText
from specllama.testing import Memory, TableContext, table_row
from tests.support.examples import examples
from tests.support.spellers import DRAFT, N_TARGET, TARGET, Letters, letters

END = 3
BETWEEN = letters()
N_SHARED_SPACE = BETWEEN.ids.n_vocab


def target(piece: bytes) -> int:
    return TARGET.index(piece)


def own(piece: bytes) -> int:
    """The id in the shared space of a token of the draft."""
    return int(BETWEEN.ids.ids[DRAFT.index(piece)])


def retokenize(*pieces: bytes, probability: float = 0.5) -> Retokenization:
    retokenized = Retokenization(BETWEEN, {0})
    for piece in pieces:
        retokenized.add(own(piece), probability)
    return retokenized


def drafter_of(rows=None, n_ctx: int = 512, n_slots: int = 1, memory: Memory = "full") -> ForeignDrafter:
    return ForeignDrafter(TableContext(N_SHARED_SPACE, n_ctx, n_slots, memory, rows), BETWEEN, end_ids={0})


def test_shared_tokens_have_the_ids_of_the_target() -> None:
    assert own(b"de") == target(b"de")
    assert own(b"abcd") >= N_TARGET
    assert BETWEEN.read([target(b"abc"), target(b"de"), 0, target(b"ha")]) == [
        own(b"abcd"), own(b"e"), 0, own(b"h"), own(b"a")
    ]  # fmt: skip


def test_bytes_of_a_split_character_are_read_and_proposed_as_they_are() -> None:
    assert BETWEEN.read([target(b"\xc3"), target(b"\xa4"), target(b"\xc3")]) == [
        own(b"\xc3"), own(b"\xa4"), own(b"\xc3")
    ]  # fmt: skip
    assert retokenize(b"\xa4").tokens == [target(b"\xa4")]
    assert [whole_characters(data) for data in (b"", b"a", b"a\xc3", b"a\xc3\xa4", b"\xe2\x96", b"\xa4")] == [
        0, 1, 1, 3, 0, 1
    ]  # fmt: skip


def test_a_shared_token_that_cannot_grow_is_proposed_at_once() -> None:
    assert retokenize(b"c").tokens == []  # the target has cde, which the draft lacks
    assert retokenize(b"f").pending == [target(b"f")]
    assert not BETWEEN.may_grow[target(b"de")] or retokenize(b"de").tokens == []


@pytest.mark.parametrize(
    ("pieces", "certain", "pending"),
    [
        ((b"abcd",), [b"abc"], [b"d"]),
        ((b"abcd", b"e", b"f"), [b"abc", b"def"], []),
        ((b"c", b"de"), [b"cde"], []),
        ((b"c", b"h"), [b"c"], [b"h"]),
        ((b"f", b"g"), [b"fg"], []),
    ],
)
def test_other_text_is_tokenised_as_the_target_does_up_to_what_may_grow(pieces, certain, pending) -> None:
    retokenized = retokenize(*pieces)
    assert [TARGET[token] for token in retokenized.tokens] == certain
    assert [TARGET[token] for token in retokenized.pending] == pending


def test_the_confidence_is_the_product_over_the_tokens_that_spell_one() -> None:
    retokenized = retokenize(b"c", b"de")
    assert [p.confidence for p in retokenized.certain] == [0.25]
    retokenized = retokenize(b"abcd", b"e", b"f")
    assert [p.confidence for p in retokenized.certain] == [0.5, 0.25]  # the d of abcd counts to abc alone


def test_an_end_token_ends_the_draft_after_what_is_pending() -> None:
    retokenized = retokenize(b"c", b"")
    assert retokenized.tokens == [target(b"c"), 0]
    assert retokenized.ended


def test_a_draft_that_spells_nothing_ends() -> None:
    """The draft begins a character of three bytes again and again."""
    drafter = drafter_of(lambda _ids: np.where(np.arange(N_SHARED_SPACE) == own(b"\xe2"), 9.0, 0.0))
    drafter.start(0, [1, 2], KeyedSampler(SamplingParams(temperature=0), 0, N_TARGET))
    for n in (1, 2):
        assert drafter.step({0: []}) == {}
        assert len(drafter.context.widths) <= n * MAX_STEPS
    assert retokenize(b"\xe2").tokens == retokenize(b"\xe2").pending == []
    assert not retokenize(b"\xe2").ended
    assert retokenize(b"\xe2", b"\xe2").ended


def test_a_huge_token_of_the_draft_ends_it() -> None:
    """A damaged vocabulary costs no time in the tokenizer of the target."""
    pieces = [*DRAFT, b"x" * (1 << 20)]
    kept = KeptTokens(np.array([*BETWEEN.ids.ids, N_SHARED_SPACE]), N_SHARED_SPACE + 1, lambda _token: 0)
    retokenized = Retokenization(replace(BETWEEN, draft=Letters(pieces), ids=kept), {0})
    retokenized.add(N_SHARED_SPACE, 0.5)
    assert retokenized.ended
    assert retokenized.tokens == retokenized.pending == []


def test_probabilities_before_a_control_token_do_not_count_after_it() -> None:
    retokenized = retokenize(b"\xe2", b"", probability=0.5)
    retokenized.add(own(b"abcd"), 0.25)
    retokenized.add(own(b"e"), 1.0)
    retokenized.add(own(b"f"), 1.0)
    assert [p.confidence for p in retokenized.certain] == [0.5, 0.25, 1.0]


@given(st.lists(st.integers(0, N_TARGET - 1), max_size=300), st.lists(st.integers(1, 40), max_size=20))
def test_a_text_read_in_parts_has_the_bytes_of_the_whole(tokens: list[int], parts: list[int]) -> None:
    text, at = RetokenizedText(BETWEEN), 0
    for n in [*parts, len(tokens)]:
        text.extend(tokens[at : at + n])
        at = len(text.tokens)
        before = list(text.settled)
        text.settle()
        assert text.settled[: len(before)] == before
        read = [*text.settled, *text.tail()]
        assert b"".join(BETWEEN.piece(t) or b"?" for t in read) == b"".join(
            TARGET[t] or b"?" for t in tokens[:at]
        )
        assert len(text.tokens) - text.n_settled <= 128 + MAX_TAIL


@given(
    st.lists(st.integers(1, 22), max_size=200), st.integers(0, 200), st.lists(st.integers(1, 22), max_size=80)
)
def test_a_text_that_begins_like_another_is_read_like_a_new_one(first, n, more) -> None:
    used, fresh = RetokenizedText(BETWEEN), RetokenizedText(BETWEEN)
    used.restart(first)
    used.settle()
    second = [*first[:n], *more]
    for text in (used, fresh):
        text.restart(second)
        text.settle()
    assert b"".join(map(BETWEEN.piece, [*used.settled, *used.tail()])) == b"".join(
        map(BETWEEN.piece, [*fresh.settled, *fresh.tail()])
    )
    assert used.tokens == second


def test_noise_is_that_of_the_target_for_shared_tokens() -> None:
    """Of equal logits the noise decides: the draft's choice is the target's where both have the token."""
    flat = np.full(N_SHARED_SPACE, -np.inf, np.float32)
    shared = [own(b"de"), own(b"ab"), own(b"\xa4"), own(b" "), own(b"g")]
    flat[shared] = 0.0
    for seed in range(40):
        sampler = KeyedSampler(SamplingParams(temperature=1.0, top_k=0), seed, N_TARGET)
        expected = sampler.choose(flat[:N_TARGET].copy(), [1, 2, 5]).token
        drafter = drafter_of(lambda _ids: flat.copy())
        drafter.start(0, [1, 2, 5], sampler)
        drafter.step({0: []})
        assert drafter._sequences[0].draft.own[0] == expected


def engine_over(context: TableContext, policy) -> Engine:
    ticks = itertools.count()
    return Engine(context, policy, end_ids={END}, clock=lambda: float(next(ticks)))


def run(engine: Engine, *requests: Request) -> list[Generation]:
    generations = [engine.submit(request) for request in requests]
    for _ in range(5_000):
        if not engine.busy:
            return generations
        engine.step()
        for drafter in engine.scheduler.policy.drafters:
            if isinstance(drafter, ForeignDrafter):
                for seq, state in drafter._model.states.items():
                    cells, skipped = drafter._model.cells[seq], drafter._model.skipped[seq]
                    assert cells[: state.n_valid] == state.history[skipped:][: state.n_valid]
    raise AssertionError("the engine does not end")


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(4, N_TARGET - 1), min_size=1, max_size=40),
            st.sampled_from([0.0, 0.8, 1.5]),
            st.integers(0, 2**40),
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 4),
    st.sampled_from([96, 400]),
    st.sampled_from(["full", "checkpoint", "window"]),
    st.sampled_from(["model", "both", "adaptive"]),
)
def test_the_output_is_that_of_plain_decoding(work, n_slots, n_ctx, memory, kind) -> None:
    requests = [Request(p, SamplingParams(temperature=t, max_tokens=40), seed) for p, t, seed in work]
    context = TableContext(N_TARGET, 400)
    expected = [run(engine_over(TableContext(N_TARGET, 400), Fixed([], 0)), r)[0].output for r in requests]
    rows = lambda ids: table_row(ids, N_SHARED_SPACE, 7)  # noqa: E731
    drafters = [CopyDrafter(), drafter_of(rows, n_ctx, n_slots, memory)][0 if kind != "model" else 1 :]
    ticks = itertools.count()
    policy = Planner(drafters, lambda: float(next(ticks))) if kind == "adaptive" else Fixed(drafters, 5)
    context = TableContext(N_TARGET, 400 * n_slots, n_slots)
    assert [g.output for g in run(engine_over(context, policy), *requests)] == expected
