"""The attention of native/attention.h, called through ggml, compared with numpy."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from specllama.llama.library import ggml

CPUINFO = Path("/proc/cpuinfo")
FLAGS = set(CPUINFO.read_text().split()) if CPUINFO.exists() else set()
SUPPORTED = platform.machine() == "x86_64" and {"avx2", "fma", "f16c"} <= FLAGS
F32, F16 = 0, 1


class _Room(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


def function(name: str, result: object, *arguments: object) -> ctypes._FuncPointer:
    c_function = getattr(ggml, name)
    c_function.restype, c_function.argtypes = result, arguments
    return c_function


POINTER, LONG, FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


def attention(
    q: NDArray[np.float32],
    k: NDArray[np.float16],
    v: NDArray[np.float16],
    mask: NDArray[np.float16] | None,
    *,
    bias: float = 0.0,
    cap: float = 0.0,
    sinks: NDArray[np.float32] | None = None,
    n_threads: int = 1,
) -> NDArray[np.float32]:
    """ggml's flash attention, shape (rows, heads, dv). q: (heads, rows, dk). k, v: (KV heads, cells, dk/dv).
    mask: (rows, cells).
    """
    init = function("ggml_init", POINTER, _Room)
    tensor = function("ggml_new_tensor_4d", POINTER, POINTER, ctypes.c_int, LONG, LONG, LONG, LONG)
    data = function("ggml_get_data", POINTER, POINTER)
    room = init(_Room(64 << 20, None, False))
    try:

        def put(values: NDArray[np.floating]) -> int:
            shape = [*reversed(values.shape), 1, 1, 1][:4]
            created = tensor(room, F16 if values.dtype == np.float16 else F32, *shape)
            dense = np.ascontiguousarray(values)
            ctypes.memmove(data(created), dense.ctypes.data, dense.nbytes)
            return created

        flash = function("ggml_flash_attn_ext", POINTER, *[POINTER] * 5, FLOAT, FLOAT, FLOAT)
        inputs = [put(values) for values in (q, k, v)]
        out = flash(room, *inputs, None if mask is None else put(mask), q.shape[2] ** -0.5, bias, cap)
        if sinks is not None:
            function("ggml_flash_attn_ext_add_sinks", None, POINTER, POINTER)(out, put(sinks))
        graph = function("ggml_new_graph", POINTER, POINTER)(room)
        function("ggml_build_forward_expand", None, POINTER, POINTER)(graph, out)
        compute = function("ggml_graph_compute_with_ctx", ctypes.c_int, POINTER, POINTER, ctypes.c_int)
        assert compute(room, graph, n_threads) == 0
        shape = (q.shape[1], q.shape[0], v.shape[2])
        output = np.empty(shape, np.float32)
        ctypes.memmove(output.ctypes.data, data(out), output.nbytes)
        return output
    finally:
        function("ggml_free", None, POINTER)(room)


def expected(
    q: NDArray[np.float32],
    k: NDArray[np.float16],
    v: NDArray[np.float16],
    mask: NDArray[np.float16] | None,
    *,
    bias: float = 0.0,
    cap: float = 0.0,
    sinks: NDArray[np.float32] | None = None,
) -> NDArray[np.float64]:
    heads, rows, dk = q.shape
    power = 1 << int(np.log2(heads))
    out = np.zeros((rows, heads, v.shape[2]))
    for head in range(heads):
        keys, values = (cached[head // (heads // len(k))].astype(np.float64) for cached in (k, v))
        scores = q[head].astype(np.float64) @ np.nan_to_num(keys).T * dk**-0.5
        scores = cap * np.tanh(scores / cap) if cap else scores
        slope = 1.0
        if bias and head < power:
            slope = 2 ** (-bias / power * (head + 1))
        elif bias:
            slope = 2 ** (-bias / 2 / power * (2 * (head - power) + 1))
        scores = scores if mask is None else scores + slope * mask.astype(np.float64)
        for row in range(rows):
            visible = scores[row] > -np.inf
            top = max([*scores[row][visible], *([] if sinks is None else [sinks[head]])], default=0.0)
            weights = np.exp(scores[row][visible] - top)
            total = weights.sum() + (0 if sinks is None else np.exp(sinks[head] - top))
            out[row, head] = weights @ values[visible] / total if total else 0
    return out


def example(
    heads: int, shared: int, dk: int, dv: int, cells: int, rows: int
) -> tuple[NDArray[np.float32], NDArray[np.float16], NDArray[np.float16], NDArray[np.float16]]:
    """Queries, keys, values and a causal mask that also hides every second cell of a range."""
    rng = np.random.default_rng(heads * cells)
    q = rng.normal(size=(heads, rows, dk)).astype(np.float32) * 3
    k = rng.normal(size=(shared, cells, dk)).astype(np.float16)
    v = rng.normal(size=(shared, cells, dv)).astype(np.float16)
    mask = rng.normal(size=(rows, cells)).astype(np.float16)
    mask[np.arange(cells) > np.arange(rows)[:, None] + max(1, cells - rows)] = -np.inf
    mask[:, cells // 3 : cells // 2 : 2] = -np.inf
    return q, k, v, mask


SHAPES = [
    (8, 4, 64, 64, 300, 1),
    (8, 4, 64, 64, 300, 5),
    (8, 8, 64, 64, 256, 70),
    (6, 2, 80, 80, 129, 9),
    (5, 1, 128, 64, 33, 17),
    (32, 2, 96, 96, 64, 3),
    (40, 2, 64, 64, 40, 2),
    (2, 1, 256, 256, 31, 4),
    (3, 3, 16, 48, 7, 2),
    (4, 2, 320, 320, 40, 3),
    (4, 2, 40, 72, 40, 3),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_attention_agrees_with_numpy(shape: tuple[int, ...], n_threads: int) -> None:
    q, k, v, mask = example(*shape)
    output = attention(q, k, v, mask, n_threads=n_threads)
    assert output == pytest.approx(expected(q, k, v, mask), abs=0.01)


@pytest.mark.parametrize(
    "options",
    [
        {"bias": 8.0},
        {"cap": 2.0},
        {"cap": 30.0, "bias": 4.0},
        {"sinks": np.array([-3, 0, 1, 50, 2, 0.5], np.float32)},
    ],
    ids=str,
)
def test_bias_soft_cap_and_sinks(options: dict[str, float]) -> None:
    q, k, v, mask = example(6, 2, 64, 64, 100, 7)
    assert attention(q, k, v, mask, **options) == pytest.approx(expected(q, k, v, mask, **options), abs=0.01)


def test_attention_without_a_mask() -> None:
    q, k, v, _ = example(4, 2, 64, 64, 50, 3)
    assert attention(q, k, v, None) == pytest.approx(expected(q, k, v, None), abs=0.01)


def test_large_scores_do_not_overflow() -> None:
    q, k, v, mask = example(4, 2, 64, 64, 90, 3)
    q *= 1000
    output = attention(q, k, v, mask)
    assert np.isfinite(output).all()
    assert output == pytest.approx(expected(q, k, v, mask), abs=0.02)


def test_hidden_cells_have_no_effect() -> None:
    """Cells with overflowed numbers of another sequence stay in the cache until they are used again."""
    q, k, v, mask = example(4, 2, 64, 64, 90, 6)
    without = attention(q, k, v, mask)
    hidden = np.isneginf(mask).all(axis=0)
    assert 5 < hidden.sum() < 80
    k[:, hidden], v[:, hidden] = np.nan, np.inf
    assert (attention(q, k, v, mask) == without).all()


def test_a_row_with_all_cells_hidden_is_zero() -> None:
    q, k, v, mask = example(4, 2, 64, 64, 90, 4)
    mask[2] = -np.inf
    output = attention(q, k, v, mask)
    assert not output[2].any()
    assert output[[0, 1, 3]] == pytest.approx(expected(q, k, v, mask)[[0, 1, 3]], abs=0.01)


@pytest.mark.skipif(not SUPPORTED, reason="attention.h is for AVX2")
@pytest.mark.parametrize("shape", [(8, 4, 64, 64, 300, 70), (6, 2, 80, 80, 129, 9), (32, 2, 96, 96, 64, 20)])
def test_rows_are_bit_equal_to_single_rows_with_any_number_of_threads(shape: tuple[int, ...]) -> None:
    q, k, v, mask = example(*shape)
    together = attention(q, k, v, mask, n_threads=2)
    for row in range(shape[5]):
        alone = attention(q[:, row : row + 1], k, v, mask[row : row + 1], n_threads=row % 6 + 1)
        assert (alone[0] == together[row]).all()
