"""The memory drafter: what it draws on, and what it must not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specllama.drafters.request_history import FILED_AT_START, MemoryDrafter
from specllama.drafters.ring import RequestHistory

SEQ = 2
EARLIER = list(range(100, 140))
tokens = st.integers(0, 5)
histories = st.lists(st.lists(tokens, min_size=4, max_size=40), max_size=6)


def remembering(*wrote: list[int], owner: str = "", n_prompt: int = 0) -> RequestHistory:
    memory = RequestHistory()
    for history in wrote:
        memory.keep(owner, history, n_prompt)
    return memory


def after(
    memory: RequestHistory, prompt: list[int], text: list[int], limit: int, owner: str = ""
) -> list[int]:
    """What is proposed to this owner when the text was committed token by token."""
    drafter = MemoryDrafter(memory)
    drafter.set_scope(SEQ, owner)
    drafter.start(SEQ, prompt)
    for token in text:
        drafter.committed(SEQ, [token])
    return [p.token for p in drafter.propose(SEQ, limit)]


def test_goes_on_as_an_earlier_text_did() -> None:
    assert after(remembering(EARLIER), [1, 2], EARLIER[:3], 4) == EARLIER[3:7]


def test_needs_three_tokens() -> None:
    assert after(remembering(EARLIER), [1, 2], EARLIER[:2], 4) == []


def test_the_end_of_a_prompt_counts_and_its_rest_is_not_kept() -> None:
    """Behind the same two last ids of a prompt the same first token is enough."""
    memory = remembering([50, 51, 52, 8, 9, *EARLIER], n_prompt=5)
    assert after(memory, [7, 8, 9], EARLIER[:1], 3) == EARLIER[1:4]
    assert after(memory, [1, 2], [50, 51, 52], 3) == []


def test_nothing_is_kept_where_nothing_was_written() -> None:
    memory = remembering([1, 2, 3], n_prompt=3)
    assert memory.n_bytes == 0


def test_ends_where_the_earlier_text_ended() -> None:
    memory = remembering(EARLIER[:10], EARLIER[20:])
    assert after(memory, [1], EARLIER[4:8], 20) == EARLIER[8:10]
    assert after(memory, [1], EARLIER[4:10], 20) == []


def test_goes_on_behind_a_value_that_differs() -> None:
    form = [*range(10, 20), 77, 78, *range(20, 30)]
    assert after(remembering(form), [1], [*range(10, 20), 90, 91, 92, 20, 21], 6) == list(range(22, 28))


def test_the_latest_text_is_taken_of_several() -> None:
    memory = remembering([1, 2, 3, 40], [1, 2, 3, 50])
    assert after(memory, [0], [1, 2, 3], 1) == [50]


def test_what_ends_later_is_found_by_sequences_that_are_under_way() -> None:
    memory = remembering()
    drafter = MemoryDrafter(memory)
    drafter.start(SEQ, [0])
    drafter.committed(SEQ, EARLIER[:2])
    assert drafter.propose(SEQ, 2) == []
    memory.keep("", EARLIER, 0)
    drafter.committed(SEQ, EARLIER[2:3])  # what waits is filed behind this
    assert drafter.propose(SEQ, 2) == []
    drafter.committed(SEQ, EARLIER[3:4])
    assert [p.token for p in drafter.propose(SEQ, 2)] == EARLIER[4:6]


def test_a_long_text_is_not_filed_at_once() -> None:
    memory = remembering(list(range(3 * FILED_AT_START)))
    drafter = MemoryDrafter(memory)
    drafter.start(SEQ, [0])
    assert len(memory.of("")) == FILED_AT_START + 1


def test_what_is_only_drafted_for_is_not_kept() -> None:
    memory = remembering()
    drafter = MemoryDrafter(memory)
    drafter.start(SEQ, [1, 2, 3])
    drafter.committed(SEQ, EARLIER)
    drafter.forget(SEQ)
    assert after(memory, [0], EARLIER[:3], 1) == []


@given(histories, histories, st.lists(tokens, max_size=20))
def test_owners_know_nothing_of_each_other(theirs, mine, text) -> None:
    """Whatever others wrote, before or between, an owner is proposed what it were without them."""
    alone, together = RequestHistory(), RequestHistory()
    for i in range(max(len(theirs), len(mine))):
        if i < len(theirs):
            together.keep("key 1", theirs[i], 1)
        if i < len(mine):
            together.keep("key 2", mine[i], 1)
            alone.keep("key 2", mine[i], 1)
    assert after(together, [1, 2], text, 9, "key 2") == after(alone, [1, 2], text, 9, "key 2")
    assert after(together, [1, 2], text, 9, "key 3") == []


def test_a_slot_that_changes_hands_takes_nothing_along() -> None:
    memory = remembering(EARLIER, owner="key 1")
    drafter = MemoryDrafter(memory)
    drafter.set_scope(SEQ, "key 1")
    drafter.start(SEQ, EARLIER[:3])
    assert drafter.propose(SEQ, 1)
    drafter.forget(SEQ)
    drafter.start(SEQ, EARLIER[:3])
    assert drafter.propose(SEQ, 1) == []


def test_of_many_owners_the_last_ones_are_remembered() -> None:
    memory = RequestHistory(bits=8, most=3)
    for name in "abc":
        memory.keep(name, EARLIER, 0)
    assert after(memory, [0], EARLIER[:3], 1, "a") == EARLIER[3:4]
    memory.keep("d", EARLIER, 0)
    assert [after(memory, [0], EARLIER[:3], 1, name) for name in "ad"] == [EARLIER[3:4]] * 2
    assert after(memory, [0], EARLIER[:3], 1, "b") == []
    assert memory.n_bytes == 3 * memory.of("a").n_bytes
