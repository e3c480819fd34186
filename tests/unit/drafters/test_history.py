"""The drafter of the request history: which texts it copies from, and which it must not."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.drafters.history import INDEXED_AT_START, HistoryDrafter
from specllama.drafters.ngrams import RequestHistory

SEQ = 2
EARLIER = list(range(100, 140))
tokens = st.integers(0, 5)
histories = st.lists(st.lists(tokens, min_size=4, max_size=40), max_size=6)


def history_of(*texts: list[int], scope: str = "", n_prompt: int = 0) -> RequestHistory:
    history = RequestHistory()
    for text in texts:
        history.keep(scope, text, n_prompt)
    return history


def after(
    history: RequestHistory, prompt: list[int], text: list[int], limit: int, scope: str = ""
) -> list[int]:
    """The tokens proposed in this scope after the text was committed token by token."""
    drafter = HistoryDrafter(history)
    drafter.set_scope(SEQ, scope)
    drafter.start(SEQ, prompt)
    for token in text:
        drafter.committed(SEQ, [token])
    return [p.token for p in drafter.propose(SEQ, limit)]


def test_continues_as_an_earlier_text_did() -> None:
    assert after(history_of(EARLIER), [1, 2], EARLIER[:3], 4) == EARLIER[3:7]


def test_needs_three_tokens() -> None:
    assert after(history_of(EARLIER), [1, 2], EARLIER[:2], 4) == []


def test_only_the_last_two_ids_of_a_prompt_are_kept() -> None:
    """After prompts with the same last two ids, the same first token is a match."""
    history = history_of([50, 51, 52, 8, 9, *EARLIER], n_prompt=5)
    assert after(history, [7, 8, 9], EARLIER[:1], 3) == EARLIER[1:4]
    assert after(history, [1, 2], [50, 51, 52], 3) == []


def test_a_request_without_output_is_not_kept() -> None:
    history = history_of([1, 2, 3], n_prompt=3)
    assert history._rings == {}


def test_ends_where_the_earlier_text_ended() -> None:
    history = history_of(EARLIER[:10], EARLIER[20:])
    assert after(history, [1], EARLIER[4:8], 20) == EARLIER[8:10]
    assert after(history, [1], EARLIER[4:10], 20) == []


def test_continues_after_a_value_that_differs() -> None:
    form = [*range(10, 20), 77, 78, *range(20, 30)]
    assert after(history_of(form), [1], [*range(10, 20), 90, 91, 92, 20, 21], 6) == list(range(22, 28))


def test_the_latest_of_several_texts_is_copied() -> None:
    history = history_of([1, 2, 3, 40], [1, 2, 3, 50])
    assert after(history, [0], [1, 2, 3], 1) == [50]


def test_a_running_sequence_uses_texts_that_end_meanwhile() -> None:
    history = history_of()
    drafter = HistoryDrafter(history)
    drafter.start(SEQ, [0])
    drafter.committed(SEQ, EARLIER[:2])
    assert drafter.propose(SEQ, 2) == []
    history.keep("", EARLIER, 0)
    drafter.committed(SEQ, EARLIER[2:3])  # the pending text is indexed after this
    assert drafter.propose(SEQ, 2) == []
    drafter.committed(SEQ, EARLIER[3:4])
    assert [p.token for p in drafter.propose(SEQ, 2)] == EARLIER[4:6]


def test_a_long_text_is_indexed_in_pieces() -> None:
    history = history_of(list(range(3 * INDEXED_AT_START)))
    drafter = HistoryDrafter(history)
    drafter.start(SEQ, [0])
    assert len(history.ring("")) == INDEXED_AT_START + 1


def test_the_drafter_itself_keeps_no_texts() -> None:
    history = history_of()
    drafter = HistoryDrafter(history)
    drafter.start(SEQ, [1, 2, 3])
    drafter.committed(SEQ, EARLIER)
    drafter.forget(SEQ)
    assert after(history, [0], EARLIER[:3], 1) == []


@settings(deadline=None)
@given(histories, histories, st.lists(tokens, max_size=20))
def test_scopes_do_not_affect_each_other(theirs, mine, text) -> None:
    """The proposals in a scope are the same with and without the texts of other scopes."""
    alone, together = RequestHistory(), RequestHistory()
    for i in range(max(len(theirs), len(mine))):
        if i < len(theirs):
            together.keep("key 1", theirs[i], 1)
        if i < len(mine):
            together.keep("key 2", mine[i], 1)
            alone.keep("key 2", mine[i], 1)
    assert after(together, [1, 2], text, 9, "key 2") == after(alone, [1, 2], text, 9, "key 2")
    assert after(together, [1, 2], text, 9, "key 3") == []


def test_a_reused_sequence_id_has_no_scope_of_its_own() -> None:
    history = history_of(EARLIER, scope="key 1")
    drafter = HistoryDrafter(history)
    drafter.set_scope(SEQ, "key 1")
    drafter.start(SEQ, EARLIER[:3])
    assert drafter.propose(SEQ, 1)
    drafter.forget(SEQ)
    drafter.start(SEQ, EARLIER[:3])
    assert drafter.propose(SEQ, 1) == []


def test_the_least_recently_used_scope_is_dropped() -> None:
    history = RequestHistory(bits=8, max_scopes=3)
    for name in "abc":
        history.keep(name, EARLIER, 0)
    assert after(history, [0], EARLIER[:3], 1, "a") == EARLIER[3:4]
    history.keep("d", EARLIER, 0)
    assert [after(history, [0], EARLIER[:3], 1, name) for name in "ad"] == [EARLIER[3:4]] * 2
    assert after(history, [0], EARLIER[:3], 1, "b") == []
    assert len(history._rings) == 3
