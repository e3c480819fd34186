"""Texts of more than 256 tokens, for which llama.cpp uses other kernels: the real model, on two threads.

From 512 cells on, llama.cpp sums a row in one part per thread; on one thread there is no difference.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator

import pytest

from specllama.config.load import ModelSettings
from specllama.core.engine import Engine
from specllama.core.policy.fixed import Fixed
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Request
from specllama.data import EMBEDDED_TARGET
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.model import ModelDrafter
from specllama.llama.context import LlamaContext
from specllama.llama.model import LlamaModel
from specllama.worker.calibrate import ENOUGH_ROWS, WIDTHS, Calibration, measure
from specllama.worker.profile import length_class

PROMPT = "def load(path):\n    with open(path) as file:\n        return json.load(file)\n\n\ndef save("
N_CTX, N_TOKENS = 1024, 500
LENGTHS = (200, 300, 600, 900)
SECONDS = 30.0  # of comparing rows after each at most; a turn of all widths takes less than one
pytestmark = pytest.mark.alone  # two threads wait for each other at every operation


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    loaded = LlamaModel(ModelSettings(path=str(EMBEDDED_TARGET), n_threads=2))
    yield loaded
    loaded.close()


def compare(context: LlamaContext, ids: list[int]) -> Calibration:
    calibration = Calibration()

    def clock() -> float:  # the time is up once all widths were compared several times
        return time.perf_counter() + SECONDS * (
            set(calibration.widths) == set(WIDTHS) and calibration.n_rows > 300
        )

    return measure(context, 0, ids, SECONDS, clock, calibration)


@pytest.fixture(scope="module")
def compared(model: LlamaModel) -> dict[int, Calibration]:
    """The comparison of batched with single rows, by length of the text."""
    by_length, context = {}, LlamaContext(model, N_CTX)
    ids = model.tokenize(PROMPT * 60, model.adds_bos, False)[: max(LENGTHS)]
    engine = Engine(context, Fixed([], 0), end_ids=(), clock=time.perf_counter)
    for n in LENGTHS:
        generation = engine.submit(Request(ids[:n], SamplingParams(temperature=0, max_tokens=1), 0))
        while engine.busy:
            engine.step()
        (slot,) = engine.slots
        assert context.n_past(0) == n
        by_length[n] = compare(context, generation.history[:n])
        slot.ids = slot.ids[: context.n_past(0)]
    context.close()
    return by_length


def n_equal_rows(compared: dict[int, Calibration]) -> int:
    return min(calibration.equal_up_to for calibration in compared.values())


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the kernels are for x86-64")
def test_batched_rows_are_bit_equal_to_single_rows_at_every_length(
    compared: dict[int, Calibration],
) -> None:
    """The purpose of the kernels in native."""
    assert {n: calibration.reach for n, calibration in compared.items()} == {n: n for n in LENGTHS}
    assert len({length_class(n) for n in LENGTHS}) == 3
    assert n_equal_rows(compared) >= ENOUGH_ROWS
    assert all(set(calibration.widths) == set(WIDTHS) for calibration in compared.values())
    assert all(calibration.n_rows > 100 for calibration in compared.values())


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_long_speculative_output_is_that_of_plain_decoding(
    model: LlamaModel,
    draft: LlamaModel,
    context: Callable[..., LlamaContext],
    compared: dict[int, Calibration],
    temperature: float,
) -> None:
    max_rows = n_equal_rows(compared)
    if max_rows < 2:
        pytest.skip("this llama.cpp rounds batched rows differently from single ones")
    params = SamplingParams(temperature=temperature, max_tokens=N_TOKENS, ignore_eos=True)
    request = Request(model.tokenize(PROMPT, model.adds_bos, False), params, 5)
    texts, accepted = {}, 0
    for n_max in (0, 1, 3, 7, 16):
        drafters = [CopyDrafter(), ModelDrafter(context(draft, N_CTX), model.n_vocab)] if n_max else []
        main = context(model, N_CTX)
        policy = Fixed(drafters, n_max)
        engine = Engine(main, policy, end_ids=(), clock=time.perf_counter, max_rows=max_rows)
        generation = engine.submit(request)
        while engine.busy:
            engine.step()
        texts[n_max] = generation.output
        accepted += generation.stats.n_accept
    assert len(texts[0]) == N_TOKENS
    assert accepted > N_TOKENS / 2
    for n_max, text in texts.items():
        assert text == texts[0], f"different output with drafts of {n_max}"
