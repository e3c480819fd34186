"""Vectors and scores of tiny embedding models: equal to llama.cpp's, computed one text at a time as
llama-server does, however texts share decodes; and what the engine refuses.
"""

from __future__ import annotations

import base64
import ctypes
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specllama.client import protocol as m
from specllama.config.load import LoadSettings, ModelSettings
from specllama.config.store import Store
from specllama.llama.embedding import normalised
from specllama.llama.library import llama
from specllama.worker.embedding import EmbeddingEngine
from specllama.worker.engine_core import EngineCore
from tests.support import tinyembedders
from tests.support.front import Front

TEXTS = [
    "the cat sat on the mat",
    "a dog",
    "what is zip?",
    *(f"text {i}: the dog sat on document {i * 77} and on the cat" for i in range(30)),
    "zip " * 12,
]
KINDS: dict[str, Callable[[Path], Path]] = {
    "bert mean": lambda path: tinyembedders.bert(path),
    "bert cls": lambda path: tinyembedders.bert(path, "cls"),
    "bert rank": lambda path: tinyembedders.bert(path, "rank"),
    "nomic mean": lambda path: tinyembedders.nomic(path),
    "decoder last": lambda path: tinyembedders.decoder(path),
    "decoder mean": lambda path: tinyembedders.decoder(path, "mean"),
    "decoder rank": lambda path: tinyembedders.decoder(path, "rank"),
}


class EmbeddingFront(Front):
    """An engine core that has loaded an embedding model."""

    @property
    def embedder(self) -> EmbeddingEngine:
        assert isinstance(self.core.loaded_engine, EmbeddingEngine)
        return self.core.loaded_engine

    def answers(self, *requests: m.Embed) -> list[m.Message]:
        """All messages about requests that are sent at once."""
        self.messages.clear()
        for one in requests:
            self.core.handle(one)
        while self.core.busy:
            self.core.step()
        return list(self.messages)

    def vectors(self, texts: Sequence[str | list[int]], **more: Any) -> list[np.ndarray[Any, Any]]:
        """By text, shape (vectors, numbers)."""
        messages = self.answers(m.Embed(1, list(texts), **more))
        assert all(isinstance(one, m.Embedded) for one in messages), messages
        items = [item for one in messages if isinstance(one, m.Embedded) for item in one.items]
        assert [one.more for one in messages if isinstance(one, m.Embedded)][-1] is False
        return [rows(item) for item in sorted(items)]

    def failure(self, request: m.Embed) -> dict[str, Any]:
        (only,) = self.answers(request)
        assert isinstance(only, m.Failed)
        assert only.id == request.id
        return only.error

    def close(self) -> None:
        self.embedder.context.close()
        self.embedder.model.close()


def rows(item: m.TextVectors) -> np.ndarray[Any, Any]:
    return np.array([np.frombuffer(base64.b64decode(one), "<f4") for one in item.vectors])


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., EmbeddingFront]]:
    folder = tmp_path_factory.mktemp("embedders")
    fronts: dict[tuple[Any, ...], EmbeddingFront] = {}

    def make(kind: str, pooling: str = "auto", **more: Any) -> EmbeddingFront:
        key = (kind, pooling, *more.items())
        if key not in fronts:
            path = KINDS[kind](folder / f"{kind}.gguf")
            target = ModelSettings(path=str(path), n_threads=1, **more)
            settings = LoadSettings(target=target, pooling=pooling, drafters=())
            fronts[key] = EmbeddingFront(settings, Store(folder / "store"))
            assert isinstance(fronts[key].messages[-1], m.Ready), fronts[key].messages
        return fronts[key]

    yield make
    for front in fronts.values():
        front.close()


