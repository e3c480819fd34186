"""Drafts of several texts on recurrent states: of one length, last in their decode, rolled back in place."""

from __future__ import annotations

import itertools

import pytest

from specllama.core.decoder import make_even
from specllama.core.engine import Engine
from specllama.core.policy.base import Draft
from specllama.core.policy.fixed import Fixed
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Request
from specllama.testing import TableContext
from tests.support.scripted import ScriptedDrafter

N_VOCAB = 32


@pytest.mark.parametrize(
    ("lengths", "without", "expected"),
    [
        ([], (), []),
        ([5], (), [5]),
        ([3, 3, 0], (), [3, 3, 0]),
        ([7, 2, 2], (), [7, 0, 0]),
        ([5, 4, 4], (), [4, 4, 4]),
        ([5, 4, 4], (1, 2), [5, 0, 0]),
        ([5, 4], (0, 1), [0, 0]),
    ],
)
def test_the_length_with_which_most_tokens_remain(
    lengths: list[int], without: tuple[int, ...], expected: list[int]
) -> None:
    drafts = {seq: Draft([9] * n, ["copy"] * n, n_discarded=1) for seq, n in enumerate(lengths)}
    make_even(drafts, without)
    assert [len(draft.tokens) for draft in drafts.values()] == expected
    assert [len(draft.sources) for draft in drafts.values()] == expected
    assert [d.n_discarded - 1 for d in drafts.values()] == [
        a - b for a, b in zip(lengths, expected, strict=True)
    ]


def test_no_text_is_evaluated_again_because_drafts_differ_in_length() -> None:
    """A state that could not be rolled back would be emptied, and the whole text evaluated once more."""
    target = TableContext(N_VOCAB, 512, 4, memory="rollback")
    drafter = ScriptedDrafter(lambda h, d: 7 if len(d) < len(h) % 5 else None)  # often wrong
    engine = Engine(target, Fixed([drafter], 8), end_ids=(), clock=itertools.count().__next__)
    params = SamplingParams(temperature=1.0, max_tokens=40)
    texts = [engine.submit(Request([5 + i] * (4 + 3 * i), params, i)) for i in range(4)]
    while engine.busy:
        engine.step()
    drafted = sum(text.stats.n_drafted for text in texts)
    assert drafted > 40
    assert sum(target.widths) <= sum(text.n_prompt + text.n_output for text in texts) + drafted
