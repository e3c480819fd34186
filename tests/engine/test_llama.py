"""Properties of models and contexts that depend on the kernels of the installed llama.cpp."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from specllama.config.load import ModelSettings
from specllama.core.interfaces import BatchRow
from specllama.data import EMBEDDED_DRAFT
from specllama.gguf.header import read_model
from specllama.llama import kernels, library, model
from specllama.llama.context import LlamaContext
from specllama.llama.kernels import Kernels
from specllama.llama.model import LlamaModel
from specllama.worker.draft import ids_of, timed_rows
from tests.support import tinygguf


@pytest.fixture
def draft() -> Iterator[LlamaModel]:
    model = LlamaModel(ModelSettings(path=str(EMBEDDED_DRAFT), n_threads=1, n_gpu_layers=0))
    yield model
    model.close()


def info(monkeypatch: pytest.MonkeyPatch, text: bytes, level: str = "", amx: bool = False) -> None:
    monkeypatch.setattr(model, "KERNELS", Kernels(level, "", "", amx))
    monkeypatch.setattr(library.llama, "llama_print_system_info", lambda: text)


@dataclass
class Installed:
    """The part of a distribution that `compiled` reads."""

    files: list[metadata.PackagePath] | None


def recorded(name: str, value: str | None) -> metadata.PackagePath:
    file = metadata.PackagePath(name)
    file.hash = metadata.FileHash(f"sha256={value}") if value else None
    return file


def test_compilations_are_distinguished(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the recorded hashes of llama.cpp's libraries or, without any, by the files."""
    compiled = library.compiled.__wrapped__
    here = compiled()
    assert here == library.compiled() == compiled()
    assert len(here) == 16
    assert int(here, 16)
    identifiers = []
    for library_hash, other in (("a", "x"), ("b", "x"), ("a", "y")):
        files = [
            recorded("llama_cpp/lib/libggml-cpu.so", library_hash),
            recorded("llama_cpp/llama.py", other),
        ]
        monkeypatch.setattr(library.metadata, "distribution", lambda _, files=files: Installed(files))
        identifiers.append(compiled())
    assert identifiers[0] != identifiers[1]
    assert identifiers[0] == identifiers[2], "only libraries count"
    monkeypatch.setattr(library, "_lib", ctypes.CDLL(None))
    for files in (None, [recorded("llama_cpp/lib/libggml-cpu.so", None)]):
        monkeypatch.setattr(library.metadata, "distribution", lambda _, files=files: Installed(files))
        monkeypatch.setattr(library._lib, "_name", str(tmp_path / "libllama.so"), raising=False)
        empty = compiled()
        (tmp_path / "libggml-cpu.so").write_bytes(b"1")
        first = compiled()
        (tmp_path / "libggml-cpu.so").write_bytes(b"22")
        assert len({empty, first, compiled()}) == 3
        (tmp_path / "libggml-cpu.so").unlink()
    monkeypatch.setattr(library._lib, "_name", str(tmp_path / "nowhere" / "libllama.so"), raising=False)
    assert compiled(), "a missing library is not an error"


def test_logits_are_reserved_up_to_a_cache_line(draft: LlamaModel) -> None:
    draft.settings = ModelSettings(path=str(EMBEDDED_DRAFT), n_threads=1, n_batch=16)
    context = LlamaContext(draft, 512, 1, 65)
    assert context.n_batch == 80
    rows = context.decode([BatchRow(5 + i, i, 0, True) for i in range(65)])
    assert rows.shape == (65, draft.n_vocab)
    context.close()


def test_a_draft_without_its_vocabulary_is_the_same(draft: LlamaModel) -> None:
    settings = ModelSettings(path=str(EMBEDDED_DRAFT), n_threads=1, n_gpu_layers=0)
    ids_only = ids_of(read_model(EMBEDDED_DRAFT))
    rows = [BatchRow(5 + i, i, 0, True) for i in range(8)]
    with closing(LlamaModel(settings, ids_only=ids_only)) as other:
        assert (other.n_vocab, other.n_layer, other.n_ctx_train) == (
            (draft.n_vocab, draft.n_layer, draft.n_ctx_train)
        )
        logits = []
        for model in (draft, other):
            with closing(LlamaContext(model, 512)) as context:
                logits.append(context.decode(rows).copy())
    assert np.array_equal(*logits)


