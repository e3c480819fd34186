"""Recording the choices of a draft model along a text, over table models."""

from __future__ import annotations

import pytest

from specllama.core.replay.recording import record, write_text
from specllama.core.replay.simulator import WRONG
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.sampler import KeyedSampler
from specllama.testing import TableContext

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
