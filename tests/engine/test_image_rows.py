"""Images in real contexts: positions of M-RoPE, what is cut, copied and saved, and drafts behind images."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from specllama.config.load import ModelSettings
from specllama.core.engine import Engine
from specllama.core.image_rows import FIRST_PLACEHOLDER, ImageEmbeddings, placeholder_ids
from specllama.core.interfaces import BatchRow, NoRoomError
from specllama.core.policy.fixed import Fixed
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Request
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.model import ModelDrafter
from specllama.llama.batches import LimitError
from specllama.llama.context import LlamaContext
from specllama.llama.library import llama
from specllama.llama.model import LlamaModel
from tests.support import tiny_mmproj, tinygguf
from tests.support.tinyheads import read_tensors

WIDTH, HEIGHT = 4, 3  # rows of the images
N, N_POSITIONS = WIDTH * HEIGHT, max(WIDTH, HEIGHT)
BEFORE, AFTER = list(range(40, 60)), list(range(70, 80))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LlamaModel]]:
    folder: Path = tmp_path_factory.mktemp("images")
    opened = {}
    for name, make, noise in (
        ("llama", tinygguf.llama, 0.0),
        ("gemma3", tinygguf.gemma3, 0.0),
        ("lfm2", tinygguf.lfm2, 0.0),
        ("qwen2vl", tiny_mmproj.qwen2vl_text, 0.0),
        ("draft", tinygguf.llama, 0.1),
    ):
        path = make(folder / f"{name}.gguf", noise=noise)
        opened[name] = LlamaModel(ModelSettings(path=str(path), n_threads=1))
    yield opened
    for model in opened.values():
        model.close()


def mrope(first: int) -> np.ndarray:
    """As qwen2vl's: time, height, width."""
    y, x = np.divmod(np.arange(N), WIDTH)
    return np.stack([np.full(N, first), first + y, first + x, np.zeros(N)]).astype(np.int32)


def image(model: LlamaModel, seed: int = 0, causal: bool = True) -> ImageEmbeddings:
    rows = np.random.default_rng(seed).standard_normal((N, tinygguf.N_EMBD)).astype(np.float32)
    is_mrope = "qwen2vl" in model.settings.path
    return ImageEmbeddings(rows, mrope if is_mrope else None, N_POSITIONS if is_mrope else N, causal)


def rows_of(ids, first=0, seq_id=0):
    return [BatchRow(t, first + i, seq_id, i == len(ids) - 1) for i, t in enumerate(ids)]


def logits_after(context: LlamaContext, ids, first, seq_id=0):
    return context.decode(rows_of(ids, first, seq_id))[-1].copy()


def test_an_image_of_the_embeddings_of_a_text_is_that_text(models, context):
    model = models["llama"]
    of_tokens, of_image = context(model), context(model)
    expected = logits_after(of_tokens, [*BEFORE, *AFTER], 0)
    embeddings = read_tensors(model.settings.path)["token_embd.weight"]
    of_image.decode(rows_of(BEFORE))
    part = ImageEmbeddings(embeddings[AFTER], None, len(AFTER), True)
    got = of_image.decode_image(0, len(BEFORE), part, output=True)[0]
    assert np.allclose(got, expected, atol=0.05)
    assert of_image.n_past(0) == of_tokens.n_past(0)
    assert np.allclose(
        logits_after(of_image, [90], of_image.n_past(0)), logits_after(of_tokens, [90], 30), atol=0.05
    )


def test_positions_after_an_image_follow_mrope(models, context):
    one = context(models["qwen2vl"])
    one.decode(rows_of(BEFORE))
    one.decode_image(0, len(BEFORE), image(one.model), output=False)
    assert one.n_past(0) == len(BEFORE) + N
    one.decode(rows_of(AFTER, one.n_past(0)))
    assert one.n_past(0) == len(BEFORE) + N + len(AFTER)
    highest = llama.llama_memory_seq_pos_max(one.memory, 0)
    assert highest == len(BEFORE) + N_POSITIONS + len(AFTER) - 1
    one.decode_image(0, one.n_past(0), image(one.model, 1), output=False)
    assert one.n_past(0) == len(BEFORE) + 2 * N + len(AFTER)


