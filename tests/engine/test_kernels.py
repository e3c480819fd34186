"""The plug-in with specllama's kernels: products of every type computed by ggml through it, and what happens
where it cannot be used.
"""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from specllama.client import protocol
from specllama.client.tune_messages import Loading
from specllama.errors import EngineError, UsageError
from specllama.llama import kernel_build, kernels
from specllama.llama.library import KERNELS, ggml
from specllama.worker import main
from tests.support.paths import ROOT

CPUINFO = Path("/proc/cpuinfo")
FLAGS = set(CPUINFO.read_text().split()) if CPUINFO.exists() else set()
SUPPORTED = (
    platform.system() == "Linux" and platform.machine() == "x86_64" and {"avx2", "fma", "f16c"} <= FLAGS
)
TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "q2_k": 10, "q3_k": 11,
    "q4_k": 12, "q5_k": 13, "q6_k": 14, "iq4_nl": 20, "iq4_xs": 23, "bf16": 30, "mxfp4": 39,
}  # fmt: skip
ERROR = {"q2_k": 0.5, "q3_k": 0.25, "mxfp4": 0.25}  # relative to the largest result
POINTER, LONG = ctypes.c_void_p, ctypes.c_int64

pytestmark = pytest.mark.skipif(not SUPPORTED, reason="the kernels are for Linux on x86-64 with AVX2")


def call(name: str, result: object, *arguments: ctypes._SimpleCData[object] | ctypes.Structure) -> object:
    return ctypes.CFUNCTYPE(result, *map(type, arguments))((name, ggml))(*arguments)


