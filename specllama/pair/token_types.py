"""The types of the tokens of a vocabulary: ordinary ones, and those with a meaning of their own. Reads no
model file.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specllama.gguf.header import Header

NORMAL, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 3, 4, 5, 6  # llama_token_type


def token_types(header: Header, n: int) -> NDArray[np.int64]:
    """The llama_token_type of each of n tokens, NORMAL where the header has none; shape (n,)."""
    stored = header.metadata.get("tokenizer.ggml.token_type")
    types = np.full(n, NORMAL, np.int64)
    if isinstance(stored, np.ndarray):
        types[: len(stored)] = stored[:n]
    return types
