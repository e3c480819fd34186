"""Sizes of tensor types and names of file types: the tables of ggml.h, ggml-common.h and llama.h.

Knows nothing about files or models.
"""

from __future__ import annotations

from typing import NamedTuple

QK_K = 256  # elements of a K-quant block


class GGMLType(NamedTuple):
    """A tensor type, which stores `block_size` elements in `block_bytes` bytes."""

    name: str
    block_size: int
    block_bytes: int


GGML_TYPES: dict[int, GGMLType] = {
    0: GGMLType("F32", 1, 4),
    1: GGMLType("F16", 1, 2),
    2: GGMLType("Q4_0", 32, 18),
    3: GGMLType("Q4_1", 32, 20),
    6: GGMLType("Q5_0", 32, 22),
    7: GGMLType("Q5_1", 32, 24),
    8: GGMLType("Q8_0", 32, 34),
    9: GGMLType("Q8_1", 32, 36),
    10: GGMLType("Q2_K", QK_K, 84),
    11: GGMLType("Q3_K", QK_K, 110),
    12: GGMLType("Q4_K", QK_K, 144),
    13: GGMLType("Q5_K", QK_K, 176),
    14: GGMLType("Q6_K", QK_K, 210),
    15: GGMLType("Q8_K", QK_K, 292),
    16: GGMLType("IQ2_XXS", QK_K, 66),
    17: GGMLType("IQ2_XS", QK_K, 74),
    18: GGMLType("IQ3_XXS", QK_K, 98),
    19: GGMLType("IQ1_S", QK_K, 50),
    20: GGMLType("IQ4_NL", 32, 18),
    21: GGMLType("IQ3_S", QK_K, 110),
    22: GGMLType("IQ2_S", QK_K, 82),
    23: GGMLType("IQ4_XS", QK_K, 136),
    24: GGMLType("I8", 1, 1),
    25: GGMLType("I16", 1, 2),
    26: GGMLType("I32", 1, 4),
    27: GGMLType("I64", 1, 8),
    28: GGMLType("F64", 1, 8),
    29: GGMLType("IQ1_M", QK_K, 56),
    30: GGMLType("BF16", 1, 2),
    34: GGMLType("TQ1_0", QK_K, 54),
    35: GGMLType("TQ2_0", QK_K, 66),
    39: GGMLType("MXFP4", 32, 17),
    40: GGMLType("NVFP4", 64, 36),
    41: GGMLType("Q1_0", 128, 18),
    42: GGMLType("Q2_0", 64, 18),
}

# Types that llama.cpp no longer reads, by id.
REMOVED_TYPES: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}

TYPE_BY_NAME: dict[str, GGMLType] = {t.name.lower(): t for t in GGML_TYPES.values()}
TYPE_NUMBERS: dict[str, int] = {t.name: number for number, t in GGML_TYPES.items()}
# Tensor types that ggml multiplies with nothing: it crashes.
NOT_MULTIPLIED = frozenset(("Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"))

# `general.file_type`, llama_ftype in llama.h.
FILE_TYPES: dict[int, str] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4_MOE",
    39: "NVFP4",
    40: "Q1_0",
    41: "Q2_0",
}

FILE_TYPE_GUESSED = 1024  # flag in general.file_type: the converter guessed


def row_bytes(type_name: str, n_elements: int) -> int:
    """Bytes of `n_elements` of a type (name in any case), in whole blocks. Raises KeyError for an unknown
    name.
    """
    kind = TYPE_BY_NAME[type_name.lower()]
    return -(-n_elements // kind.block_size) * kind.block_bytes
