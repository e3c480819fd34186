"""Prefill chunks: sized by time, longer where no other sequence waits."""

from __future__ import annotations

import pytest

from specllama.core.engine import Engine
from specllama.core.policy.fixed import Fixed
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Request
from specllama.testing import TableContext

FOREVER = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)


class Slow(TableContext):
    """A context whose decodes take `fixed` seconds plus `per_row` seconds per row."""

    def __init__(self, per_row: float, fixed: float = 0.0) -> None:
        super().__init__(32, 3000, 2)
        self.n_batch, self.per_row, self.fixed, self.now = 512, per_row, fixed, 0.0

    def decode(self, batch, *filled):
        self.now += self.fixed + self.per_row * len(batch)
        return super().decode(batch, *filled)

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


def test_a_chunk_takes_half_a_second_and_longer_where_no_other_waits():
    target = Slow(per_row=0.0025)
    engine = engine_of(target)
    fill(engine, prompt(1000))
    assert target.chunks() == [64, 320, 320, 192, 104]
    target.widths.clear()
    fill(engine, prompt(1000, first=5))
    assert target.chunks() == [192, 192, 192, 192, 128, 104]


class Growing(Slow):
    """Attention: each row takes `per_cell` seconds more for each cell before it."""

    def __init__(self, per_row: float, per_cell: float, round_seconds: float) -> None:
        super().__init__(per_row)
        self.per_cell, self.round_seconds = per_cell, round_seconds

    def decode(self, batch, *filled):
        one = len(batch) <= 2
        self.now += self.round_seconds if one else self.per_cell * sum(row.pos for row in batch)
        return super().decode(batch, *filled)


@pytest.mark.parametrize("per_row", [0.0003, 0.0005, 0.001, 0.002])
@pytest.mark.parametrize("per_cell", [0.0, 2e-7, 5e-7])
@pytest.mark.parametrize("round_seconds", [0.005, 0.02, 0.1])
def test_others_wait_half_a_second_at_most_from_one_token_to_the_next(per_row, per_cell, round_seconds):
    target = Growing(per_row, per_cell, round_seconds)
    target.n_batch = 2048
    engine = engine_of(target)
    fill(engine, prompt(200))
    generation = engine.submit(Request(prompt(2300, first=5), FOREVER, 1))
    gaps, before = [], target.now
    while not generation.prefilled:
        engine.step()
        gaps.append(target.now - before)
        before = target.now
    assert max(gaps) <= 0.5
    assert target.now < 2 * (2500 * per_row + len(gaps) * round_seconds + per_cell * 2500**2)


@pytest.mark.parametrize("n", [1, 63, 64, 127, 128, 129, 500, 1000])
def test_the_widths_that_affect_rounding_do_not_depend_on_speed(n):
    """Every decode but the last has a multiple of 64 rows, the last one 64 and the remainder."""
    for per_row in (1e-6, 0.001, 0.004, 1.0):
        target = Slow(per_row)
        engine = engine_of(target)
        fill(engine, prompt(200))
        target.widths.clear()
        engine.submit(Request(prompt(n, first=5), FOREVER, 1))
        while not all(g.prefilled for g in engine.active) or engine.scheduler.waiting:
            engine.step()
        widths = [w for w in target.widths if w > 2] or [n]
        assert sum(widths) == n
        assert widths[-1] == (n if n < 128 else 64 + n % 64)
        assert all(w % 64 == 0 for w in widths[:-1])


@pytest.mark.parametrize(
    ("n", "widths"),
    [(6, [6]), (32, [32]), (40, [32, 8]), (100, [96, 4]), (134, [64, 64, 6]), (192, [64, 64, 64])],
)
def test_rows_beyond_a_row_multiple_are_decoded_by_themselves(n, widths):
    target = Slow(per_row=1.0)
    target.row_multiple = 32
    fill(engine_of(target), prompt(n))
    assert target.chunks()[: len(widths)] == widths
    assert sum(widths) == n


@pytest.mark.parametrize(
    ("n", "widths"), [(63, [63]), (64, [63, 1]), (100, [99, 1]), (134, [64, 69, 1]), (192, [64, 127, 1])]
)
def test_the_last_row_is_decoded_by_itself_where_rows_of_prompts_are_rounded_otherwise(n, widths):
    target = Slow(per_row=1.0)
    target.rounds_prompts = True
    engine = engine_of(target)
    fill(engine, prompt(n))
    assert target.widths[: len(widths)] == widths
    before = len(target.widths)
    fill(engine, prompt(n))
    assert target.widths[before] == 1, "as where the prompt is used again"


