"""A draft model with random weights and the cost of the real one: the same file, its weights shuffled."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import numpy as np

SCALE = 8.0  # of the last norm: larger logits give a confident softmax


def write_random_draft(draft: Path, out: Path, seed: int, confident: bool = False) -> None:
    """Writes the draft with the blocks of every weight matrix shuffled.

    Sizes, types and vocabulary stay, so that a step costs the same and the draft still fits its target; the
    values stay finite. confident: the last norm is scaled up, so that the draft predicts with confidence.
    """
    shutil.copyfile(draft, out)
    rng = np.random.default_rng(seed)
    reader = gguf.GGUFReader(out, "r+")
    for tensor in reader.tensors:
        if len(tensor.shape) > 1 and tensor.shape[1] > 1:
            _, size = gguf.GGML_QUANT_SIZES[tensor.tensor_type]
            blocks = tensor.data.reshape(-1).view(np.uint8).reshape(-1, size)
            blocks[:] = blocks[rng.permutation(len(blocks))]
        elif confident and tensor.name == "output_norm.weight":
            tensor.data[:] = tensor.data * np.float32(SCALE)
    reader.data.flush()