@pytest.mark.parametrize("kind", ["llama", "gemma3", "qwen2vl"])
def test_texts_with_images_are_cut_copied_and_saved(models, context, kind):
    def filled(one: LlamaContext, seq_id=0):
        one.decode(rows_of(BEFORE, 0, seq_id))
        one.decode_image(seq_id, len(BEFORE), image(one.model, causal=kind != "gemma3"), output=False)
        one.decode(rows_of(AFTER, len(BEFORE) + N, seq_id))
        return one

    n_image, n = len(BEFORE) + N, len(BEFORE) + N + len(AFTER)
    one = filled(context(models[kind], n_seq_max=3))
    expected = logits_after(one, [90], n)
    assert one.truncate(0, n) == n
    assert (logits_after(one, [90], n) == expected).all()
    assert one.truncate(0, n_image) == n_image
    logits_after(one, AFTER, n_image)
    assert (logits_after(one, [90], n) == expected).all()
    one.truncate(0, n)
    assert one.copy(0, 1, n) == n == one.n_past(1)
    assert (logits_after(one, [90], n, 1) == expected).all()
    one.truncate(1, n)
    saved = one.save(1)
    assert saved is not None
    assert one.truncate(0, 0) == one.truncate(1, 0) == 0
    logits_after(one, list(range(50, 61)), 0, 0)  # other cells come before
    assert one.load(2, saved) == n == one.n_past(2)
    assert (logits_after(one, [90], n, 2) == expected).all()
    if kind != "gemma3":  # whose windows have left the image
        assert one.truncate(2, n_image) == n_image
        logits_after(one, AFTER, n_image, 2)
        assert (logits_after(one, [90], n, 2) == expected).all()
        assert one.truncate(2, len(BEFORE)) == len(BEFORE)
    assert one.load(1, saved) == n  # a file may come from another process
    assert (logits_after(filled(context(models[kind])), [90], n) == expected).all()


def test_an_image_without_room_leaves_the_text_before_it(models, context):
    one = context(models["qwen2vl"], n_ctx=256)
    one.decode(rows_of([50] * 250))
    with pytest.raises(NoRoomError):
        one.decode_image(0, 250, image(one.model), output=False)
    assert one.n_past(0) == 250
    limits = np.zeros((one.n_ubatch + 1, tinygguf.N_EMBD), np.float32)
    with pytest.raises(LimitError, match="computed at once"):
        one.decode_image(0, 250, ImageEmbeddings(limits, None, len(limits), False), output=False)


class Ready:
    """An image that is encoded already."""

    def __init__(self, begin: int, part: ImageEmbeddings) -> None:
        self.begin, self.end, self.part = begin, begin + len(part.rows), part

    def encoded(self) -> ImageEmbeddings:
        return self.part


@pytest.mark.parametrize("kind", ["llama", "gemma3", "qwen2vl", "lfm2"])
def test_drafts_do_not_change_the_text_after_images(models, context, kind):
    """Two images, in one slot and in two, and a second turn that reuses them."""
    rng = random.Random(3)
    text = rng.choices(range(60, 90), k=12)

    def request(seed: int, temperature: float, model: LlamaModel, more=()) -> Request:
        ids, images = list(BEFORE), []
        for i in range(2):
            ids += placeholder_ids(bytes([seed, i]), N)
            images.append(Ready(len(ids) - N, image(model, 10 * seed + i)))
            ids += [*text, *text[:5]]
        params = SamplingParams(temperature=temperature, max_tokens=24, ignore_eos=True)
        return Request([*ids, *more], params, seed, images=images)

    def texts(drafts: bool, n_slots: int) -> list[list[int]]:
        target = context(models[kind], n_seq_max=n_slots)
        model = ModelDrafter(context(models["draft"], n_seq_max=n_slots), target.n_vocab)
        policy = Fixed([CopyDrafter(), model], 5) if drafts else Fixed([], 0)
        ticks = itertools.count()
        engine = Engine(target, policy, end_ids=set(), clock=lambda: next(ticks) * 1e-3, epsilon=0.05)
        got = []
        for work in (
            [request(1, 0.0, target.model)],
            [request(1, 0.0, target.model, text), request(2, 0.8, target.model)],
        ):
            running = [engine.submit(one) for one in work]
            while engine.busy:
                engine.step()
            got += running
        assert max(max(g.output) for g in got) < FIRST_PLACEHOLDER
        assert kind == "lfm2" or got[1].stats.n_reused >= len(BEFORE) + 2 * N
        return [g.output for g in got]

    assert texts(True, 1) == texts(False, 1)
    assert texts(True, 2) == texts(False, 2)
