"""Images in prompts: with drafts the text is that of plain decoding, and an image is evaluated once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.core.engine import Engine
from specllama.core.image_rows import (
    FIRST_PLACEHOLDER,
    ImageEmbeddings,
    image_runs,
    placeholder_ids,
    whole_runs,
    without_images,
)
from specllama.core.policy.fixed import Fixed
from specllama.core.policy.planner import Planner
from specllama.core.prefix.store import whole_chunks
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Request
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.history import HistoryDrafter
from specllama.drafters.model import ModelDrafter
from specllama.drafters.ngrams import RequestHistory
from specllama.errors import EngineError
from specllama.testing import TableContext
from tests.support.examples import examples
from tests.unit.core.test_engine_table import (
    MEMORIES,
    N_VOCAB,
    clock,
    engine_over,
    noisy_draft,
    params_strategy,
    run,
)


class TableImage:
    """An image whose embeddings are its ids, encoded when it is asked for the n-th time."""

    def __init__(self, begin: int, ids: list[int], waits: int = 0, fails: bool = False) -> None:
        self.begin, self.end, self.ids = begin, begin + len(ids), ids
        self.waits, self.fails, self.n_asked = waits, fails, 0

    def encoded(self) -> ImageEmbeddings | None:
        self.n_asked += 1
        if self.n_asked <= self.waits:
            return None
        if self.fails:
            raise EngineError("the encoder failed")
        values = np.array(self.ids) - FIRST_PLACEHOLDER
        rows = np.stack([values >> 16, values & 0xFFFF], axis=1).astype(np.float32)
        return ImageEmbeddings(rows, None, len(rows), True)


def prompt_of(*parts: list[int] | tuple[str, int], waits: int = 0) -> tuple[list[int], list[TableImage]]:
    """Ids and images of a prompt. parts: ids, or the name of an image and its number of rows."""
    ids: list[int] = []
    images = []
    for part in parts:
        if isinstance(part, tuple):
            name, n = part
            images.append(TableImage(len(ids), placeholder_ids(name.encode(), n), waits))
            ids += images[-1].ids
        else:
            ids += part
    return ids, images


def request_of(*parts, params: SamplingParams | None = None, seed: int = 1, **more) -> Request:
    ids, images = prompt_of(*parts, waits=more.pop("waits", 0))
    params = params or SamplingParams(max_tokens=20)
    return Request(ids, params, seed, images=images, **more)


def test_equal_images_have_equal_ids_and_others_differ_from_the_first_row():
    first, same, other = (placeholder_ids(key, 300) for key in (b"a", b"a", b"b"))
    assert first == same
    assert first[0] != other[0]
    assert min(first) >= FIRST_PLACEHOLDER
    assert max(first) < 2**31
    ids = [1, 2, *first, *other, 3, *first]
    assert image_runs(ids) == [(2, 302), (302, 602), (603, 903)]
    assert image_runs([1, 2, 3]) == image_runs([]) == []
    assert whole_runs(ids, 2) == 2
    assert whole_runs(ids, 301) == 2
    assert whole_runs(ids, 302) == 302
    assert whole_runs(ids, 303) == 302
    assert whole_runs(ids, len(ids)) == len(ids)
    assert whole_runs(ids, 0) == 0
    assert whole_runs(np.empty(0, np.int32), -1) == -1
    assert without_images(ids) == [1, 2, 3]
    assert without_images(ids, -1) == [1, 2, -1, -1, 3, -1]


def test_later_texts_copy_nothing_from_before_an_image():
    run_of_image = placeholder_ids(b"a", 5)
    kept = RequestHistory().keep("", [1, 2, *run_of_image, 5, 6, 7, 8], 9)
    assert list(kept) == [5, 6, 7, 8]


def test_chunks_begin_again_after_an_image():
    ids, _ = prompt_of(list(range(4, 14)), ("a", 7), list(range(4, 24)))
    assert whole_chunks(ids, 0, 10, 4) == 8
    assert whole_chunks(ids, 0, 12, 4) == 8  # not within the image
    assert whole_chunks(ids, 0, 17, 4) == 17
    assert whole_chunks(ids, 0, 24, 4) == 21
    assert whole_chunks(ids, 19, 24, 4) == 23


sizes = st.integers(1, 9)
texts = st.lists(st.integers(4, N_VOCAB - 1), min_size=1, max_size=9)


@settings(max_examples=examples(120), deadline=None)
@given(
    st.lists(st.one_of(texts, st.tuples(st.sampled_from("ab"), sizes)), min_size=1, max_size=5),
    params_strategy,
    st.integers(0, 2**32),
    st.integers(1, 12),
    st.sampled_from(MEMORIES),
    st.sampled_from(["model", "copy", "both", "adaptive"]),
    st.integers(0, 2),
)
def test_drafts_do_not_change_the_text_after_images(parts, params, seed, n_max, memory, kind, waits):
    def generated(policy, memory="full"):
        request = request_of(*parts, params=params, seed=seed, waits=waits)
        return run(engine_over(TableContext(N_VOCAB, 128, memory=memory), policy), request)[0]

    expected = generated(Fixed([], 0))
    model = ModelDrafter(TableContext(N_VOCAB, 128, rows=noisy_draft(seed % 1000)), N_VOCAB)
    history = RequestHistory()
    history.keep("", prompt_of(*parts)[0] + expected.output, 0)
    drafters = {"model": [model], "copy": [CopyDrafter(), HistoryDrafter(history)]}.get(
        kind, [CopyDrafter(), HistoryDrafter(history), model]
    )
    got = generated(Planner(drafters, clock()) if kind == "adaptive" else Fixed(drafters, n_max), memory)
    assert (got.output, got.finish_reason) == (expected.output, expected.finish_reason)


@pytest.mark.parametrize(("ids", "n_rows", "seed"), [([5, 30], 3, 5), ([], 2, 43)])
def test_an_image_that_a_rollback_lost_is_evaluated_as_one_again(ids, n_rows, seed):
    def generated(policy, memory="full"):
        params = SamplingParams(max_tokens=20, temperature=0)
        request = request_of(("a", n_rows), ids, params=params, seed=seed)
        return run(engine_over(TableContext(N_VOCAB, 128, memory=memory), policy), request)[0]

    model = ModelDrafter(TableContext(N_VOCAB, 128, rows=noisy_draft(seed)), N_VOCAB)
    assert generated(Fixed([model], 12), "window").output == generated(Fixed([], 0)).output


def test_a_draft_model_reads_the_text_around_an_image_and_samples_as_the_target():
    """The draft is the target on text; the target's rows depend on three ids, so after these they agree."""
    model = ModelDrafter(TableContext(N_VOCAB), N_VOCAB)
    params = SamplingParams(max_tokens=40, temperature=0.8, ignore_eos=True)
    request = request_of([5, 6], ("a", 9), [7, 8, 9, 10], params=params)
    got = run(engine_over(TableContext(N_VOCAB), Fixed([model], 4)), request)[0]
    assert got.stats.n_accept == got.stats.n_drafted > 20
    assert model.cells[0][:6] == [5, 6, 7, 8, 9, 10]


