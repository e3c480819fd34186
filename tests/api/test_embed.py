"""LLM.embed and LLM.score, and what models of the other kind say."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from specllama import LLM, AsyncLLM
from specllama.data import EMBEDDED_DRAFT
from specllama.errors import UsageError
from tests.support import tinyembedders


def test_vectors_of_texts_and_ids(tmp_path: Path) -> None:
    path = tinyembedders.nomic(tmp_path / "m.gguf")
    with LLM(path, n_threads=1) as llm:
        outputs = llm.embed(["the cat", {"prompt_token_ids": [2, 70, 3]}])
        assert [len(one.outputs.embedding) for one in outputs] == [48, 48]
        assert [one.prompt for one in outputs] == ["the cat", None]
        assert (outputs[0].n_prompt, outputs[1].prompt_token_ids) == (4, (2, 70, 3))
        assert sum(x * x for x in outputs[0].outputs.embedding) == pytest.approx(1, abs=1e-5)
        assert len(llm.embed("zip", dimensions=8)[0].outputs.embedding) == 8
        assert llm.embed([]) == []
        assert llm.info["embedding"]["pooling"] == "mean"
        with pytest.raises(UsageError, match="dimensions must be a whole number"):
            llm.embed("a", dimensions=0)
        with pytest.raises(UsageError, match="writes none"):
            llm.generate("a")
        with pytest.raises(UsageError, match="ranks nothing"):
            llm.score("a", ["b"])


def test_scores(tmp_path: Path) -> None:
    async def vectors() -> int:
        async with AsyncLLM(tinyembedders.bert(tmp_path / "a.gguf"), n_threads=1) as llm:
            return len((await llm.embed("zip"))[0].outputs.embedding)

    assert asyncio.run(vectors()) == 48
    ranker = tinyembedders.bert(tmp_path / "m.gguf", "rank")
    with LLM(ranker, speculative_model=EMBEDDED_DRAFT, n_threads=1) as llm:
        (note,) = llm.info["notes"]
        assert "speculative_model: of no effect on an embedding model" in str(note)
        scores = [one.outputs.score for one in llm.score("what is", ["the cat", "a dog"])]
        assert len(set(scores)) == 2
        with pytest.raises(UsageError, match="all texts"):
            llm.score("a", [1])  # type: ignore[list-item]


def test_a_model_that_writes_texts_makes_vectors_only_if_asked_to() -> None:
    with LLM(speculative_model=None, n_threads=1) as llm, pytest.raises(UsageError, match="makes no vectors"):
        llm.embed("zip")
    with LLM(speculative_model=None, n_threads=1, pooling="last") as llm:
        assert llm.embed("zip")[0].n_prompt > 0
