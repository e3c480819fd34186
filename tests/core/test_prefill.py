"""How much of a prompt is evaluated at once: by time, more where nobody waits."""

from __future__ import annotations

import pytest

from specllama.core.engine import Engine
from specllama.core.fixed import Fixed
from specllama.core.params import SamplingParams
from specllama.core.sequence import Request
from specllama.testing import TableContext

FOREVER = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)


class Slow(TableContext):
    """Its time passes in decodes: `fixed` seconds each, and so many a row."""

    def __init__(self, per_row: float, fixed: float = 0.0) -> None:
        super().__init__(32, 3000, 2)
        self.n_batch, self.per_row, self.fixed, self.now = 512, per_row, fixed, 0.0

    def decode(self, batch):
        self.now += self.fixed + self.per_row * len(batch)
        return super().decode(batch)

    def chunks(self) -> list[int]:
        return [width for width in self.widths if width > 2]


def engine_of(target: Slow) -> Engine:
    return Engine(target, Fixed([], 0), end_ids={3}, clock=lambda: target.now)


def prompt(n: int, first: int = 4) -> list[int]:
    return [first, *(4 + i * 7 % 25 for i in range(n - 1))]


def fill(engine: Engine, ids: list[int]) -> None:
    generation = engine.submit(Request(ids, FOREVER, 1))
    while not generation.prefilled:
        engine.step()


def test_a_chunk_takes_half_a_second_beside_others_and_longer_alone():
    target = Slow(per_row=0.005)
    engine = engine_of(target)
    fill(engine, prompt(1000))
    assert target.chunks()[:3] == [64, 160, 160]
    target.widths.clear()
    fill(engine, prompt(1000, first=5))
    assert set(target.chunks()[:-1]) == {96}


def test_chunks_do_not_stay_short_because_short_ones_are_dear():
    """32 rows take 0.29 s, 64 take 0.48: two more than fit by the price of the short ones."""
    target = Slow(per_row=0.006, fixed=0.1)
    engine = engine_of(target)
    fill(engine, prompt(40))
    fill(engine, prompt(600, first=5))
    target.widths.clear()
    engine._row_seconds = 0.1 / 32 + 0.006
    third = engine.submit(Request(prompt(600, first=6), FOREVER, 1))
    for generation in engine.active[:1]:
        generation.finish_reason = "cancel"
    while not third.prefilled:
        engine.step()
    assert set(target.chunks()[:-1]) == {64}


@pytest.mark.parametrize("n", [5, 31])
def test_few_rows_say_nothing_about_a_chunk(n):
    target = Slow(per_row=0.005, fixed=0.1)
    engine = engine_of(target)
    fill(engine, prompt(200))
    price = engine._row_seconds
    fill(engine, prompt(n, first=5))
    assert engine._row_seconds == price


def test_a_slow_machine_still_evaluates_enough_at_once():
    target = Slow(per_row=1.0)
    engine = engine_of(target)
    fill(engine, prompt(200))
    assert target.chunks() == [64, 32, 32, 32, 32, 8]