def test_penalties_leave_images_out():
    params = SamplingParams(max_tokens=20, repeat_penalty=1.5, repeat_last_n=6, temperature=0.7)
    rows = lambda ids: TableContext(N_VOCAB).rows([t for t in ids if t < N_VOCAB])  # noqa: E731
    outputs = [
        run(engine_over(TableContext(N_VOCAB, rows=rows), Fixed([], 0)), request)[0].output
        for request in (
            request_of([5, 6, 7], ("a", 8), [8], params=params),
            Request([5, 6, 7, 8], params, 1),
        )
    ]
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("memory", MEMORIES)
def test_an_image_is_evaluated_once_in_a_conversation(memory):
    engine = engine_over(TableContext(N_VOCAB, memory=memory), Fixed([], 0))
    start = [list(range(4, 30)), ("a", 12), [8, 9]]
    (first,) = run(engine, request_of(*start, params=SamplingParams(max_tokens=5, ignore_eos=True)))
    ids, images = prompt_of(*start, first.output[:-1], [5, 6, 7])
    (second,) = run(engine, Request(ids, SamplingParams(max_tokens=5), 1, images=images))
    assert second.stats.n_reused >= 40
    assert images[0].n_asked == 0
    fresh = run(
        engine_over(TableContext(N_VOCAB), Fixed([], 0)),
        Request(ids, SamplingParams(max_tokens=5), 1, images=prompt_of(*start)[1]),
    )
    assert second.output == fresh[0].output


