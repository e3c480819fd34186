"""The budget of reasoning as a mask: where the end is written, and that drafts do not change the text."""

from __future__ import annotations

import itertools
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.core.policy.base import Policy
from specllama.core.policy.fixed import Fixed
from specllama.core.policy.planner import Planner
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Request
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.grammar import GrammarDrafter
from specllama.drafters.model import ModelDrafter
from specllama.testing import TableContext, table_row
from specllama.text.reasoning_budget import ReasoningBudget, ReasoningForm, ReasoningTags
from tests.support.examples import examples
from tests.support.scripted import TableMask
from tests.unit.core.test_engine_table import N_VOCAB, engine_over, run

PIECES = {
    3: "", 4: "<think>", 5: "</think>", 6: "\n", 7: "</", 8: "think", 9: ">",
    12: "<|channel>", 13: "<channel|>", 14: "thought",
    15: "<|end|>", 16: "<|start|>", 17: "<|channel|>", 18: "analysis", 19: "final", 20: "<|message|>",
}  # fmt: skip
BYTES = {i: chr(65 + i).encode() for i in range(N_VOCAB)} | {i: text.encode() for i, text in PIECES.items()}
BYTES |= {10: b"\xe2", 11: b"\x82\xac"}  # a character of two tokens
A, B = 21, 22  # ordinary tokens
TAGS = ReasoningTags("<think>", "</think>", "\n</think>\n", "\n</think>\n")
CHANNEL = ReasoningTags("<|channel>thought\n", "<channel|>", "<channel|>", "<channel|>")
PARTS = ReasoningTags(
    "<|channel|>analysis<|message|>",
    "<|end|>",
    "<|end|><|start|>",
    "<|end|><|start|><|channel|>final<|message|>",
)


def encode(text: str, special: bool = True) -> list[int]:
    ids, data = [], text.encode()
    while data:
        whole = [i for i, piece in BYTES.items() if piece and data.startswith(piece)]
        ids.append(max(whole, key=lambda i: len(BYTES[i])))
        data = data[len(BYTES[ids[-1]]) :]
    assert special or not text.startswith("<")
    return ids


def budget_of(n: float, form: ReasoningForm, message: str = "", inner: TableMask | None = None):
    return ReasoningBudget(form, n, N_VOCAB, BYTES.__getitem__, encode, message, inner)


def written(mask: ReasoningBudget, wanted: list[int], n: int = 60) -> list[int]:
    """The text of a model that wants these tokens, then A: each that is legal, else the only legal one."""
    output, left = [], list(wanted)
    while len(output) < n:
        want = left[0] if left else A
        if mask.allows(want):
            left = left[1:]
            token = want
        else:
            assert not mask.allowed()[want]
            (token, *more) = np.flatnonzero(mask.allowed()).tolist()
            if more:  # barred
                left, token = left[1:], A
        mask.accept(token)
        output.append(token)
    return output


OPEN, END = ReasoningForm([TAGS], open=TAGS), encode("\n</think>\n")


@pytest.mark.parametrize("n", [0, 1, 5])
def test_the_end_is_written_after_the_budget(n: int):
    assert written(budget_of(n, OPEN), [], n + 6) == [A] * n + END + [A] * 3
    begun = ReasoningForm([TAGS])
    assert written(budget_of(n, begun), [6, 4], n + 8) == [6, 4] + [A] * n + END + [A] * 3


def test_reasoning_that_ends_by_itself_and_text_without_any_stay():
    for wanted, form in (
        ([A, 5, 4, A], OPEN),
        ([A, 7, 8, 9, 4, B], OPEN),
        ([B, 4, A, A], ReasoningForm([TAGS])),
    ):
        text = written(budget_of(3, form), wanted, 20)
        assert text == (wanted + [A] * 20)[:20]


def test_the_message_comes_before_the_end():
    assert written(budget_of(2, OPEN, "VV"), [], 8) == [A, A, *encode("VV"), *END, A]


def test_the_end_is_not_written_within_a_character_or_a_tag():
    assert written(budget_of(1, OPEN), [10, 11, B], 6) == [10, 11, *END, B]
    assert written(budget_of(1, OPEN), [7, 8, 9, B], 5) == [7, 8, 9, B, A]
    assert written(budget_of(1, OPEN), [7] * 30, 30)[8:13] == [7, *END, 7]  # but it does not wait for ever


