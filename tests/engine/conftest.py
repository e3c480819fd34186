"""Real models for the engine tests: the embedded pair, and tiny random ones of every memory kind.

One thread each: two threads synchronise at every operation, which is slow on a busy machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from specllama.config.load import ModelSettings
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.llama.context import LlamaContext
from specllama.llama.model import LlamaModel
from tests.support import tinygguf
from tests.support.front import front, fronts

__all__ = ["front", "fronts"]
TINY = {
    "llama": tinygguf.llama,
    "gemma3": tinygguf.gemma3,
    "mamba": tinygguf.mamba,
    "jamba": tinygguf.jamba,
    "lfm2": tinygguf.lfm2,
}


@pytest.fixture(scope="session")
def target() -> Iterator[LlamaModel]:
    model = LlamaModel(ModelSettings(path=str(EMBEDDED_TARGET), n_threads=1))
    yield model
    model.close()


@pytest.fixture(scope="session")
def draft() -> Iterator[LlamaModel]:
    model = LlamaModel(ModelSettings(path=str(EMBEDDED_DRAFT), n_threads=1))
    yield model
    model.close()


@pytest.fixture
def context() -> Iterator[Callable[..., LlamaContext]]:
    """Makes contexts, and closes them at the end."""
    contexts: list[LlamaContext] = []

    def make(model: LlamaModel, n_ctx: int = 512, n_seq_max: int = 1, n_rs_seq: int = 0) -> LlamaContext:
        contexts.append(LlamaContext(model, n_ctx, n_seq_max, n_rs_seq=n_rs_seq))
        return contexts[-1]

    yield make
    for opened in contexts:
        opened.close()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., LlamaModel]]:
    """Loads a tiny random model by kind, in single precision. noise: see `tests.support.tinygguf`."""
    directory, models = tmp_path_factory.mktemp("tiny"), {}

    def load(kind: str, noise: float = 0.0, **settings: object) -> LlamaModel:
        key = (kind, noise, *sorted(settings.items()))
        if key not in models:
            path = directory / f"{kind}-{noise}.gguf"
            TINY[kind](path, noise=noise)
            exact = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": "off", "n_threads": 1}
            models[key] = LlamaModel(ModelSettings(path=str(path), **(exact | settings)))
        return models[key]

    yield load
    for model in models.values():
        model.close()
