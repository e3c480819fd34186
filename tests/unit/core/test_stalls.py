"""While other sequences are decoded, the draft model evaluates a long prompt for half a second at most."""

# ruff: noqa: ARG002
from __future__ import annotations

from typing import Any

import pytest

from specllama.core.interfaces import CachingDrafter, DraftCacheState
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.fixed import CATCH_UP_IDS, Fixed
from specllama.core.policy.posterior import NO_CATCH_UP, CatchUp, ModelBased, PairState
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.sampler import KeyedSampler
from specllama.drafters.model import ModelDrafter
from specllama.testing import TableContext

T1 = 0.1  # seconds, as of an 8B model on few cores
PROMPT = [4 + i * 7 % 25 for i in range(3000)]
SAMPLER = KeyedSampler(SamplingParams(temperature=0), 0, 32)


class Cached(ModelDrafter):
    def __init__(self, state: DraftCacheState) -> None:
        super().__init__(TableContext(32, 4096), 32)
        self.state = state

    def cache_state(self, seq_id: int) -> DraftCacheState:
        return self.state


class MillisecondPerId:
    def predict(self, n_ids: int, t1: float) -> float:
        return 0.001 * n_ids


def caught_up(*state: int, credit: float = 35.5, alone: bool = False) -> CatchUp:
    drafter: Any = Cached(DraftCacheState(*state))
    learnt: Any = PairState([drafter])
    learnt.models[drafter.name].steps = MillisecondPerId()
    return ModelBased(drafter, learnt, float).catch_up(0, T1, credit, 10.0, alone=alone)


@pytest.mark.parametrize(
    ("state", "others", "alone"),
    [
        ((0, 0, 3000), CatchUp(375, 0.374, 375), CatchUp(1500, 1.499, 1500)),  # a new prompt
        ((2900, 100, 1), CatchUp(1, 0.0), CatchUp(3001, 0.0, 3001)),  # gains pay for all of it
        ((0, 200, 2800), CatchUp(350, 0.349, 350), CatchUp(2800, 2.799)),  # its beginning is there
        ((0, 2800, 200), CatchUp(200, 0.199), CatchUp(200, 0.199)),
        ((0, 0, 300), CatchUp(300, 0.299), CatchUp(300, 0.299)),
        ((100, 200, 1), CatchUp(301, 0.0, 301), CatchUp(301, 0.0, 301)),
    ],
)
def test_catching_up_takes_half_a_second_where_others_wait(
    state: tuple[int, int, int], others: CatchUp, alone: CatchUp
) -> None:
    assert caught_up(*state) == pytest.approx(others)
    assert caught_up(*state, alone=True) == pytest.approx(alone)
    assert NO_CATCH_UP.seconds <= DEFAULT.max_stall


@pytest.mark.parametrize("memory", ["full", "window", "rollback", "checkpoint"])
def test_with_a_fixed_length_a_prompt_is_evaluated_in_pieces(memory: str) -> None:
    prompt = PROMPT[:500]
    drafter = ModelDrafter(TableContext(32, 1200, 4, memory, n_batch=600), 32)
    assert isinstance(drafter, CachingDrafter)
    drafter.start(0, prompt, SAMPLER)
    drafter.start(1, [5, 6, 7], SAMPLER)
    policy, n_tokens = Fixed([drafter], 1), []
    for _ in range(5):
        drafter.context.widths.clear()
        drafts = policy.draft({0: 9, 1: 9})
        n_tokens.append([len(drafts[seq].tokens) for seq in (0, 1)])
        assert sum(drafter.context.widths) <= CATCH_UP_IDS + 5
        for seq, draft in drafts.items():
            drafter.committed(seq, [*draft.tokens, 9])
    assert n_tokens == [[0, 1]] * 3 + [[1, 1]] * 2
    assert drafter.cells[0][:500] == prompt


def test_a_prompt_alone_is_evaluated_at_once() -> None:
    drafter = ModelDrafter(TableContext(32, 1200, n_batch=600), 32)
    drafter.start(0, PROMPT[:500], SAMPLER)
    assert Fixed([drafter], 2).draft({0: 9})[0].tokens
    assert drafter.context.widths == [500, 1]


def test_sequences_that_cannot_be_drafted_for_wait_for_nothing() -> None:
    drafter = ModelDrafter(TableContext(32, 300, 2), 32)
    drafter.start(0, PROMPT[:400], SAMPLER)  # more than the context
    drafter.start(1, PROMPT[:400], SAMPLER)
    assert all(drafter.catch_up(seq, CATCH_UP_IDS) for seq in (0, 1))
    assert drafter.context.widths == []


def test_a_common_prompt_is_evaluated_once_in_pieces_too() -> None:
    drafter = ModelDrafter(TableContext(32, 2400, 4, n_batch=600), 32)
    for seq in range(3):
        drafter.start(seq, [*PROMPT[:600], seq], SAMPLER)
    policy = Fixed([drafter], 1)
    for _ in range(8):
        policy.draft(dict.fromkeys(range(3), 9))
    assert sum(drafter.context.widths) <= 600 + 3 * 8
