"""The draft model evaluates a common prefix of several sequences only once."""

from __future__ import annotations

import pytest

from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.sampler import KeyedSampler
from specllama.drafters.model import MIN_SHARED, ModelDrafter
from specllama.testing import TableContext

N_VOCAB = 32
PROMPT = [4 + i * 7 % 25 for i in range(100)]
SAMPLER = KeyedSampler(SamplingParams(temperature=0), 0, N_VOCAB)


def make_drafter(memory: str = "full", n_ctx: int = 600) -> ModelDrafter:
    return ModelDrafter(TableContext(N_VOCAB, n_ctx, 4, memory), N_VOCAB)


def alone(history: list[int]) -> int:
    """The token proposed after this history where no other sequence exists."""
    drafter = make_drafter()
    drafter.start(0, history, SAMPLER)
    return drafter.step({0: ()})[0].token


@pytest.mark.parametrize("memory", ["full", "window", "rollback", "checkpoint"])
@pytest.mark.parametrize("ends", [(9, 10, 11), (9, 9, 11), (9, 9, 9)])
def test_a_common_prefix_is_evaluated_once(memory: str, ends: tuple[int, ...]) -> None:
    drafter = make_drafter(memory)
    for seq, end in enumerate(ends):
        drafter.start(seq, [*PROMPT, end], SAMPLER)
    proposals = drafter.step(dict.fromkeys(range(3), ()))
    assert [proposals[seq].token for seq in range(3)] == [alone([*PROMPT, end]) for end in ends]
    assert sum(drafter.context.widths) == len(PROMPT) + len(ends)
    assert all(drafter.cells[seq] == drafter.context.cells[seq] == [*PROMPT, ends[seq]] for seq in range(3))


def test_a_later_sequence_shares_the_cells_of_an_earlier_one() -> None:
    drafter = make_drafter()
    drafter.start(0, [*PROMPT, 9], SAMPLER)
    drafter.step({0: ()})
    drafter.context.widths.clear()
    drafter.start(1, [*PROMPT[:80], 5, 6], SAMPLER)
    assert drafter.cache_state(1) == (0, 80, 2)
    assert drafter.step({1: ()})[1].token == alone([*PROMPT[:80], 5, 6])
    assert drafter.context.widths == [2]
    assert drafter.cells[0] == drafter.context.cells[0] == [*PROMPT, 9]


def test_a_short_or_skipped_prefix_is_not_shared() -> None:
    drafter = make_drafter()
    short = PROMPT[: MIN_SHARED - 1]
    for seq in (0, 1):
        drafter.start(seq, [*short, 9 + seq], SAMPLER)
    drafter.step({0: (), 1: ()})
    assert sum(drafter.context.widths) == 2 * (len(short) + 1)
    drafter = make_drafter()
    for seq in (0, 1):
        drafter.start(seq, [*PROMPT, 9], SAMPLER)
    drafter.restart_from_tail(0, 40)
    proposals = drafter.step({0: (), 1: ()})
    assert sum(drafter.context.widths) == 40 + len(PROMPT) + 1
    assert proposals[1].token == alone([*PROMPT, 9])


def test_without_room_nothing_is_proposed_until_there_is_room() -> None:
    drafter = make_drafter(n_ctx=110)
    for seq in (0, 1):
        drafter.start(seq, [*PROMPT, 9 + seq], SAMPLER)
    assert drafter.step({0: (), 1: ()}) == {}
    assert all(drafter.cells[seq] == drafter.context.cells[seq] for seq in (0, 1))
    drafter.forget(1)
    assert drafter.step({0: ()})[0].token == alone([*PROMPT, 9])


def test_sequences_of_two_scopes_are_evaluated_as_if_nothing_were_common() -> None:
    widths = []
    for other in (PROMPT, PROMPT[::-1]):
        drafter = make_drafter()
        for seq, prompt in enumerate((PROMPT, other)):
            drafter.set_cache_scope(seq, f"key {seq}")
            drafter.start(seq, [*prompt, 9], SAMPLER)
        drafter.step({0: (), 1: ()})
        widths.append(drafter.context.widths)
    assert widths[0] == widths[1]
    assert sum(widths[0]) == 2 * (len(PROMPT) + 1)
