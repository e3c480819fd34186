"""A server with an embedding model next to the pair, and one with a reranker alone: the routes of all APIs,
what RAG front-ends send, and what is refused.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support import tinyembedders
from tests.support.command import Command, assert_error
from tests.support.serving import Reply, Server

TEXT = "the cat sat on the mat"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The embedded pair, and an encoder called embedder."""
    home = tmp_path_factory.mktemp("both")
    embedder = tinyembedders.nomic(home / "embedder.gguf")
    with Server(home, "-m", "pydoc", "-t", "1", "--embeddings", str(embedder)) as one:
        yield one
        assert not any("unexpected" in line or "Traceback" in line for line in one.lines)


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("ranker")
    model = tinyembedders.bert(home / "ranker.gguf", "rank")
    alone = {"SPECLLAMA_MODEL": None}
    with Server(home, "-t", "1", "--embeddings", str(model), env=alone) as one:
        yield one


def vectors(reply: Reply) -> list[list[float]]:
    assert reply.status == 200, reply.body
    return [item["embedding"] for item in reply.json["data"]]


def test_the_forms_of_all_apis_have_the_same_vector(both: Server) -> None:
    (vector,) = vectors(both.post("/v1/embeddings", {"input": TEXT, "model": "embedder"}))
    assert len(vector) == 48
    assert sum(x * x for x in vector) == pytest.approx(1, abs=1e-5)
    asked = {"input": [TEXT, "a dog"], "encoding_format": "base64", "model": "text-embedding-3-small"}
    reply = both.post("/v1/embeddings", asked).json
    packed = base64.b64decode(reply["data"][0]["embedding"])
    assert list(struct.unpack("<48f", packed)) == pytest.approx(vector, abs=1e-6)
    assert (reply["object"], reply["model"]) == ("list", "embedder")
    assert reply["usage"]["prompt_tokens"] == reply["usage"]["total_tokens"] == 12
    own = both.post("/embeddings", {"content": TEXT}).json
    assert (own[0]["index"], own[0]["embedding"][0]) == (0, pytest.approx(vector, abs=1e-6))
    ollama = both.post("/api/embed", {"model": "embedder:latest", "input": [TEXT]}).json
    assert ollama["embeddings"][0] == pytest.approx(vector, abs=1e-6)
    assert ollama["prompt_eval_count"] == 8
    older = both.post("/api/embeddings", {"model": "embedder", "prompt": TEXT}).json["embedding"]
    length = sum(x * x for x in older) ** 0.5
    assert [x / length for x in older] == pytest.approx(vector, abs=1e-5)


def test_chat_and_vectors_are_served_side_by_side(both: Server) -> None:
    assert both.chat(max_tokens=2).status == 200
    listed = both.get("/v1/models").json["data"]
    assert [one["id"] for one in listed][:2] == ["pydoc-target", "embedder"]
    assert both.post("/api/show", {"model": "embedder"}).json["capabilities"] == ["embedding"]
    wrong = both.chat(model="embedder", max_tokens=2)
    assert (wrong.status, wrong.error["type"]) == (400, "invalid_request_error")
    assert "writes no texts: ask for pydoc-target" in wrong.error["message"]
    other = both.post("/v1/embeddings", {"input": "a", "model": "pydoc-target"})
    assert other.status == 400
    assert "makes no vectors: ask for embedder" in other.error["message"]


def test_vectors_count_in_the_metrics(both: Server) -> None:
    def counted() -> list[float]:
        lines = both.get("/metrics?model=embedder").body.decode().splitlines()
        names = ("specllama_embedded_texts_total", "specllama_embedded_tokens_total")
        return [float(line.split()[-1]) for name in names for line in lines if line.startswith(name)]

    before = counted()
    both.post("/v1/embeddings", {"input": [TEXT, "a dog"]})
    assert [n - m for n, m in zip(counted(), before, strict=True)] == [2, 12]


def test_an_embedder_next_to_a_chat_model_can_be_unloaded(both: Server) -> None:
    assert both.post("/v1/embeddings", {"input": "a"}).status == 200
    assert both.post("/models/unload", {"model": "embedder"}).status == 200
    both.until(lambda: both.get("/v1/models/embedder").json["status"]["value"] == "unloaded")
    kept = both.post("/models/unload", {"model": "pydoc-target"})
    assert "holds pydoc-target alone" in kept.error["message"]
    assert both.get("/v1/models/embedder").json["meta"]["embeds"]
    assert "embeds" not in both.get("/v1/models/pydoc-target").json["meta"]
    assert both.get("/api/v0/models/embedder").json["type"] == "embeddings"


def test_what_open_webui_sends_for_a_document(both: Server) -> None:
    """A request for each piece, many at once (retrieval/utils.py, generate_openai_batch_embeddings)."""
    pieces = [f"text {i} of the document" for i in range(64)]

    def ask(text: str) -> list[list[float]]:
        body = {"input": [text], "model": "embedder"}
        return vectors(both.post("/v1/embeddings", body, headers={"Authorization": "Bearer x"}))

    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(ask, pieces))
    assert len({tuple(vector) for (vector,) in made}) == 64
    assert vectors(both.post("/v1/embeddings", {"input": pieces})) == [
        pytest.approx(vector, abs=1e-5) for (vector,) in made
    ]