def test_a_channel_cannot_be_opened_again_after_its_end_was_written():
    form = ReasoningForm([CHANNEL], within=True)
    opening = encode(CHANNEL.opening)
    text = written(budget_of(3, form), [*opening, B, 13, A, *opening, B, B, B, *opening, B], 24)
    assert text[:11] == [*opening, B, 13, A, *opening, B, B]  # both parts count
    assert text[11] == 13
    assert 12 not in text[12:]


def test_parts_in_channels_end_before_the_next_part_and_then_in_the_answer():
    form = ReasoningForm([PARTS], within=True)
    part = encode(PARTS.opening)
    text = written(budget_of(1, form), [*part, B, *part, B], 20)
    assert text[: 2 * len(part) + 9] == [
        *part, B, *encode(PARTS.end), *part, *encode(PARTS.last_end), B,
    ][: 2 * len(part) + 9]  # fmt: skip


def test_end_ends_reasoning_that_is_open_waits_or_is_over():
    mask = budget_of(inf, OPEN)
    assert written(mask, [], 4) == [A] * 4
    mask.end()
    assert written(mask, [], 4) == [*END, A]
    mask.end()
    assert written(mask, [4], 3) == [4, A, A]
    waits = budget_of(inf, ReasoningForm([TAGS]))
    waits.end()
    assert written(waits, [4], 5) == [4, *END, A]


def test_a_grammar_that_does_not_allow_the_end_goes_on():
    inner = TableMask(N_VOCAB, lambda out: {A} if len(out) < 9 else {B})
    assert written(budget_of(3, OPEN, inner=inner), [A] * 9 + [B] * 3, 12) == [A] * 9 + [B] * 3


def drafters(kind: str):
    noisy = lambda ids: table_row(ids, N_VOCAB) + table_row(ids, N_VOCAB, 7) * 0.5  # noqa: E731
    model = ModelDrafter(TableContext(N_VOCAB, n_seq_max=2, rows=noisy), N_VOCAB)
    return {"none": [], "grammar": [GrammarDrafter()], "model": [model], "copy": [CopyDrafter()],
            "all": [GrammarDrafter(), CopyDrafter(), model]}[kind]  # fmt: skip


FORMS = {
    "open": OPEN,
    "begins": ReasoningForm([TAGS]),
    "channel": ReasoningForm([CHANNEL], True),
    "parts": ReasoningForm([PARTS], True, PARTS),
}


@pytest.mark.parametrize("kind", ["grammar", "model", "copy", "all"])
@given(
    st.sampled_from(sorted(FORMS)),
    st.integers(0, 24),
    st.sampled_from([0, 0.8, 1.5]),
    st.integers(0, 2**64 - 1),
    st.integers(1, 9),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["full", "rollback", "checkpoint"]),
)
@settings(max_examples=examples(60), deadline=None)
def test_drafts_that_cross_the_budget_do_not_change_the_text(
    kind, form, n, temperature, seed, n_max, adaptive, several, memory
):
    """Also of several texts at once, each with its own budget."""
    biases = {4: 4.0, 12: 4.0, 14: 3.0, 17: 4.0, 18: 3.0, 20: 3.0}  # so that tags are opened
    params = SamplingParams(temperature=temperature, max_tokens=50, logit_bias=biases, ignore_eos=True)

    def generate(policy: Policy):
        requests = [
            Request([5, 6, 7], params, seed + i, mask=budget_of(n + 2 * i, FORMS[form], "WXY"))
            for i in range(1 + several)
        ]
        engine = engine_over(TableContext(N_VOCAB, 256, len(requests), memory=memory), policy)
        return [(g.output, g.finish_reason) for g in run(engine, *requests)]

    made = drafters(kind)
    policy = Planner(made, itertools.count().__next__) if adaptive else Fixed(made, n_max)
    expected = generate(Fixed([], 0))
    assert generate(policy) == expected
    if form == "open":
        first = expected[0][0]
        assert first[:n].count(5) or first[n : n + 3] == encode("WXY") or first[n - 1] in (7, 10, 28)


def test_the_end_is_a_draft_that_costs_no_decodes():
    params = SamplingParams(max_tokens=20, ignore_eos=True, logit_bias={5: -100.0, 7: -100.0, 10: -100.0})
    mask = budget_of(4, OPEN, "VWXYZ[")
    got = run(
        engine_over(TableContext(N_VOCAB), Fixed([GrammarDrafter()], 16)), Request([8], params, 1, mask=mask)
    )[0]
    assert got.output[4:13] == [*encode("VWXYZ["), *END]
    assert (got.stats.n_forced_accept, got.stats.n_forced) == (9, 9)
    assert got.stats.rounds == 20 - 1 - 9