class Room(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class Products:
    """Weights (..., columns, n) in a type of ggml, multiplied with batches."""

    def __init__(self, kind: str, weights: NDArray[np.float32]) -> None:
        self.room = call("ggml_init", POINTER, Room(512 << 20, None, False))
        self.kind, self.weights = kind, self.put(weights, TYPES[kind])

    def close(self) -> None:
        call("ggml_free", None, POINTER(self.room))

    def put(self, values: NDArray[np.generic], kind: int) -> ctypes.c_void_p:
        shape = [LONG(n) for n in [*reversed(values.shape), 1, 1, 1][:4]]
        new = call("ggml_new_tensor_4d", POINTER, POINTER(self.room), ctypes.c_int(kind), *shape)
        to = call("ggml_get_data", POINTER, POINTER(new))
        dense = np.ascontiguousarray(values)
        if kind == 1:
            dense = dense.astype(np.float16)
        if kind in (0, 1, 26):
            ctypes.memmove(to, dense.ctypes.data, dense.nbytes)
        else:
            rows = dense.size // dense.shape[-1]
            call(
                "ggml_quantize_chunk",
                ctypes.c_size_t,
                *(ctypes.c_int(kind), POINTER(dense.ctypes.data), POINTER(to)),
                *(LONG(0), LONG(rows), LONG(dense.shape[-1]), POINTER(None)),
            )
        return POINTER(new)

    def attend(
        self,
        q: NDArray[np.float32],
        k: ctypes.c_void_p,
        v: ctypes.c_void_p,
        mask: NDArray[np.float32],
        option: str,
    ) -> NDArray[np.float32]:
        """q: (heads, rows, numbers); the result: (rows, heads, numbers)."""
        seen = call(
            "ggml_new_tensor_2d", POINTER, POINTER(self.room), ctypes.c_int(1), *map(LONG, mask.shape[::-1])
        )
        halves = mask.astype(np.float16)
        ctypes.memmove(call("ggml_get_data", POINTER, POINTER(seen)), halves.ctypes.data, halves.nbytes)
        numbers = map(ctypes.c_float, (q.shape[-1] ** -0.5, 0.0, 20.0 if option == "cap" else 0.0))
        arguments = (POINTER(self.room), self.put(q, 0), k, v, POINTER(seen), *numbers)
        node = call("ggml_flash_attn_ext", POINTER, *arguments)
        if option == "sinks":
            sinks = self.put(np.linspace(-1, 1, len(q), dtype=np.float32), 0)
            call("ggml_flash_attn_ext_add_sinks", None, POINTER(node), sinks)
        return self.compute(node, n_threads=2 if q.shape[1] == 16 else 1).reshape(q.shape[1], *q.shape[::2])

    def times(
        self, batch: NDArray[np.float32], ids: NDArray[np.int32] | None = None, n_threads: int = 1
    ) -> NDArray[np.float32]:
        a = [self.weights, self.put(batch, 0)]
        if ids is None:
            node = call("ggml_mul_mat", POINTER, POINTER(self.room), *a)
        else:
            node = call("ggml_mul_mat_id", POINTER, POINTER(self.room), *a, self.put(ids, 26))
        before = n_computed()
        product = self.compute(node, n_threads)
        self.ours = n_computed() > before
        return product

    def compute(self, node: object, n_threads: int) -> NDArray[np.float32]:
        graph = call("ggml_new_graph", POINTER, POINTER(self.room))
        call("ggml_build_forward_expand", None, POINTER(graph), POINTER(node))
        arguments = (POINTER(self.room), POINTER(graph), ctypes.c_int(n_threads))
        assert call("ggml_graph_compute_with_ctx", ctypes.c_int, *arguments) == 0
        n = call("ggml_nelements", LONG, POINTER(node))
        product = np.empty(n, np.float32)
        ctypes.memmove(product.ctypes.data, call("ggml_get_data", POINTER, POINTER(node)), product.nbytes)
        return product


def n_computed() -> int:
    return kernels.load_object().specllama_computed(0)


def numbers(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def test_the_kernels_are_in_use() -> None:
    assert KERNELS.level in kernels.LEVELS, KERNELS.reason
    assert not KERNELS.reason
    assert KERNELS.identity == f"{kernels.sources()} {KERNELS.level}{' amx' * KERNELS.amx}"


@pytest.mark.parametrize("columns", [16, 37])
@pytest.mark.parametrize("kind", TYPES)
def test_rows_are_right_and_bit_equal_alone_and_among_others(kind: str, columns: int) -> None:
    weights, batch = numbers(columns, 512), numbers(150, 512)
    products = Products(kind, weights)
    try:
        right = batch @ weights.T
        alone = np.stack([products.times(batch[i : i + 1], n_threads=1 + (i == 7)) for i in range(150)])
        assert products.ours
        assert np.abs(alone - right).max() < ERROR.get(kind, 0.12) * np.abs(right).max()
        prompts = () if kind in ("q4_0", "q4_k") else (64, 150)  # whose kernels need columns in groups
        for n in (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 16, 17, 24, 63, *prompts):
            together = products.times(batch[:n], n_threads=1 + n // 8 % 2).reshape(n, columns)
            assert (together == alone[:n]).all(), n
    finally:
        products.close()


@pytest.mark.parametrize("kind", ["f16", "q4_0", "q4_1", "q8_0", "q4_k", "q6_k", "iq4_xs"])
@pytest.mark.parametrize("shared", [True, False])
def test_experts_are_bit_equal_alone_and_among_others(kind: str, shared: bool) -> None:
    """Of 30 tokens, more than 8 go to one expert. shared: all experts of a token get the same row."""
    weights, batch = numbers(4, 37, 256), numbers(30, 1 if shared else 2, 256)
    ids = np.random.default_rng(0).permuted(np.tile(np.arange(4, dtype=np.int32), (30, 1)), axis=1)[:, :2]
    products = Products(kind, weights)
    try:
        together = products.times(batch, ids, n_threads=2).reshape(30, 2, 37)
        assert products.ours
        for token in range(30):
            alone = products.times(batch[token : token + 1], ids[token : token + 1]).reshape(2, 37)
            assert (alone == together[token]).all()
            for slot in range(2):
                right = weights[ids[token, slot]] @ batch[token, 0 if shared else slot]
                assert together[token, slot] == pytest.approx(right, abs=0.12 * float(np.abs(together).max()))
    finally:
        products.close()


@pytest.mark.parametrize("option", ["plain", "window", "sinks", "cap"])
@pytest.mark.parametrize(
    "kinds", [("f16", "f16"), ("q8_0", "q8_0"), ("q4_0", "q4_0"), ("q8_0", "q4_0"), ("f32", "f32")]
)
@pytest.mark.parametrize(("size", "heads"), [(64, 2), (80, 4), (96, 2), (128, 4), (256, 2), (512, 2)])
def test_attention_is_bit_equal_alone_and_among_others(
    size: int, heads: int, kinds: tuple[str, str], option: str
) -> None:
    """Behind 512 cells, from where on llama.cpp has another way for single rows."""
    if size % 32 and kinds[0][0] == "q":
        pytest.skip("blocks of 32 numbers")
    products = Products("f32", numbers(2, 576, size))
    try:
        stored = [numbers(2, 576, size), numbers(2, 576, size)[::-1]]
        k, v = (products.put(x, TYPES[kind]) for x, kind in zip(stored, kinds, strict=True))
        n_rows = 63 if kinds[0] == "f32" else 64  # in prompts llama.cpp computes them in another way
        q, mask = numbers(heads, n_rows, size), np.zeros((n_rows, 576), np.float32)
        for row in range(n_rows):
            mask[row, 513 + row :] = -np.inf
            mask[row, : 413 + row if option == "window" else 0] = -np.inf
        alone = np.concatenate(
            [products.attend(q[:, i : i + 1], k, v, mask[i : i + 1], option) for i in range(0, n_rows, 3)]
        )
        for n in (2, 5, 16, n_rows):
            together = products.attend(q[:, :n], k, v, mask[:n], option)
            assert (together[::3] == alone[: len(together[::3])]).all(), n
        if kinds[0] in ("f16", "f32"):
            k0, v0 = (np.repeat(x, heads // 2, 0) for x in stored)
            scores = np.einsum("hrd,hcd->hrc", q, k0) * size**-0.5
            scores = (20 * np.tanh(scores / 20) if option == "cap" else scores) + mask
            weights = np.exp(scores)
            sinks = np.exp(np.linspace(-1, 1, heads))[:, None, None] if option == "sinks" else 0
            right = np.einsum("hrc,hcd->rhd", weights / (weights.sum(-1, keepdims=True) + sinks), v0)
            assert np.abs(together - right).max() < 0.01
    finally:
        products.close()


def test_off_and_unknown_values() -> None:
    loaded = kernels.load(ggml, {kernels.VARIABLE: "off"})
    assert (loaded.level, loaded.identity) == ("", "")
    assert "off" in loaded.reason
    with pytest.raises(UsageError, match="SPECLLAMA_KERNELS is 'fast', which is not one of off, on, auto"):
        kernels.load(ggml, {kernels.VARIABLE: "fast"})


def test_another_ggml_keeps_them_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "GGML", "0.0.1")
    loaded = kernels.load(ggml, {})
    assert loaded.level == ""
    assert loaded.reason.startswith("they are for ggml 0.0.1, this is ")
    words = r"SPECLLAMA_KERNELS is on, and specllama's kernels cannot be used: they are for ggml 0\.0\.1"
    with pytest.raises(EngineError, match=words):
        kernels.load(ggml, {kernels.VARIABLE: "on"})


def test_another_system_keeps_them_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_build.platform, "machine", lambda: "riscv64")
    reason = kernels.load(ggml, {}).reason
    assert reason == "they are for Linux on x86-64 and aarch64, this is Linux on riscv64"


def test_without_a_compiler(tmp_path: Path) -> None:
    for environ, words in (
        ({"CXX": "no-such-compiler -O3"}, "CXX is 'no-such-compiler -O3', which is not on the path"),
        ({"CXX": "false"}, "false does not compile them: exit code 1"),
    ):
        with pytest.raises(kernels.Unusable, match=words):
            kernels.compile_object(tmp_path / "k.so", environ)


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(kernels.Unusable, match=str(tmp_path / "file")):
        kernels.compile_object(tmp_path / "file" / "k.so", {"CXX": "true"})


PROGRAM = """
import sys
from pathlib import Path
from specllama.llama import kernels
kernels.OBJECT = Path(sys.argv[1])
from specllama.llama.library import KERNELS, compiled
print(repr(KERNELS.level), repr(KERNELS.reason), compiled())
"""


def in_a_process(ready_made: Path = kernel_build.OBJECT, **environ: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(ready_made)],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environ,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.rsplit(maxsplit=1)


def test_figures_are_kept_apart(tmp_path: Path) -> None:
    without, its_figures = in_a_process(
        tmp_path / "none.so", SPECLLAMA_CACHE=str(tmp_path), CXX="no-such-compiler"
    )
    assert without == "'' \"CXX is 'no-such-compiler', which is not on the path\""
    off, figures_of_off = in_a_process(SPECLLAMA_KERNELS="off")
    assert off == "'' 'SPECLLAMA_KERNELS is off'"
    narrow, figures_of_avx2 = in_a_process(SPECLLAMA_KERNELS="avx2")
    assert narrow == "'avx2' ''"
    assert its_figures == figures_of_off != figures_of_avx2


def test_compiling_them_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every half second, since the front ends a process that sends nothing."""
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\nsleep 0.7\necho 'error: no space' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(kernels, "OBJECT", tmp_path / "none.so")
    monkeypatch.setattr(kernels, "_failures", [])
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(compiler))
    sent: list[protocol.Message] = []
    main.compile_kernels(sent.append)
    assert sent == [Loading("kernels", 0.0)]
    assert kernels.load(ggml).reason == f"CXX={compiler} does not compile them: error: no space"
    assert not list((tmp_path / "cache" / "kernels").iterdir())
    monkeypatch.setenv(kernels.VARIABLE, "off")
    assert not kernels.must_compile()
