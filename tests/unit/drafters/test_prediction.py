"""The drafter of predictions: where its copy begins, how it follows changes, what it leaves to others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.core.policy.fixed import Fixed
from specllama.core.policy.planner import Planner
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Request
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.prediction import LEAST_CONFIDENCE, PredictionDrafter, PredictionIndex
from specllama.testing import TableContext
from tests.unit.core.test_engine_table import N_VOCAB, engine_over, plain, run
from tests.unit.drafters.test_registry import measured

SEQ = 1
OLD = list(range(100, 160))
tokens = st.integers(0, 5)


def started(prediction: list[int], output: list[int], n_output: int | None = None) -> PredictionDrafter:
    """After a prompt and an output, all of which was committed at once."""
    drafter = PredictionDrafter()
    drafter.set_prediction(SEQ, prediction, len(output) if n_output is None else n_output)
    drafter.start(SEQ, [7, 8, 9, *output])
    return drafter


def after(prediction: list[int], text: list[int], limit: int = 4) -> list[int]:
    """The tokens proposed after the text was committed token by token."""
    drafter = started(prediction, text[:1])
    for token in text[1:]:
        drafter.committed(SEQ, [token])
    return [p.token for p in drafter.propose(SEQ, limit)]


@pytest.mark.parametrize(
    ("text", "drafted"),
    [
        (OLD[:1], OLD[1:5]),  # from the first token on
        (OLD[:57], OLD[57:]),  # to the end of the prediction
        (OLD, []),
        ([1, 2, 3, 4, 5, 6, 7, 8, *OLD[:3]], OLD[3:7]),  # behind a text before the prediction
        ([*OLD[:10], *OLD[40:43]], OLD[43:47]),  # behind a deleted passage
        ([*OLD[:10], *range(20), *OLD[10:13]], OLD[13:17]),  # behind an inserted passage
    ],
)
def test_places_of_the_prediction(text: list[int], drafted: list[int]) -> None:
    assert after(OLD, text) == drafted
    assert after(OLD, text, 20)[:4] == drafted


def test_goes_on_where_a_text_taken_out_of_its_slot_had_got_to() -> None:
    drafter = started(OLD, OLD[:9])
    assert [p.token for p in drafter.propose(SEQ, 3)] == OLD[9:12]


def test_the_prompt_is_no_part_of_the_text() -> None:
    drafter = started(OLD, [*OLD[30:40], OLD[0]], n_output=1)
    assert [p.token for p in drafter.propose(SEQ, 3)] == OLD[1:4]


def test_goes_on_after_a_renamed_token_and_repeats_the_change() -> None:
    old = [*OLD[:12], 50, *OLD[12:24], 50, *OLD[24:]]
    new = [*OLD[:12], 60, *OLD[12:24]]
    assert after(old, new, 3) == [60, *OLD[24:26]]


def test_of_equal_places_the_next_one_is_taken() -> None:
    """The last line of every function is the same; functions are deleted from the middle of the file."""
    old = [t for i in range(20) for t in (*range(100 * i, 100 * i + 8), 1, 2, 3)]
    text = [*old[:24], 1, 2, 3]  # the third function has lost all but two of its tokens
    assert after(old, text) == old[33:37]
    assert after(old, [*text, *old[33:35]]) == old[35:39]


def test_only_the_nearest_candidates_are_compared() -> None:
    index = PredictionIndex([1, 2, 3] * 50)
    for token in (1, 2, 3):
        index.append(token)
    index.left = 75
    assert index.candidates() == [75, 78, 81, 84, 87, 90, 93, 96]
    index.left = 144
    assert index.candidates()[:4] == [144, 147, 150, 141]


def test_nothing_without_a_prediction() -> None:
    assert after([], OLD[:3]) == after([5], [5]) == []
    drafter = started(OLD, OLD[:1])
    drafter.forget(SEQ)
    drafter.start(SEQ, OLD[:3])
    assert drafter.propose(SEQ, 3) == []


def test_an_unlikely_token_is_left_to_others() -> None:
    """A text in another language: whatever follows its accidental matches is wrong."""
    text = [t for i in range(20) for t in (OLD[2 * i], OLD[2 * i + 1], OLD[2 * i + 2], 5, 6, 7, 8, 9)]
    drafter = started(OLD, text[:1])
    for token in text[1:]:
        drafter.committed(SEQ, [token])
        assert all(p.confidence >= LEAST_CONFIDENCE for p in drafter.propose(SEQ, 1))
    assert drafter._texts[SEQ].hit_rate < 0.3
    assert drafter.propose(SEQ, 4) == []


@given(st.lists(tokens, max_size=40), st.lists(tokens, min_size=1, max_size=60), st.integers(0, 9))
def test_any_texts_can_be_played(prediction, text, limit) -> None:
    drafter = started(prediction, text[:1])
    for token in text[1:]:
        assert all(0 <= p.token <= 5 for p in drafter.propose(SEQ, limit))
        drafter.committed(SEQ, [token])
    at_once = started(prediction, text)
    assert drafter.propose(SEQ, limit) == at_once.propose(SEQ, limit)


def requested(prediction: list[int], temperature: float = 0.0) -> Request:
    params = SamplingParams(temperature=temperature, max_tokens=60, ignore_eos=True)
    return Request([5, 6, 7], params, 1, prediction=prediction)


def test_the_text_is_the_same_and_the_prediction_is_counted() -> None:
    for temperature in (0.0, 0.8):
        expected = plain(requested([], temperature)).output
        for prediction in (expected, [*expected[:20], *expected[30:]], [1, 2, 3] * 9, expected[::-1]):
            for policy in (
                Fixed([PredictionDrafter(), CopyDrafter()], 4),
                Planner([PredictionDrafter(), CopyDrafter()], lambda: 0.0, measured()),
            ):
                done = run(
                    engine_over(TableContext(N_VOCAB, 256), policy), requested(prediction, temperature)
                )
                assert done[0].output == expected


def test_what_was_drafted_from_it_is_counted() -> None:
    expected = plain(requested([])).output
    engine = engine_over(TableContext(N_VOCAB, 256), Fixed([PredictionDrafter(), CopyDrafter()], 4))
    wrong = [(token + 1) % N_VOCAB for token in expected[28:33]]
    done = run(engine, requested([*expected[:28], *wrong]))[0]
    stats = done.stats
    assert done.output == expected
    assert stats.n_prediction == 33
    assert 20 <= stats.n_predicted_accept <= 27
    assert stats.n_predicted_accept < stats.n_predicted == stats.drafted_by["prediction"] < 35
    assert run(engine, requested([]))[0].stats.n_predicted == 0