def test_timed_rows_have_different_tokens(draft: LlamaModel) -> None:
    """Those of one token reach the same experts of a mixture."""
    with closing(LlamaContext(draft, 512)) as context:
        rows = timed_rows(context, 32, 1)
        assert len({row.token for row in rows}) > 16
        assert [row.pos for row in rows] == list(range(32))
        assert [row.output for row in rows] == [False] * 31 + [True]
        assert len(context.decode(rows)) == 1


def test_row_multiple_is_32_with_amx_only(draft: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    info(monkeypatch, b"AVX2 = 1 | AMX_INT8 = 1 | ")
    context = LlamaContext(draft, 512)
    assert context.row_multiple == 32
    context.close()
    info(monkeypatch, b"AVX2 = 1 | ")
    assert not draft.uses_amx
    info(monkeypatch, b"AMX_INT8 = 1", level="avx512")
    assert not draft.uses_amx, "specllama's kernels do not slow down at other numbers of rows"


def test_amx_is_not_used_on_a_gpu_or_with_float_weights(
    draft: LlamaModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    info(monkeypatch, b"AMX_INT8 = 1")
    draft.settings = ModelSettings(path=str(EMBEDDED_DRAFT), n_gpu_layers=99)
    assert not draft.uses_amx
    path = tinygguf.llama(tmp_path / "floats.gguf")
    floats = LlamaModel(ModelSettings(path=str(path), n_gpu_layers=0))
    assert not floats.uses_amx
    floats.close()


def test_where_rows_of_prompts_are_rounded_otherwise(
    draft: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft.settings = ModelSettings(path=str(EMBEDDED_DRAFT), n_gpu_layers=0)
    for level, amx, file_type, expected in (
        *(("avx2", False, "15", False), ("avx512", False, "7", False), ("avx512", True, "7", True)),
        *(("avx512", True, "1", False), ("neon", False, "1", True), ("", False, "1", False)),
    ):
        monkeypatch.setattr(LlamaModel, "metadata", lambda *_, now=file_type: now)
        info(monkeypatch, b"", level=level, amx=amx)
        assert draft.rounds_prompts == expected
    info(monkeypatch, b"", level="avx512", amx=True)
    monkeypatch.setattr(LlamaModel, "metadata", lambda *_: "7")
    draft.settings = ModelSettings(path=str(EMBEDDED_DRAFT), n_gpu_layers=99)
    assert not draft.rounds_prompts


def test_amx_is_left_where_its_use_would_crash(
    draft: LlamaModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    monkeypatch.setattr(kernels, "CPUINFO", cpuinfo)
    draft.settings = ModelSettings(path=str(EMBEDDED_DRAFT), n_gpu_layers=0)
    for file_type, leaves in (("7", True), ("15", True), ("1", False)):
        monkeypatch.setattr(LlamaModel, "metadata", lambda *_, now=file_type: now)
        info(monkeypatch, b"AMX_INT8 = 1", level="avx512")
        assert draft.leaves_amx == leaves
        info(monkeypatch, b"AMX_INT8 = 1", level="avx512", amx=True)
        assert not draft.leaves_amx
        info(monkeypatch, b"AVX512 = 1", level="avx512")
        for flags in ("avx2", "avx2 amx_int8"):
            cpuinfo.write_text(f"flags\t\t: {flags} fma\n")
            assert draft.leaves_amx == (leaves and "amx" in flags), "llama.cpp lacks it"
        info(monkeypatch, b"AMX_INT8 = 1", level="avx2")
        assert not draft.leaves_amx, "the user has asked for other kernels"
        info(monkeypatch, b"AMX_INT8 = 1")
        assert not draft.leaves_amx
