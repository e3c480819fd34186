"""Products of weights that are packed for AMX, as this process computes them, written to a file.

usage: python -m tests.support.amx_products FILE.npz
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np
from numpy.typing import NDArray

from scripts.bench.kernels.__main__ import INT, POINTER, Ggml, Matrices

TYPES = ("q8_0", "q4_0", "q4_1", "q4_k", "q5_k", "q6_k", "iq4_xs")
ROWS = (1, 2, 5, 8, 13, 33, 63, 70)


def product(matrices: Matrices, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """rows: (n, length); the result: (n, columns)."""
    call, room = matrices.ggml.call, POINTER(matrices._room(64 << 20))
    given = matrices._put(room.value or 0, 0, rows)
    node = call("ggml_mul_mat", POINTER, room, POINTER(matrices.matrices[0]), POINTER(given))
    graph = call("ggml_new_graph", POINTER, room)
    call("ggml_build_forward_expand", None, POINTER(graph), POINTER(node))
    call("ggml_graph_compute_with_ctx", INT, room, POINTER(graph), INT(2))
    found = np.empty((len(rows), matrices.columns), np.float32)
    ctypes.memmove(found.ctypes.data, matrices._data(node), found.nbytes)
    return found


def main() -> None:
    ggml, found = Ggml(), {}
    for kind in TYPES:
        matrices = Matrices(ggml, kind, 1, (0, 0), True)
        rows = np.random.default_rng(1).normal(size=(max(ROWS), matrices.length)).astype(np.float32)
        for n in ROWS:
            found[f"{kind} {n}"] = product(matrices, rows[:n])
        matrices.close()
    np.savez(sys.argv[1], **found)


if __name__ == "__main__":
    main()
