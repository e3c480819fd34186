"""What headers say of embedding models, and which are refused."""

from __future__ import annotations

from typing import Any

import pytest

from specllama.errors import GGUFError, UsageError
from specllama.gguf.architectures import computed_at_once, file_pooling, is_embedder, may_shorten, pooling_of
from specllama.gguf.header import Header
from specllama.gguf.parse import TensorInfo
from specllama.heads.check import check_embedder


def header(architecture: str, tensors: tuple[str, ...] = (), **keys: Any) -> Header:
    name = keys.pop("name", "m")
    meta = {"general.architecture": architecture, "general.name": name}
    meta |= {f"{architecture}.{key.replace('__', '.')}": value for key, value in keys.items()}
    return Header("m.gguf", meta, tuple(TensorInfo(one, (1,), "F32", 4, 0) for one in tensors), 0)


@pytest.mark.parametrize(
    ("made", "embeds", "pooling", "at_once"),
    [
        (header("bert", pooling_type=2), True, "cls", True),
        (header("bert"), True, "none", True),
        (header("bert", ("cls.weight", "cls.output.weight")), True, "rank", True),
        (header("qwen3", pooling_type=3), True, "last", False),
        (header("qwen3", pooling_type=1), True, "mean", True),
        (header("llama", pooling_type=3, attention__causal=False), True, "last", True),
        (header("llama", pooling_type=0), False, "none", True),
        (header("llama"), False, "none", True),
    ],
)
def test_kinds_of_models(made: Header, embeds: bool, pooling: str, at_once: bool) -> None:
    assert is_embedder(made) is embeds
    assert pooling_of(made, "auto") == pooling
    assert computed_at_once(made, pooling) is at_once
    assert pooling_of(made, "last") == "last"


def test_an_unknown_pooling() -> None:
    with pytest.raises(GGUFError, match="9 is no pooling"):
        file_pooling(header("bert", pooling_type=9))


@pytest.mark.parametrize(
    ("name", "shortens"),
    [
        ("nomic-embed-text-v1.5", True),
        ("Nomic Embed Text V1.5", True),
        ("Qwen3 Embedding 0.6B", True),
        ("Embeddinggemma 300M", True),
        ("nomic-embed-text-v1", False),
        ("Bge M3", False),
        ("all-MiniLM-L6-v2", False),
    ],
)
def test_models_whose_vectors_may_be_shortened(name: str, shortens: bool) -> None:
    assert may_shorten(header("bert", name=name)) is shortens


def test_models_that_are_refused() -> None:
    with pytest.raises(UsageError, match="is no embedding model"):
        check_embedder(header("llama"))
    with pytest.raises(UsageError, match="no reranker"):
        check_embedder(header("qwen3", pooling_type=3), "rank")
    with pytest.raises(UsageError, match="no reranker"):
        check_embedder(header("bert", pooling_type=4))
    with pytest.raises(GGUFError, match="projector"):
        check_embedder(header("clip"))
    with pytest.raises(GGUFError, match="token by token"):
        check_embedder(header("dream"), "mean")
