"""Recording what a draft model says of a text, over table models."""

from __future__ import annotations

import pytest

from specllama.core.recording import record, write_text
from specllama.core.replay import WRONG
from specllama.testing import TableContext

PROMPT = [5, 6, 7, 8, 9] * 4


def test_where_the_draft_lacks_an_id_it_says_nothing_any_more():
    text = [1, 2, 3, 30, 4, 5]
    draft = TableContext(30, 128, n_batch=4)  # its last id is 29
    trace = record(PROMPT, text, draft)
    assert trace.text == text
    assert [d == WRONG for d in trace.draft] == [False] * 4 + [True] * 2
    assert trace.conf[4:] == [0, 0]
    assert trace.draft[3] == draft.rows([*PROMPT, 1, 2, 3]).argmax()
    assert record([30, *PROMPT], text, draft).draft == [WRONG] * 6


@pytest.mark.parametrize("n_ctx", [10, 20, 24])
def test_where_its_context_is_full_too(n_ctx):
    text = write_text(TableContext(32, 128), PROMPT, 12, ())
    trace = record(PROMPT, text, TableContext(32, n_ctx, n_batch=8))
    n_read = max(0, n_ctx - len(PROMPT) + 1)
    assert trace.draft == text[:n_read] + [WRONG] * (12 - n_read)
    assert all(conf > 0 for conf in trace.conf[:n_read])


def test_a_text_without_a_token():
    assert record(PROMPT, [], TableContext(32, 128)).draft == []
    assert record([3], [4, 5], TableContext(32, 128)).conf[0] > 0
