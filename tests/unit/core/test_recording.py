"""Recording the choices of a draft model or a head along a text, over table models."""

from __future__ import annotations

import pytest

from specllama.core.replay.forecast import record, record_steps, write_text
from specllama.core.replay.simulator import WRONG
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.sampler import KeyedSampler
from specllama.drafters.head import HeadDrafter
from specllama.testing import TableContext
from tests.support.scripted import TableHead

PROMPT = [5, 6, 7, 8, 9] * 4


def test_after_an_id_outside_its_vocabulary_the_draft_is_wrong():
    text = [1, 2, 3, 30, 4, 5]
    draft = TableContext(30, 128, n_batch=4)  # its last id is 29
    trace = record(PROMPT, text, draft)
    assert trace.text == text
    assert [d == WRONG for d in trace.draft] == [False] * 4 + [True] * 2
    assert trace.conf[4:] == [0, 0]
    assert trace.draft[3] == draft.rows([*PROMPT, 1, 2, 3]).argmax()
    assert record([30, *PROMPT], text, draft).draft == [WRONG] * 6


@pytest.mark.parametrize("n_ctx", [10, 20, 24])
def test_beyond_its_context_the_draft_is_wrong(n_ctx):
    text = write_text(TableContext(32, 128), PROMPT, 12, ())
    trace = record(PROMPT, text, TableContext(32, n_ctx, n_batch=8))
    n_read = max(0, n_ctx - len(PROMPT) + 1)
    assert trace.draft == text[:n_read] + [WRONG] * (12 - n_read)
    assert all(conf > 0 for conf in trace.conf[:n_read])


def test_an_empty_text_gives_an_empty_trace():
    assert record(PROMPT, [], TableContext(32, 128)).draft == []
    assert record([3], [4, 5], TableContext(32, 128)).conf[0] > 0


def test_sampled_texts_are_written_and_recorded_with_the_same_noise():
    params = SamplingParams(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0)
    texts = [write_text(TableContext(32, 128), PROMPT, 30, (), params, seed) for seed in (1, 2)]
    assert texts[0] != texts[1]
    assert write_text(TableContext(32, 128), PROMPT, 30, ()) not in texts
    table = TableContext(32, 128)
    for seed, text in enumerate(texts, 1):
        sampler = KeyedSampler(params, seed, 32)
        for i, token in enumerate(text):
            history = [*PROMPT, *text[:i]]
            assert sampler.choose(table.rows(history).copy(), history).token == token
        # the draft is the same table; with other noise, or greedily, it would choose other tokens
        assert record(PROMPT, text, TableContext(32, 128, n_batch=8), params, seed).draft == text
        assert record(PROMPT, text, TableContext(32, 128), params, seed + 5).draft != text
        assert record(PROMPT, text, TableContext(32, 128)).draft != text


@pytest.mark.parametrize(("lag", "reads_target"), [(0, False), (1, False), (0, True)])
@pytest.mark.parametrize("n_ahead", [1, 7])
def test_a_head_that_knows_the_target_chooses_the_text(lag, reads_target, n_ahead):
    target, head = TableContext(32, 128, n_batch=8), TableHead(32, 128, lag=lag, reads_target=reads_target)
    drafter = target.reader = HeadDrafter(head, 32)
    for prompt in (PROMPT, [*PROMPT[:12], 3, 4, 2], [1, 2]):  # one after the other, with a common beginning
        text = write_text(TableContext(32, 128), prompt, 40, ())
        trace = record_steps(prompt, text, drafter, 32, target=target, n_ahead=n_ahead)
        assert (trace.prompt, trace.text) == (prompt, text)
        known = 0 if len(prompt) > 2 or lag == 0 else 1
        assert trace.draft[known:] == text[known:]
        assert all(0 < conf <= 1 for conf in trace.conf[known:])
        assert drafter.states == {}
    assert target.n_past(0) == 2 + 40 - 2, "the last draft needs no more"


def test_a_head_is_asked_with_the_noise_of_the_text():
    params = SamplingParams(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0)
    text = write_text(TableContext(32, 128), PROMPT, 30, (), params, 3)
    target = TableContext(32, 128)
    drafter = target.reader = HeadDrafter(TableHead(32, 128), 32)
    assert record_steps(PROMPT, text, drafter, 32, params, 3, target).draft == text
    assert record_steps(PROMPT, text, drafter, 32, params, 4, target).draft != text


def test_without_features_or_room_a_head_is_wrong():
    text = write_text(TableContext(32, 128), PROMPT, 12, ())
    blind = HeadDrafter(TableHead(32, 128), 32)
    trace = record_steps(PROMPT, text, blind, 32, target=TableContext(32, 128))
    assert (trace.draft, trace.conf) == ([WRONG] * 12, [0.0] * 12)
    target = TableContext(32, 128)
    small = target.reader = HeadDrafter(TableHead(32, 24), 32)
    trace = record_steps(PROMPT, text, small, 32, target=target)
    assert trace.draft == text[:5] + [WRONG] * 7
    assert record_steps([3], [4, 5], small, 32, target=target).draft[0] == WRONG
    assert record_steps(PROMPT, [], small, 32, target=target).draft == []