def reference(front: EmbeddingFront, ids: Sequence[int]) -> np.ndarray[Any, Any]:
    """The vector of a text alone, by llama.cpp's own functions."""
    model = front.embedder.model
    params = llama.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 1024
    params.embeddings, params.n_threads, params.n_threads_batch, params.n_seq_max = True, 1, 1, 1
    params.pooling_type = -1
    context = llama.llama_init_from_model(model.handle, params)
    batch = llama.llama_batch_init(len(ids), 0, 1)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
        batch.seq_id[i][0] = 0
    batch.n_tokens = len(ids)
    assert llama.llama_decode(context, batch) == 0
    n = front.embedder.context.n_values
    address = ctypes.cast(llama.llama_get_embeddings_seq(context, 0), ctypes.POINTER(ctypes.c_float))
    vector = np.array(address[:n], np.float64)
    llama.llama_batch_free(batch)
    llama.llama_free(context)
    return vector if front.embedder.info.ranks else vector / np.sqrt((vector * vector).sum())


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_those_of_llama_cpp(kind: str, opened: Callable[..., EmbeddingFront]) -> None:
    front = opened(kind)
    query = "what is" if "rank" in kind else None
    made = front.vectors(TEXTS, query=query)
    model = front.embedder.model
    for text, vector in zip(TEXTS, made, strict=True):
        if query is None:
            ids = model.tokenize(text, True, True)
        elif "decoder" in kind:
            filled = tinyembedders.RERANK.replace("{query}", query).replace("{document}", text)
            ids = model.tokenize(filled, False, True)
        else:
            first, second = (model.tokenize(one, False, False) for one in (query, text))
            ids = [2, *first, 3, *second]  # without an end, which WordPiece vocabularies do not add
        assert np.abs(vector[0] - reference(front, ids)).max() < 1e-5


def test_a_long_text_is_computed_in_parts_where_tokens_see_earlier_ones_only(
    opened: Callable[..., EmbeddingFront],
) -> None:
    front = opened("decoder last", n_ubatch=32)
    assert front.embedder.context.n_rows == 64
    text = "zip " * 150
    ids = front.embedder.model.tokenize(text, True, True)
    assert len(ids) > 300
    (vector,) = front.vectors([text])
    assert np.abs(vector[0] - reference(front, ids)).max() < 1e-5


def test_ids_and_texts_are_the_same(opened: Callable[..., EmbeddingFront]) -> None:
    front = opened("bert mean")
    ids = front.embedder.model.tokenize(TEXTS[0], True, True)
    by_text, by_ids = front.vectors([TEXTS[0], ids])
    assert np.abs(by_text - by_ids).max() < 1e-6


def test_texts_of_all_requests_share_decodes(opened: Callable[..., EmbeddingFront]) -> None:
    front = opened("nomic mean")
    messages = front.answers(
        m.Embed(1, ["a cat"] * 200), m.Embed(2, ["a dog"]), m.Embed(3, ["zip", "the mat"])
    )
    ends = [one.id for one in messages if isinstance(one, m.Embedded) and not one.more]
    assert ends == [2, 3, 1]
    assert len([one for one in messages if isinstance(one, m.Embedded) and one.id == 1]) < 8


def test_a_cancelled_request_is_computed_no_further(opened: Callable[..., EmbeddingFront]) -> None:
    front = opened("nomic mean")
    front.messages.clear()
    front.core.handle(m.Embed(1, ["a cat"] * 200))
    front.core.step()
    front.core.handle(m.Cancel(1))
    assert not front.core.busy
    assert len(front.messages) == 1


def test_fewer_numbers_have_the_length_one_too(opened: Callable[..., EmbeddingFront]) -> None:
    front = opened("nomic mean")
    (whole,), (short,) = front.vectors(["a cat"]), front.vectors(["a cat"], n_values=8)
    assert short.shape == (1, 8)
    assert np.linalg.norm(short) == pytest.approx(1, abs=1e-6)
    assert np.abs(short - whole[:, :8] / np.linalg.norm(whole[:, :8])).max() < 1e-6
    assert "1 to 48 numbers, not 49" in front.failure(m.Embed(1, ["a"], n_values=49))["message"]
    refused = opened("bert mean").failure(m.Embed(1, ["a"], n_values=8))
    assert "makes vectors of 48 numbers, not 8" in refused["message"]


def test_without_pooling_each_token_has_a_vector(opened: Callable[..., EmbeddingFront]) -> None:
    front = opened("bert mean", "none")
    (vectors,) = front.vectors(["the cat"], pooled=False)
    assert vectors.shape == (4, 48)
    (pooled,) = opened("bert mean").vectors(["the cat"], norm=-1)
    assert np.abs(vectors.mean(axis=0) - pooled[0]).max() < 1e-5
    assert "a vector of each token" in front.failure(m.Embed(1, ["a"]))["message"]


def test_numbers_can_be_written_as_text(opened: Callable[..., EmbeddingFront]) -> None:
    front = opened("bert mean")
    (answer,) = front.answers(m.Embed(1, ["the cat"], as_text=True))
    assert isinstance(answer, m.Embedded)
    numbers = np.array([float(number) for number in answer.items[0].vectors[0].split(",")], np.float32)
    assert (numbers == front.vectors(["the cat"])[0][0]).all()


