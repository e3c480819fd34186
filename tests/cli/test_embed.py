"""`specllama embed`: vectors and scores on stdout, texts from arguments, files and standard input."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import tinyembedders
from tests.support.command import Command, assert_error


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embedders")
    tinyembedders.nomic(folder / "embedder.gguf")
    tinyembedders.bert(folder / "ranker.gguf", "rank")
    return folder


def test_texts_from_everywhere_have_their_vectors(command: Command, models: Path) -> None:
    model = ("-m", str(models / "embedder.gguf"), "-t", "1")
    (command.home / "lines.txt").write_text("the cat\na dog\n", "utf-8")
    words = command("embed", *model, "the cat", "a dog", "--json")
    report = words.json
    assert (report["model"], report["pooling"], report["n_tokens"]) == ("nomic-embed-text-v1.5", "mean", 8)
    assert [item["index"] for item in report["results"]] == [0, 1]
    assert len(report["results"][0]["embedding"]) == 48
    assert command("embed", *model, "-f", "lines.txt", "--json").json == report
    shown = command("embed", *model, "--dimensions", "4", stdin=b"the cat\na dog\n")
    assert shown.code == 0, shown.err
    lines = [[float(number) for number in line.split()] for line in shown.out.splitlines()]
    assert [len(line) for line in lines] == [4, 4]
    assert sum(x * x for x in lines[0]) == pytest.approx(1, abs=1e-5)


def test_documents_are_ranked(command: Command, models: Path) -> None:
    ranker = ("-m", str(models / "ranker.gguf"), "-t", "1", "--query", "what is", "the cat", "a dog", "zip")
    scores = [float(line.split()[0]) for line in command("embed", *ranker).out.splitlines()]
    assert scores == sorted(scores, reverse=True)
    report = command("embed", *ranker, "--json").json
    assert report["query"] == "what is"
    assert [item["text"] for item in report["results"]] == ["the cat", "a dog", "zip"]
    by_score = sorted((item["score"] for item in report["results"]), reverse=True)
    assert by_score == pytest.approx(scores, abs=1e-6)


def test_what_is_refused(command: Command, models: Path) -> None:
    embedder = ("-m", str(models / "embedder.gguf"), "-t", "1")
    assert_error(command("embed", "a"), 2, "-m needs a model")
    assert_error(command("embed", "a", "-m", "no.gguf"), 3, "-m: there is no file no.gguf")
    assert_error(command("embed", b"a\xff", *embedder), 2, "TEXT: line 1 is not UTF-8 (byte 1 is 0xff)")
    assert_error(command("embed", *embedder), 2, "there is no text")
    for number in ("-1", "0"):
        assert_error(command("embed", *embedder, "a", "--dimensions", number), 2, "--dimensions")
    assert_error(command("embed", *embedder, "a", "--query", "b"), 2, "ranks nothing", "a reranker does")
    ranker = command("embed", "-m", str(models / "ranker.gguf"), "-t", "1", "a")
    assert_error(ranker, 2, "--query is missing: this model ranks texts for it")
    assert_error(command("embed", "-m", "pydoc", "a"), 2, "is no embedding model")
    assert_error(command("embed", *embedder, "zip " * 600), 2, "602 tokens", "512 at most")
    assert command("embed", *embedder, "zip " * 600, "--truncate").code == 0


def test_what_an_embedding_model_makes_and_takes_is_shown(command: Command, models: Path) -> None:
    for name, makes in (("embedder", "vectors of texts"), ("ranker", "scores of documents")):
        shown = command("models", "show", str(models / f"{name}.gguf")).out
        assert f"makes     {makes}" in shown
        assert re.search(r"^memory +takes \S+ \w+ with \d+ tokens of context", shown, re.MULTILINE)
        assert not re.search("^(head|template|drafts) ", shown, re.MULTILINE)
    assert command("models", "show", str(models / "embedder.gguf"), "--json").json["fits"] is True