def test_another_image_is_not_reused():
    engine = engine_over(TableContext(N_VOCAB), Fixed([], 0))
    text = list(range(4, 30))
    run(engine, request_of(text, ("a", 12), [8, 9]))
    (got,) = run(engine, request_of(text, ("b", 12), [8, 9]))
    assert got.stats.n_reused == len(text)
    (fresh,) = run(engine_over(TableContext(N_VOCAB), Fixed([], 0)), request_of(text, ("b", 12), [8, 9]))
    assert got.output == fresh.output


def test_other_texts_go_on_while_an_image_is_encoded():
    engine = Engine(TableContext(N_VOCAB, n_seq_max=2), Fixed([], 0), end_ids={3}, clock=clock())
    image = request_of([5], ("a", 4), [6], waits=10**6)
    waiting = engine.submit(image)
    assert not engine.scheduler.encoding
    engine.step()
    engine.step()
    assert engine.scheduler.encoding
    assert image.images[0].n_asked > 0
    other = engine.submit(Request([5, 6], SamplingParams(max_tokens=5, ignore_eos=True), 1))
    assert not engine.scheduler.encoding
    while other.finish_reason is None:
        engine.step()
    assert other.n_output == 5
    assert waiting.n_output == 0
    image.images[0].waits = 0
    while engine.busy:
        engine.step()
    assert waiting.n_output > 0


def test_what_cannot_be_encoded_ends_its_own_generation():
    engine = engine_over(TableContext(N_VOCAB, n_seq_max=2), Fixed([], 0))
    request = request_of([5], ("a", 4), [6])
    request.images[0].fails = True
    failed, other = run(engine, request, Request([5, 6], SamplingParams(max_tokens=5), 1))
    assert failed.finish_reason == "cancel"
    assert "the encoder failed" in str(failed.problem)
    assert other.n_output > 0
    assert other.problem is None


def test_answers_to_one_prompt_share_its_image():
    engine = engine_over(TableContext(N_VOCAB, n_seq_max=3), Fixed([CopyDrafter()], 4))
    ids, images = prompt_of([5, 6], ("a", 9), [7])
    params = SamplingParams(max_tokens=9, temperature=1.0)
    requests = [Request(ids, params, seed, images=images) for seed in (1, 2, 3)]
    got = run(engine, *requests)
    assert images[0].n_asked <= 4
    for g, seed in zip(got, (1, 2, 3), strict=True):
        alone = Request(ids, params, seed, images=prompt_of([5, 6], ("a", 9))[1])
        assert g.output == run(engine_over(TableContext(N_VOCAB), Fixed([], 0)), alone)[0].output


def test_a_text_that_gives_way_evaluates_its_image_again():
    """The context has no room for both; the younger one starts over."""
    engine = engine_over(TableContext(N_VOCAB, 64, 2), Fixed([], 0))
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    requests = [request_of([5, n], ("a", 12), [n], params=params) for n in (6, 7)]
    for g, n in zip(run(engine, *requests), (6, 7), strict=True):
        alone = request_of([5, n], ("a", 12), [n], params=params)
        assert g.output == run(engine_over(TableContext(N_VOCAB), Fixed([], 0)), alone)[0].output
