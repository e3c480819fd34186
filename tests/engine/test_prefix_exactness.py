"""A restored prefix is bit-equal: logits and texts are those of a context that was never disturbed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from specllama.config.load import ModelSettings
from specllama.core.engine import Engine
from specllama.core.interfaces import BatchRow
from specllama.core.policy.fixed import Fixed
from specllama.core.prefix.stored import Boundary
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Generation, Request
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.model import ModelDrafter
from specllama.llama.context import LlamaContext
from specllama.llama.model import LlamaModel
from tests.support import tinygguf, tinymtp

BUILDERS = {
    "llama": tinygguf.llama,
    "gemma3": lambda path, **more: tinygguf.gemma3(path, n_swa=150, **more),
    "mamba": tinygguf.mamba,
    "jamba": tinygguf.jamba,
    "lfm2": tinygguf.lfm2,
    "qwen35": tinymtp.qwen35,
}
KINDS = tuple(BUILDERS)
RNG = np.random.default_rng(1)
IDS = RNG.integers(3, 250, 2000).tolist()
OTHER = RNG.integers(3, 250, 600).tolist()


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., LlamaModel]]:
    """F16 or Q8_0 caches, as people use them; windows keep their own cells alone."""
    folder, models = tmp_path_factory.mktemp("models"), {}

    def model(kind: str, cache: str = "f16", noise: float = 0.0) -> LlamaModel:
        key = kind, cache, noise
        if key not in models:
            path: Path = folder / f"{kind}-{cache}-{noise}.gguf"
            with pytest.MonkeyPatch.context() as patch:
                if cache == "q8_0":  # blocks of 32 values must divide a head
                    for module in (tinygguf, tinymtp):
                        patch.setattr(module, "N_EMBD", 96)
                        patch.setattr(module, "N_EMBD_HEAD", 32)
                    patch.setitem(tinygguf.Builder.__init__.__kwdefaults__, "n_embd", 96)
                BUILDERS[kind](path, noise=noise, n_ctx_train=4096)
            models[key] = LlamaModel(
                ModelSettings(
                    path=str(path),
                    n_threads=1,
                    n_ubatch=64,
                    n_batch=64,
                    cache_type_k=cache,
                    cache_type_v=cache,
                    swa_full=cache != "f16" or noise > 0,
                )
            )
        return models[key]

    yield model
    for one in models.values():
        one.close()


@pytest.fixture
def context() -> Iterator[Callable[..., LlamaContext]]:
    made: list[LlamaContext] = []

    def make(model: LlamaModel, n_seq_max: int = 1, n_rs_seq: int = 0) -> LlamaContext:
        made.append(LlamaContext(model, 4096, n_seq_max, n_rs_seq=n_rs_seq))
        return made[-1]

    yield make
    for one in made:
        one.close()


def read(
    ctx: LlamaContext, ids: list[int], begin: int, end: int, seq_id: int = 0, step: int = 64
) -> NDArray[np.float32]:
    """Evaluate these ids; the logits of the last decode."""
    rows = np.zeros((0, 0), np.float32)
    for at in range(begin, end, step):
        batch = [BatchRow(ids[i], i, seq_id, True) for i in range(at, min(end, at + step))]
        rows = ctx.decode(batch).copy()
    return rows


def following(ctx: LlamaContext, n: int, seq_id: int = 0) -> NDArray[np.float32]:
    """Logits of a piece that follows, and of single rows after it."""
    piece = read(ctx, IDS, n, n + 60, seq_id)
    return np.concatenate([piece, *(read(ctx, IDS, n + 60 + i, n + 61 + i, seq_id) for i in range(3))])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cache", ["f16", "q8_0"])
@pytest.mark.parametrize("n", [100, 320, 733])
def test_logits_after_a_partial_state_are_bit_equal(load, context, kind, cache, n):
    model = load(kind, cache)
    undisturbed = context(model)
    read(undisturbed, IDS, 0, n)
    expected = following(undisturbed, n)
    ctx = context(model)
    read(ctx, IDS, 0, n)
    partial = ctx.save_partial(0)
    read(ctx, OTHER + IDS, n, n + 500)
    assert ctx.restore_partial(0, n, partial) == n == ctx.n_past(0)
    assert np.array_equal(following(ctx, n), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cache", ["f16", "q8_0"])
@pytest.mark.parametrize("n", [100, 733])
def test_logits_after_a_whole_state_in_another_context_are_bit_equal(load, context, kind, cache, n):
    model = load(kind, cache)
    ctx = context(model)
    read(ctx, IDS, 0, n)
    saved = bytes(ctx.save(0))
    expected = following(ctx, n)
    fresh = context(model)
    read(fresh, OTHER, 0, 300)
    fresh.truncate(0, 0)
    assert fresh.load(0, bytearray(saved)) == n
    assert bytes(fresh.save(0)) == saved
    assert np.array_equal(following(fresh, n), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_next_to_other_sequences_are_bit_equal(load, context, kind):
    """With specllama's kernels, which sum over the cells of a text in the order of its tokens."""
    model = load(kind)
    undisturbed = context(model)
    read(undisturbed, IDS, 0, 320)
    expected = following(undisturbed, 320)
    ctx = context(model, 3)
    for at in range(0, 320, 64):  # cells of two texts alternate
        read(ctx, IDS, at, at + 64, 0)
        read(ctx, OTHER, at, at + 64, 1)
    partial, saved = ctx.save_partial(0), ctx.save(0)
    read(ctx, OTHER + IDS, 320, 500, 0)
    assert ctx.restore_partial(0, 320, partial) == 320
    assert np.array_equal(following(ctx, 320), expected)
    assert ctx.load(2, saved) == 320
    assert np.array_equal(following(ctx, 320, 2), expected)
    if not ctx.cuts_anywhere:
        assert ctx.copy(0, 1, 320, partial) == 320
        assert np.array_equal(following(ctx, 320, 1), expected)