def test_what_is_refused(opened: Callable[..., EmbeddingFront]) -> None:
    bert, ranker = opened("bert mean"), opened("bert rank")
    long = bert.failure(m.Embed(7, ["a", "the cat " * 40]))
    assert (long["kind"], long["details"]["index"]) == ("ContextLengthError", 1)
    assert "text 2 of 2 has 82 tokens, and this model reads 64 at most" in long["message"]
    (cut,) = bert.vectors(["the cat " * 40], truncate=True)
    kept = bert.embedder.model.tokenize("the cat " * 31, False, False)
    assert np.abs(cut - bert.vectors([[2, *kept, 3]])[0]).max() < 1e-5
    assert "not in the vocabulary" in bert.failure(m.Embed(1, [[2, 5000]]))["message"]
    assert "not in the vocabulary" in bert.failure(m.Embed(1, [[-1]]))["message"]
    assert "text 1 of 1 is empty" in bert.failure(m.Embed(1, [[]]))["message"]
    assert bert.failure(m.Embed(1, []))["message"] == "there is no text"
    assert "ranks nothing" in bert.failure(m.Embed(1, ["a"], "b"))["message"]
    too_long = ranker.failure(m.Embed(1, ["a"], "zip " * 80))["message"]
    assert "text 1 of 1 with the query has" in too_long
    assert "makes no vectors" in ranker.failure(m.Embed(1, ["a"]))["message"]
    generate = m.Generate(4, m.TextInput("a"))
    bert.messages.clear()
    bert.core.handle(generate)
    assert "makes vectors of texts, and writes none" in str(bert.messages[-1])


def test_a_failure_leaves_the_others_alone(opened: Callable[..., EmbeddingFront]) -> None:
    front = opened("bert mean")
    messages = front.answers(m.Embed(1, ["a", "zip " * 80]), m.Embed(2, ["the cat"]))
    assert [type(one) for one in messages if getattr(one, "id", 0) == 1] == [m.Failed]
    assert [type(one) for one in messages if getattr(one, "id", 0) == 2] == [m.Embedded]


def test_numbers_that_are_not_finite_are_an_error(
    opened: Callable[..., EmbeddingFront], monkeypatch: pytest.MonkeyPatch
) -> None:
    front = opened("bert mean")
    bad = [np.full((1, 48), np.nan, np.float32)]
    monkeypatch.setattr(type(front.embedder.context), "embed", lambda _, texts: bad * len(texts))
    assert "not finite for text 1" in front.failure(m.Embed(1, ["a"]))["message"]


def test_queries_about_texts_are_answered(opened: Callable[..., EmbeddingFront]) -> None:
    front = opened("bert mean")
    front.messages.clear()
    front.core.handle(m.Tokenize(1, "the cat", add_special=True, with_pieces=True))
    tokenized = front.messages[-1]
    assert isinstance(tokenized, m.Tokenized)
    assert (tokenized.ids[0], tokenized.ids[-1], len(tokenized.pieces)) == (2, 3, 4)
    front.core.handle(m.Detokenize(2, tokenized.ids))
    front.core.handle(m.GetSlots(3))
    assert isinstance(front.messages[-2], m.QueriedText)
    assert isinstance(front.messages[-1], m.Slots)


@pytest.mark.parametrize(("norm", "expected"), [(2, [0.6, -0.8]), (-1, [3, -4]), (1, [3 / 7, -4 / 7])])
def test_norms(norm: int, expected: list[float]) -> None:
    made = normalised(np.array([[3, -4]], np.float32), norm)
    assert made[0] == pytest.approx(expected)
    assert normalised(np.array([[3, -4]], np.float32), 0)[0] == pytest.approx([24570, -32760])
    assert not normalised(np.zeros((1, 2), np.float32), 2).any()


def test_a_model_is_loaded_as_its_header_says_where_both_are_welcome(tmp_path: Path) -> None:
    path = tinyembedders.decoder(tmp_path / "d.gguf")
    messages: list[m.Message] = []
    settings = LoadSettings(target=ModelSettings(path=str(path), n_threads=1))
    core = EngineCore(messages.append, Store(tmp_path))
    core.handle(m.Load(settings, may_embed=True))
    assert isinstance(messages[-1], m.Ready)
    assert messages[-1].info.embedding is not None
