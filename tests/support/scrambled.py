"""A useless draft model, with the architecture and vocabulary of a real one."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np


def scramble(source: Path, target: Path, seed: int = 0) -> Path:
    """Copy a GGUF file with the blocks of every quantized matrix in random order; the blocks themselves are
    unchanged, so that all weights are valid.
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
