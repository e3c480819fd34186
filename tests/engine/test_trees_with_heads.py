"""Heads and branches: the head reads the target's hidden states of tokens that were accepted in a branch."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from specllama.config.load import ModelSettings
from specllama.core.engine import Engine
from specllama.core.policy.fixed import Fixed
from specllama.llama.context import LlamaContext
from tests.engine import test_heads
from tests.engine.test_heads import N_CTX, N_SLOTS, ROLLBACK, Pair, plain, request

KINDS = ("mimo2", "eagle3", "gemma4", "dspark", "qwen35")


class TreePair(Pair):
    """With branches, where the target can hold them."""

    def _context(self) -> LlamaContext:
        n_rs_seq = ROLLBACK if self.model.has_state else 0
        return LlamaContext(self.model, N_CTX, N_SLOTS, n_rs_seq=n_rs_seq, n_branches=12)


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_is_that_of_plain_decoding(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_flash(path: Path, of: object = test_heads.settings) -> ModelSettings:
        return replace(of(path), flash_attn="auto")  # type: ignore[operator]

    monkeypatch.setattr(test_heads, "settings", with_flash)
    one = TreePair(kind, tmp_path, noise=0.3)
    assert one.target.n_branches == (0 if kind == "qwen35" else 12)
    requests = [request(seed, seed % 2 * 0.8) for seed in range(N_SLOTS)]
    expected = plain(one, *requests)
    stats = {}
    for n_tree in (0, 3):
        engine = Engine(
            one.target, Fixed([one.drafter], 3), end_ids=(), clock=time.perf_counter, draft_tree=n_tree
        )
        done = [engine.submit(r) for r in requests]
        while engine.busy:
            engine.step()
        assert [g.output for g in done] == expected
        stats[n_tree] = [sum(getattr(g.stats, name) for g in done) for name in ("rounds", "n_branch")]
        drafted = sum(g.stats.drafted_by["head"] - g.stats.n_branch for g in done)
        rounds = stats[n_tree][0]
        if kind != "gemma4":  # it reads the target's cache, which lacks tokens of branches at first
            assert drafted > 2 * rounds  # also in the rounds after an accepted branch
        assert not engine.draft_failed
    assert (stats[3][1] > 20) == (kind != "qwen35")
    one.close()
