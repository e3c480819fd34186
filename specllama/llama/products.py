"""Products of weights and rows, computed by ggml as a model's are: by the same backend, kernels and number of
threads, with weights stored as llama.cpp stores them. Knows no models.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from specllama.clock import running_time
from specllama.gguf.parse import TYPE_NUMBERS, row_bytes
from specllama.llama.library import ggml

LENGTH = 2048  # numbers of a row
_QUANTIZED = 64  # columns; the others are the same again, since quantizing takes longer than the products
_CPU = 0  # ggml_backend_dev_type
_PROMPT = 512  # rows with which llama.cpp asks whether a buffer type can be used
_OVERHEAD = 1 << 16  # bytes of ggml for a few tensors and a small graph
_NODES = 4  # of a graph, besides matrices and their products
_FEW_ROWS = 8  # up to here all matrices are multiplied: their memory is the limit
_POINTER, _INT, _LONG, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_size_t


class ProductError(Exception):
    """Why nothing can be multiplied: this llama.cpp lacks a function, or there is no memory."""


class _Room(ctypes.Structure):
    """ggml_init_params."""

    _fields_ = (("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class Products:
    """Random matrices of one type, multiplied with one to several rows.

    kind: name of the type of the weights. n_matrices: of about `n_bytes` each. widths: numbers of rows.
    Raises ProductError.
    """

    def __init__(
        self, kind: str, n_matrices: int, n_bytes: int, widths: Sequence[int], n_threads: int
    ) -> None:
        self.kind = kind
        columns = max(1, round(n_bytes / row_bytes(kind, LENGTH) / _QUANTIZED))
        self.n_columns, self.n_matrices = columns * _QUANTIZED, n_matrices
        self._stack = ExitStack()
        try:
            self._device = _cpu_device()
            self._backend = self._backend_of(n_threads)
            data = _random(kind, self.n_columns)
            weights = [self._stored(kind, data) for _ in range(n_matrices)]
            parts = {n: weights if n <= _FEW_ROWS else weights[:1] for n in widths}
            self._graphs = {n: self._graph(parts[n], n) for n in widths}
        except BaseException as error:
            self.close()
            if isinstance(error, AttributeError | OSError | MemoryError):
                raise ProductError(str(error)) from None
            raise

    @property
    def n_bytes(self) -> int:
        """Bytes of all matrices."""
        return self.n_matrices * self.n_columns * row_bytes(self.kind, LENGTH)

    def close(self) -> None:
        """Free all memory."""
        self._stack.close()

    def seconds(self, n_rows: int) -> float:
        """How long the product of all matrices and so many rows takes. Many rows are multiplied with one of
        them, since reading it is a small part of the time.
        """
        began = running_time()
        status = _call(
            "ggml_backend_graph_compute", _INT, _POINTER(self._backend), _POINTER(self._graphs[n_rows])
        )
        elapsed = running_time() - began
        if status:
            raise ProductError(f"ggml_backend_graph_compute returned {status}")
        return elapsed if n_rows <= _FEW_ROWS else elapsed * self.n_matrices

    def _backend_of(self, n_threads: int) -> int:
        backend = _pointer("ggml_backend_dev_init", _POINTER(self._device), _POINTER(None))
        self._stack.callback(_call, "ggml_backend_free", None, _POINTER(backend))
        set_threads = _cpu_function("ggml_backend_set_n_threads", self._device)
        ctypes.CFUNCTYPE(None, _POINTER, _INT)(set_threads)(backend, n_threads)
        return backend

    def _room(self, n_tensors: int) -> int:
        room = _pointer("ggml_init", _Room(n_tensors * _OVERHEAD, None, True))
        self._stack.callback(_call, "ggml_free", None, _POINTER(room))
        return room

    def _stored(self, kind: str, data: bytes) -> int:
        """A matrix in the first kind of memory that llama.cpp would take for these weights."""
        for buffer_type in (*_extra_buffer_types(self._device), _buffer_type(self._device)):
            room = self._room(4)
            matrix = _tensor(room, kind, LENGTH, self.n_columns)
            if self._allocate(room, buffer_type) != buffer_type:
                continue  # of kernels that store nothing
            product = _product(room, matrix, _tensor(room, "F32", LENGTH, _PROMPT))
            supported = _call(
                "ggml_backend_dev_supports_op", ctypes.c_bool, _POINTER(self._device), _POINTER(product)
            )
            if supported:
                _fill(matrix, data)
                return matrix
        raise ProductError(f"the processor cannot multiply weights of type {kind}")

    def _graph(self, weights: Sequence[int], n_rows: int) -> int:
        """A graph with the products of these matrices and the same rows."""
        room = self._room(2 + 2 * len(weights))
        rows = _tensor(room, "F32", LENGTH, n_rows)
        size = _SIZE(_NODES + 2 * len(weights))
        graph = _pointer("ggml_new_graph_custom", _POINTER(room), size, ctypes.c_bool(False))
        for matrix in weights:
            product = _product(room, matrix, rows)
            _call("ggml_build_forward_expand", None, _POINTER(graph), _POINTER(product))
        self._allocate(room, _buffer_type(self._device))
        values = np.random.default_rng(n_rows).normal(size=(n_rows, LENGTH)).astype(np.float32)
        _fill(rows, values.tobytes())
        return graph

    def _allocate(self, room: int, buffer_type: int) -> int:
        """Memory of this kind for all tensors of the room that have none; returns the kind that they got."""
        name = "ggml_backend_alloc_ctx_tensors_from_buft"
        buffer = _pointer(name, _POINTER(room), _POINTER(buffer_type))
        self._stack.callback(_call, "ggml_backend_buffer_free", None, _POINTER(buffer))
        return _pointer("ggml_backend_buffer_get_type", _POINTER(buffer))


def _random(kind: str, n_columns: int) -> bytes:
    """Random weights of a type; the first columns are repeated."""
    values = np.random.default_rng(0).normal(size=(_QUANTIZED, LENGTH)).astype(np.float32)
    importance = np.ones(LENGTH, np.float32)  # some types cannot be quantized without
    data = ctypes.create_string_buffer(_QUANTIZED * row_bytes(kind, LENGTH))
    _call(
        "ggml_quantize_chunk",
        _SIZE,
        *(_INT(TYPE_NUMBERS[kind]), _POINTER(values.ctypes.data), _POINTER(ctypes.addressof(data))),
        *(_LONG(0), _LONG(_QUANTIZED), _LONG(LENGTH), _POINTER(importance.ctypes.data)),
    )
    return data.raw * (n_columns // _QUANTIZED)


def _cpu_device() -> int:
    for i in range(ggml.ggml_backend_dev_count()):
        device: int = ggml.ggml_backend_dev_get(i)
        if ggml.ggml_backend_dev_type(device) == _CPU:
            return device
    raise ProductError("llama.cpp has no CPU backend")


def _cpu_function(name: str, device: int) -> int:
    """The address of a function of the CPU backend, which may be a library that was loaded by name."""
    of_device = ggml.ggml_backend_dev_backend_reg(device)
    return _pointer("ggml_backend_reg_get_proc_address", _POINTER(of_device), ctypes.c_char_p(name.encode()))


def _extra_buffer_types(device: int) -> Iterator[int]:
    """The kinds of memory in which the backend stores weights in another order than the file's."""
    function = _cpu_function("ggml_backend_dev_get_extra_bufts", device)
    types = ctypes.CFUNCTYPE(ctypes.POINTER(_POINTER), _POINTER)(function)(device)
    i = 0
    while types and types[i]:
        yield types[i]
        i += 1


def _buffer_type(device: int) -> int:
    buffer_type: int = ggml.ggml_backend_dev_buffer_type(device)
    return buffer_type


def _tensor(room: int, kind: str, *shape: int) -> int:
    number = _INT(TYPE_NUMBERS[kind])
    return _pointer("ggml_new_tensor_2d", _POINTER(room), number, *map(_LONG, shape))


def _fill(tensor: int, data: bytes) -> None:
    size = _SIZE(0), _SIZE(len(data))
    _call("ggml_backend_tensor_set", None, _POINTER(tensor), ctypes.c_char_p(data), *size)


def _product(room: int, matrix: int, rows: int) -> int:
    return _pointer("ggml_mul_mat", _POINTER(room), _POINTER(matrix), _POINTER(rows))


def _pointer(name: str, *arguments: Any) -> int:
    """Call a function of ggml that returns a pointer. Raises ProductError for null."""
    pointer: int | None = _call(name, _POINTER, *arguments)
    if not pointer:
        raise ProductError(f"{name} failed")
    return pointer


def _call(name: str, result: Any, *arguments: Any) -> Any:
    # A new function object, so that the types that others have set for this function stay.
    return ctypes.CFUNCTYPE(result, *map(type, arguments))((name, ggml))(*arguments)
