"""A draft that knows nothing, of the same shape and vocabulary as a real one."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np


def scramble(source: Path, target: Path, seed: int = 0) -> Path:
    """Copy a GGUF file with the blocks of every quantised matrix in a random order; a block stays whole, so
    that all numbers are sound ones.
    """
    data = np.fromfile(source, np.uint8)
    rng = np.random.default_rng(seed)
    for tensor in gguf.GGUFReader(source).tensors:
        _, block_bytes = gguf.GGML_QUANT_SIZES[tensor.tensor_type]
        if tensor.tensor_type != gguf.GGMLQuantizationType.F32:
            blocks = data[tensor.data_offset : tensor.data_offset + tensor.n_bytes].reshape(-1, block_bytes)
            rng.shuffle(blocks)
    data.tofile(target)
    return target
