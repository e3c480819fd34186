"""Decodes that are filled up in llama.cpp: all kinds of memory go on as if nothing had been added."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from math import inf

import numpy as np
import pytest

from specllama.core.interfaces import BatchRow, Drafter
from specllama.core.policy.base import CHAINS, Draft, RoundLimits
from specllama.core.policy.fixed import Fixed
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Request
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.model import ModelDrafter
from specllama.llama.context import LlamaContext
from tests.engine.test_memory_kinds import KINDS, PROMPT, generate


class AnyWidth(Fixed):
    """The decodes of its rounds in this context are filled up to random widths; near-ties that are decided
    again are decoded by themselves.
    """

    def __init__(
        self, target: LlamaContext, monkeypatch: pytest.MonkeyPatch, drafters: Sequence[Drafter], n_max: int
    ) -> None:
        super().__init__(drafters, n_max)
        self._rng, self._more, self._decode = random.Random(1), 0, target.decode
        monkeypatch.setattr(target, "decode", self._decode_filled)

    def draft(
        self, max_draft_len: Mapping[int, int], seconds: float = inf, limits: RoundLimits = CHAINS
    ) -> dict[int, Draft]:
        self._more = self._rng.randrange(9)
        return super().draft(max_draft_len, seconds, limits)

    def _decode_filled(self, batch: Sequence[BatchRow], n_rows: int = 0, n_outputs: int = 0) -> np.ndarray:
        more, self._more = self._more if n_rows else 0, 0
        return self._decode(batch, n_rows + more, n_outputs + more)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0, 0.9])
def test_the_text_is_that_of_plain_decoding(tiny, context, monkeypatch, kind, temperature):
    request = Request(PROMPT, SamplingParams(temperature=temperature, max_tokens=120, ignore_eos=True), 5)
    target = context(tiny(kind), n_rs_seq=16)
    expected = generate(target, Fixed([], 0), request, kind)
    with monkeypatch.context() as patch:
        assert generate(target, AnyWidth(target, patch, [], 0), request, kind).output == expected.output
    drafters = [CopyDrafter(), ModelDrafter(context(tiny(kind, 0.1)), target.n_vocab)]
    got = generate(target, AnyWidth(target, monkeypatch, drafters, 5), request, kind)
    assert got.output == expected.output
    assert got.stats.n_accept > 0
    if target.can_pad:
        assert max(got.stats.round_seconds) > 6


@pytest.mark.parametrize("kind", KINDS)
def test_further_rows_change_no_later_row(tiny, context, kind):
    """The next rows are those of a cache that has never had further ones, whether or not they were cut."""
    filled, other = context(tiny(kind), n_rs_seq=16), context(tiny(kind), n_rs_seq=16)
    ids = [20 + i * 7 % 230 for i in range(40)]
    for ctx in (filled, other):
        ctx.decode([BatchRow(t, i, 0, False) for i, t in enumerate(ids)])
    n = len(ids)
    for i, fill in enumerate((1, 5, 9, 3, 16)):
        row = BatchRow(30 + i, n + i, 0, True)
        got, want = filled.decode([row], fill, fill).copy(), other.decode([row]).copy()
        assert filled.n_decoded == (fill if filled.can_pad else 1)
        assert np.abs(got - want).max() < (0.05 if kind == "gemma3" else 0.01)
        assert filled.n_past(0) == other.n_past(0) == n + i + 1
    batch = [BatchRow(40 + j, n + 5 + j, 0, True) for j in range(4)]
    filled.decode(batch, 9, 9)
    other.decode(batch)
    assert filled.truncate(0, n + 7) == other.truncate(0, n + 7)


def test_a_full_cache_is_decoded_without_further_rows(tiny, context):
    ctx = context(tiny("llama"), n_ctx=512)
    for at in range(0, 504, 56):
        ctx.decode([BatchRow(20 + i % 200, at + i, 0, False) for i in range(56)])
    rows = ctx.decode([BatchRow(30, 504 + i, 0, True) for i in range(6)], 16, 16)
    assert rows.shape[0] == ctx.n_decoded == 6
    assert ctx.n_past(0) == 510
