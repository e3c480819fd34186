"""What a context is made like for the kernels that it runs on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from specllama import llama
from specllama.core.ports import BatchRow
from specllama.data import EMBEDDED_DRAFT
from specllama.llama import Context, Model
from specllama.settings import ModelSettings
from tests import tinygguf


@pytest.fixture
def draft() -> Iterator[Model]:
    model = Model(ModelSettings(path=str(EMBEDDED_DRAFT), n_threads=1, n_gpu_layers=0))
    yield model
    model.close()


def info(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr(llama.llama, "llama_print_system_info", lambda: text)


def test_logits_are_reserved_up_to_a_cache_line(draft: Model) -> None:
    draft.settings = ModelSettings(path=str(EMBEDDED_DRAFT), n_threads=1, n_batch=16)
    context = Context(draft, 512, 1, 65)
    assert context.n_batch == 80
    rows = context.decode([BatchRow(5 + i, i, 0, True) for i in range(65)])
    assert rows.shape == (65, draft.n_vocab)
    context.close()


def test_rows_beside_others_are_dear_on_amx_alone(draft: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    info(monkeypatch, b"AVX2 = 1 | AMX_INT8 = 1 | ")
    context = Context(draft, 512)
    assert context.even_rows == 32
    context.close()
    info(monkeypatch, b"AVX2 = 1 | ")
    assert not draft.uses_amx


def test_nor_on_a_gpu_or_with_floats(draft: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    info(monkeypatch, b"AMX_INT8 = 1")
    draft.settings = ModelSettings(path=str(EMBEDDED_DRAFT), n_gpu_layers=99)
    assert not draft.uses_amx
    path = tinygguf.llama(tmp_path / "floats.gguf")
    floats = Model(ModelSettings(path=str(path), n_gpu_layers=0))
    assert not floats.uses_amx
    floats.close()
