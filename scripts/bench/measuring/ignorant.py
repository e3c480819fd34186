"""A draft model that knows nothing and costs what the real one costs: the same file, its weights shuffled."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import numpy as np

SURE = 8.0  # logits larger by this make a softmax that is sure of itself


def write_ignorant(draft: Path, out: Path, seed: int, sure: bool = False) -> None:
    """Write the draft with the blocks of every weight matrix in another order.

    Sizes, types and the vocabulary stay, so that each step costs the same and target and draft still fit; the
    values stay finite. sure: the last norm is stretched, so that it believes what it says.
    """
    shutil.copyfile(draft, out)
    rng = np.random.default_rng(seed)
    reader = gguf.GGUFReader(out, "r+")
    for tensor in reader.tensors:
        if len(tensor.shape) > 1 and tensor.shape[1] > 1:
            _, size = gguf.GGML_QUANT_SIZES[tensor.tensor_type]
            blocks = tensor.data.reshape(-1).view(np.uint8).reshape(-1, size)
            blocks[:] = blocks[rng.permutation(len(blocks))]
        elif sure and tensor.name == "output_norm.weight":
            tensor.data[:] = tensor.data * np.float32(SURE)
    reader.data.flush()
