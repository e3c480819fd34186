"""Random texts as the head's recipe keeps them."""

from __future__ import annotations

import numpy as np

from scripts.demo_pair.head import shards


def random_text(n: int, width: int, seed: int) -> shards.Text:
    """`n` rows with features of `width` numbers; tokens and candidates are below 40."""
    rng = np.random.default_rng(seed)
    top = np.zeros(n, shards.TOP)
    top["id"] = rng.integers(0, 40, (n, shards.N_TOP))
    top["logit"] = -np.arange(shards.N_TOP, dtype=np.float16)
    return shards.Text(
        rng.integers(0, 40, n).astype(np.uint16), rng.normal(size=(n, width)).astype(np.float16), top
    )
