"""The head that comes with specllama, from its header; training.head makes it."""

from __future__ import annotations

import gguf
import numpy as np

from specllama.data import EMBEDDED_TARGET
from specllama.gguf.header import read_header
from specllama.heads import EAGLE3, read_head
from specllama.heads.kind import read_d2t

FILE = EMBEDDED_TARGET.with_name("smollm2-eagle3.gguf")


def test_the_shipped_head_fits_smollm2_135m() -> None:
    assert FILE.stat().st_size < 15_000_000
    head = read_head(read_header(FILE))
    assert head is not None
    read_d2t(head)
    assert head.kind is EAGLE3
    assert (head.n_embd, head.n_embd_target, head.n_vocab) == (576, 576, 49_152)
    assert head.target_layers == (2, 22, 29)
    assert not head.own_embeddings
    assert head.own_output


def test_its_weights_are_finite_and_its_tokens_distinct() -> None:
    tensors = {t.name: t for t in gguf.GGUFReader(FILE).tensors}
    tokens = tensors["d2t"].data
    assert (np.diff(tokens) > 0).all()
    assert {0, 1, 2} <= set(tokens.tolist())  # the end of an answer is one of them
    for name, tensor in tensors.items():
        if name != "d2t":
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            assert np.isfinite(values).all(), name
            assert values.std() > 0, name