@pytest.mark.parametrize(
    ("lengths", "shared"),
    [
        ((200, 20), 0),
        ((65, 64), 0),
        ((20, 200), 0),
        ((64, 65), 0),
        ((200, 180), 10),
        ((60, 20), 10),
        ((200, 74), 0),  # the rest would be a small decode
        ((20, -90, 200), 0),  # the second goes on from the first, whose rows are those of a small decode
        ((20, -90, 30), 10),
    ],
)
def test_rows_that_are_common_by_chance_are_shared_where_they_are_rounded_alike(lengths, shared):
    def n_evaluated(rounds_prompts: bool) -> int:
        target = Slow(per_row=1.0)
        target.rounds_prompts = rounds_prompts
        engine, ids = engine_of(target), list[int]()
        for i, n in enumerate(lengths):
            goes_on, before = n < 0, len(target.widths)
            ids = [*ids, *prompt(-n - len(ids))] if goes_on else prompt(10) + prompt(n - 10, first=28 - i)
            engine.submit(Request(ids, SamplingParams(temperature=0, max_tokens=1), 1))
            while engine.scheduler.busy:
                engine.step()
        return sum(target.widths[before:])

    assert n_evaluated(False) == abs(lengths[-1]) - 10
    assert n_evaluated(True) == abs(lengths[-1]) - shared


@pytest.mark.parametrize(
    ("prompts", "reused"),
    [
        ([(200, 0, True), (220, 150, True)], 150),
        ([(200, 0, True), (210, 190, True)], 145),  # a new process evaluates the others in a large decode
        ([(200, 0, True), (200, 200, True)], 135),
        ([(200, 0, True), (220, 200, False)], 200),
        ([(200, 0, False), (400, 200, True)], 199),  # its last row was decoded by itself
        ([(200, 0, True), (300, 200, True), (400, 300, True)], 299),
        ([(200, 0, False), (160, 150, False), (300, 160, True)], 149),  # then rows of a small decode follow
        ([(40, 0, True), (50, 30, True)], 30),
        ([(40, 0, True), (200, 30, True)], 0),
        ([(200, 0, True), (50, 30, True)], 0),
    ],
)
def test_exact_texts_reuse_rows_that_are_those_of_a_new_process(prompts, reused):
    target = Slow(per_row=1.0)
    target.rounds_prompts = True
    engine, ids = engine_of(target), list[int]()
    for i, (n, n_common, exact) in enumerate(prompts):
        ids = ids[:n_common] + prompt(n - n_common, first=3 + 5 * i)
        before = len(target.widths)
        engine.submit(Request(ids, SamplingParams(temperature=0, max_tokens=1), 1, exact=exact))
        while engine.scheduler.busy:
            engine.step()
    assert sum(target.widths[before:]) == n - reused


@pytest.mark.parametrize(("first_exact", "evaluated"), [(True, 200), (False, 400)])
def test_exact_texts_share_the_prompt_of_exact_ones_that_are_evaluated_now(first_exact, evaluated):
    target = Slow(per_row=1.0)
    target.rounds_prompts = True
    engine = engine_of(target)
    for exact in (first_exact, True):
        engine.submit(Request(prompt(200), SamplingParams(temperature=0, max_tokens=1), 1, exact=exact))
    while engine.scheduler.busy:
        engine.step()
    assert sum(target.widths) == evaluated


@pytest.mark.parametrize("n", [5, 63])
def test_small_chunks_do_not_change_the_measured_row_time(n):
    target = Slow(per_row=0.005, fixed=0.1)
    engine = engine_of(target)
    fill(engine, prompt(200))
    row_seconds = engine.scheduler.chunk_size.row_seconds
    fill(engine, prompt(n, first=5))
    assert engine.scheduler.chunk_size.row_seconds == row_seconds


def test_a_slow_machine_still_evaluates_whole_chunks():
    target = Slow(per_row=1.0)
    engine = engine_of(target)
    fill(engine, prompt(200))
    assert target.chunks() == [64, 64, 72]


def test_n_batch_limits_every_decode():
    target = Slow(per_row=0.001)
    target.n_batch = 100
    engine = engine_of(target)
    fill(engine, prompt(250))
    assert target.chunks() == [100, 100, 50]