class Writer:
    """An engine, and the texts that it writes."""

    def __init__(self, ctx: LlamaContext, draft: LlamaContext | None = None, budget: float = 1e9) -> None:
        self.ctx = ctx
        drafters = [CopyDrafter(), ModelDrafter(draft, ctx.n_vocab)] if draft is not None else []
        self.engine = Engine(
            ctx,
            Fixed(drafters, 5 if drafters else 0),
            end_ids={2},
            clock=time.perf_counter,
            room=lambda _: True,
            cache_budget=budget,
        )

    def text(self, prompt: list[int], temperature: float, n: int = 40) -> Generation:
        params = SamplingParams(temperature=temperature, max_tokens=n, ignore_eos=True)
        at = [Boundary(i, "user") for i in range(128, len(prompt) - 3, 128)]
        generation = self.engine.submit(
            Request(prompt, params, 7, boundaries=[*at, Boundary(len(prompt) - 4, "end")])
        )
        while self.engine.busy:
            self.engine.step()
        return generation


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("drafts", [False, True])
def test_texts_after_eviction_are_those_of_an_undisturbed_engine(load, context, kind, temperature, drafts):
    """A conversation whose slot other texts use between its turns."""
    model = load(kind)

    def writer() -> Writer:
        draft = context(load("llama", noise=0.1)) if drafts else None
        return Writer(context(model, n_rs_seq=8), draft)

    alone, shared = writer(), writer()
    history = IDS[:400]
    for turn, side in itertools.product(range(2), [250]):
        expected = alone.text(history, temperature)
        got = shared.text(history, temperature)
        assert got.output == expected.output
        if turn:
            assert got.stats.n_reused >= 400
        shared.text(OTHER[:side], 1.0)
        history = [*got.history, *OTHER[500 : 540 + turn]]
    edited = [*IDS[:300], *OTHER[:50]]
    assert shared.text(edited, temperature).stats.n_reused >= 256
    assert shared.text(edited, temperature).output == alone.text(edited, temperature).output


@pytest.mark.parametrize("kind", ["llama", "mamba"])
@pytest.mark.parametrize("n", [20, 150])
def test_a_prompt_that_is_evaluated_twice_is_evaluated_in_the_same_pieces(
    load, context, monkeypatch, kind, n
):
    """Where texts keep their width: also one that is shorter than a piece, since rows of other decodes may be
    rounded differently.
    """
    ctx = context(load(kind))
    engine, pieces = Engine(ctx, Fixed([], 0), end_ids=(), clock=time.perf_counter, text_chunk=64), []
    decode = ctx.decode

    def decoded(batch, *more, **named):
        pieces.append((batch[0].pos, len(batch)))
        return decode(batch, *more, **named)

    monkeypatch.setattr(ctx, "decode", decoded)
    for _ in range(2):
        engine.submit(Request(IDS[:n], SamplingParams(temperature=0, max_tokens=5, ignore_eos=True), 7))
        while engine.busy:
            engine.step()
    of_prompt = [(at, rows) for at, rows in pieces if at < n]
    first = [(at, min(64, n - at)) for at in range(0, n, 64)]
    again = of_prompt[len(first) :]
    assert of_prompt[: len(first)] == first
    assert again
    assert again == first[-len(again) :]


def test_a_window_without_its_old_cells_can_be_filled_up(load, context):
    """Rows that fill up a decode take the place of cells that no later token sees."""
    model = load("gemma3")
    plain, padded = context(model), context(model)
    read(plain, IDS, 0, 700)
    read(padded, IDS, 0, 700)
    for n in range(700, 1100):
        batch = [BatchRow(IDS[n], n, 0, True)]
        expected, got = plain.decode(batch)[0].copy(), padded.decode(batch, 24, 24)[0].copy()
        assert np.array_equal(got, expected)
        assert padded.n_decoded == 24


def test_windows_of_shared_prefixes_do_not_fill_the_cache(load, context):
    ctx = context(load("gemma3"), 4)
    read(ctx, IDS, 0, 600)
    for turn in range(12):
        for seq_id in (1, 2, 3):
            assert ctx.copy(0, seq_id, ctx.n_past(0)) == ctx.n_past(0)
        n = ctx.n_past(0)
        for seq_id in range(4):
            read(ctx, IDS, n, n + 64, seq_id)
        assert ctx.n_past(3) == 600 + 64 * (turn + 1)