def test_what_langchain_sends(both: Server) -> None:
    """OpenAIEmbeddings: lists of token ids, in base64; OllamaEmbeddings: /api/embed with options."""
    ids = [[2, 66, 67, 3], [2, 70, 3]]
    reply = both.post("/v1/embeddings", {"input": ids, "model": "embedder", "encoding_format": "base64"})
    assert [len(base64.b64decode(vector)) for vector in vectors(reply)] == [192, 192]
    options = {"mirostat": 0, "num_ctx": 2048, "temperature": 0.8}
    asked = {"model": "embedder", "input": [TEXT, "zip"], "options": options, "keep_alive": 300}
    assert len(both.post("/api/embed", asked).json["embeddings"]) == 2


def test_what_the_registers_guide_sends(both: Server) -> None:
    """Open WebUI with its engine for vectors set to Ollama."""
    asked = {"input": ["the document", "a query"], "model": "embedder", "truncate": True}
    assert len(both.post("/api/embed", asked).json["embeddings"]) == 2


@pytest.mark.parametrize(
    ("body", "needle"),
    [
        ({}, "input: is missing"),
        ({"input": []}, "input: has no text"),
        ({"input": ["a"] * 2049}, "at most 2048 items, not 2049"),
        ({"input": ["a", 3]}, "input[1]"),
        ({"input": ["a", "zip " * 600]}, "text 2 of 2 has 602 tokens, and this model reads 512 at most"),
        ({"input": [2, 99_999]}, "not in the vocabulary of 97"),
        ({"input": [[]]}, "text 1 of 1 is empty"),
        ({"input": "a", "dimensions": 49}, "vectors of from 1 to 48 numbers, not 49"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
    ],
)
def test_requests_that_cannot_be_used(both: Server, body: dict[str, Any], needle: str) -> None:
    reply = both.post("/v1/embeddings", body)
    assert reply.status == 400
    assert needle in reply.error["message"]


def test_as_many_texts_as_there_may_be(both: Server) -> None:
    assert len(vectors(both.post("/v1/embeddings", {"input": ["a"] * 2048, "dimensions": 2}))) == 2048


def test_documents_are_ranked_in_the_shapes_of_three_apis(ranker: Server) -> None:
    documents = ["the cat", "a dog", "zip"]
    asked = {"query": "what is", "documents": documents}
    reply = ranker.post("/v1/rerank", asked | {"top_n": 2, "return_documents": True})
    assert reply.status == 200
    results = reply.json["results"]
    scores = [one["relevance_score"] for one in results]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 2
    assert all(one["document"]["text"] == documents[one["index"]] for one in results)
    assert reply.json["usage"]["total_tokens"] > 10
    sglang = ranker.post("/v1/rerank", asked | {"rid": "1"}).json
    assert [(one["index"], one["document"]) for one in sglang][:2] == [
        (one["index"], one["document"]["text"]) for one in results
    ]
    tei = ranker.post("/rerank", {"query": "what is", "texts": documents, "return_text": True}).json
    assert [one["score"] for one in tei] == [one["score"] for one in sglang]
    assert tei[0]["text"] == documents[tei[0]["index"]]
    for path in ("/reranking", "/v1/reranking"):
        assert ranker.post(path, asked).json["results"][:2] == [
            {name: one[name] for name in ("index", "relevance_score")} for one in results
        ]
    missing = ranker.post("/v1/rerank", {"query": "a", "documents": []})
    assert (missing.status, missing.error["message"]) == (
        400,
        "documents must be a list of at least one text",
    )


def test_a_server_of_a_reranker_alone(ranker: Server) -> None:
    assert "makes no vectors" in ranker.post("/v1/embeddings", {"input": "a"}).error["message"]
    assert "serve with -m MODEL" in ranker.chat(max_tokens=1).error["message"]
    assert [one["id"] for one in ranker.get("/v1/models").json["data"]] == ["ranker"]
    assert ranker.post("/tokenize", {"content": "the cat"}).json["tokens"]
    assert ranker.get("/props").status == ranker.get("/slots").status == 200


def test_models_that_cannot_be_served_so(command: Command, tmp_path: Path) -> None:
    assert_error(
        command("serve", "--embeddings", "pydoc"),
        2,
        "is no embedding model",
        "--pooling last or --pooling mean",
    )
    path = str(tinyembedders.bert(tmp_path / "pydoc.gguf"))
    ranks = command("serve", "--embeddings", path, "--pooling", "rank")
    assert_error(ranks, 2, "--pooling: ", "has no part that ranks")
    taken = command("serve", "-m", "pydoc", "--embeddings", path, "--alias", "pydoc")
    assert_error(taken, 2, "--embeddings and -m are both called pydoc")
    refused = command("serve", "-m", path)
    assert_error(refused, 6, "do not generate text", "serve --embeddings FILE")


def test_a_pooling_without_an_embedding_model_has_no_effect(tmp_path: Path) -> None:
    with Server(tmp_path, "-t", "1", "-md", "none", "--pooling", "mean") as one:
        assert one.said("note: --pooling: of no effect without --embeddings") == 1
