"""A text's logits do not depend on where its cells lie in a cache that several texts share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from specllama.core.interfaces import BatchRow
from specllama.llama.context import LlamaContext
from specllama.llama.model import LlamaModel
from tests.engine.test_attention import SUPPORTED

Make = Callable[..., LlamaContext]
Load = Callable[..., LlamaModel]
IDS = np.random.default_rng(5).integers(1, 250, size=(4, 400)).tolist()
SETTINGS = {"cache_type_k": "f16", "cache_type_v": "f16", "flash_attn": "on", "n_ubatch": 64}

pytestmark = pytest.mark.skipif(not SUPPORTED, reason="the kernels are for AVX2")


def rows(seq_id: int, begin: int, end: int, ids: Sequence[int] = ()) -> list[BatchRow]:
    """Rows of a text of IDS, or of others, all with logits."""
    return [BatchRow((ids or IDS[seq_id])[i], i, seq_id, True) for i in range(begin, end)]


def alone(context: LlamaContext, n: int) -> NDArray[np.float32]:
    """Logits of the first `n` tokens of text 0, decoded by itself, the first 40 at once."""
    parts = [context.decode(rows(0, 0, 40)).copy()]
    parts += [context.decode(rows(0, i, i + 1)).copy() for i in range(40, n)]
    return np.concatenate(parts)


def test_cells_between_those_of_others_and_in_any_order(tiny: Load, context: Make) -> None:
    target = tiny("llama", **SETTINGS)
    expected = alone(context(target, 512), 70)
    shared = context(target, 512, n_seq_max=4)
    shared.decode(rows(1, 0, 21))
    logits = [shared.decode(rows(0, 0, 40)).copy()]
    for i in range(40, 50):  # rows of three texts in turn; one text's draft is rejected each time
        batch = [*rows(2, i - 40, i - 38), *rows(0, i, i + 1), *rows(3, i - 40, i - 39)]
        logits.append(shared.decode(batch)[2:3].copy())
        shared.truncate(2, i - 39)
    shared.truncate(1, 0)  # the next cells are before all others
    for n, i in enumerate(range(50, 70, 2), 10):
        batch = [*rows(3, n, n + 1), *rows(0, i, i + 2), *rows(2, n, n + 1)]
        logits.append(shared.decode(batch)[1:3].copy())
    assert (np.concatenate(logits) == expected).all()


def test_a_text_that_was_moved_out_and_back(tiny: Load, context: Make) -> None:
    target = tiny("llama", **SETTINGS)
    expected = alone(context(target, 512), 70)
    shared = context(target, 512, n_seq_max=4)
    shared.decode(rows(1, 0, 21))
    shared.decode(rows(0, 0, 40))
    shared.decode(rows(0, 40, 50))
    saved = shared.save(0)
    assert saved is not None
    shared.truncate(0, 0)
    shared.decode(rows(2, 0, 25))
    assert shared.load(0, saved) == 50
    logits = [shared.decode(rows(0, i, i + 1)).copy() for i in range(50, 70)]
    assert (np.concatenate(logits) == expected[50:]).all()


def test_a_window_whose_cells_are_used_again(tiny: Load, context: Make) -> None:
    """The cache of windows has 256 cells; rejected drafts move where the next tokens lie in it."""
    target = tiny("gemma3", **SETTINGS)
    expected = alone(context(target, 512), 400)
    drafting, logits, i = context(target, 512), [], 40
    logits.append(drafting.decode(rows(0, 0, 40)).copy())
    while i < 400:
        draft = [BatchRow(7, j, 0, True) for j in range(i + 1, min(i + 7, 400))]
        logits.append(drafting.decode([*rows(0, i, i + 1), *draft])[:1].copy())
        i += 1
        assert drafting.truncate(0, i) == i
    assert (np.concatenate(logits) == expected).all()
