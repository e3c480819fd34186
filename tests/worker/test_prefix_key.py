"""A model that is loaded with other settings has other prefix states."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specllama.config.load import LoadSettings, ModelSettings
from specllama.data import EMBEDDED_TARGET
from specllama.gguf.header import read_model
from specllama.llama.context import LlamaContext
from specllama.llama.model import LlamaModel
from specllama.worker.prefix_persister import model_files, prefix_key

PLAIN = ModelSettings(path=str(EMBEDDED_TARGET), n_threads=1, n_ctx=512)


def key(settings: ModelSettings, load: dict[str, Any] | None = None, n_ctx: int = 512) -> str:
    """The key of a model that is loaded now."""
    header = read_model(settings.path)
    files = model_files(header, settings)
    model = LlamaModel(settings)
    context = LlamaContext(model, n_ctx)
    try:
        return prefix_key(header, context, files, LoadSettings(target=settings, **(load or {})))
    finally:
        context.close()
        model.close()


@pytest.fixture(scope="module")
def plain() -> str:
    return key(PLAIN)


def test_the_same_load_has_the_same_key(plain: str) -> None:
    assert key(PLAIN) == plain
    assert key(PLAIN, n_ctx=256) == plain, "the size of the context changes no state of this model"
    assert key(PLAIN, {"n_slots": 3, "draft_max": 4, "memory": False}) == plain


@pytest.mark.parametrize(
    "changes",
    [
        {"n_threads": 2},
        {"n_threads_batch": 2},
        {"n_ubatch": 64},
        {"n_batch": 256},
        {"cache_type_k": "q8_0", "flash_attn": "on"},
        {"cache_type_v": "f32"},
        {"flash_attn": "off"},
        {"swa_full": False},
        {"rope_freq_base": 20_000.0},
        {"rope_scaling": "yarn", "rope_scale": 2.0},
        {"yarn_orig_ctx": 300},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_other_settings_have_another_key(plain: str, changes: dict[str, Any]) -> None:
    assert key(replace(PLAIN, **changes)) not in ("", plain)


@pytest.mark.parametrize("load", [{"exact": True}, {"exact_width": 8}])
def test_exact_decodes_have_another_key(plain: str, load: dict[str, Any]) -> None:
    assert key(PLAIN, load) not in ("", plain)


def test_variables_that_llama_cpp_reads_are_in_the_key(plain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGML_CUDA_FORCE_MMQ", "1")
    assert key(PLAIN) not in ("", plain)


def test_a_model_that_is_replaced_while_it_is_loaded_keeps_nothing(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    shutil.copy2(EMBEDDED_TARGET, path)
    settings = replace(PLAIN, path=str(path))
    header = read_model(path)
    files = model_files(header, settings)
    model = LlamaModel(settings)
    context = LlamaContext(model, 512)
    try:
        load = LoadSettings(target=settings)
        before = prefix_key(header, context, files, load)
        assert before
        new = tmp_path / "new"
        shutil.copy2(EMBEDDED_TARGET, new)
        new.replace(path)
        assert prefix_key(header, context, files, load) == ""
        os.utime(path, (1e9, 1e9))
        assert key(settings) not in ("", before), "another file, as far as one can see"
    finally:
        context.close()
        model.close()
