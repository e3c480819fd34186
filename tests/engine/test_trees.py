"""Trees in the real llama.cpp: branches change neither rows nor texts, and caches stay as without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from specllama.config.load import ModelSettings
from specllama.core.interfaces import Alternative, BatchRow, Drafter, Proposal
from specllama.core.policy.fixed import Fixed
from specllama.core.policy.planner import Planner
from specllama.core.sequence import Generation, Request
from specllama.data import EMBEDDED_TARGET
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.model import ModelDrafter
from specllama.llama.batches import LimitError
from specllama.llama.context import LlamaContext, why_no_branches
from specllama.llama.library import llama
from specllama.llama.model import LlamaModel
from tests.engine.test_pair import engine_for, request
from tests.support.scripted import ScriptedDrafter

CACHES = ("f16", "q8_0", "f32")


@pytest.fixture(scope="module")
def trees(target: LlamaModel) -> Iterator[LlamaContext]:
    """A context of four slots, with branches."""
    context = LlamaContext(target, 1024, 4, n_branches=12)
    yield context
    context.close()


def rows_of(seq_id: int, pos: int, tokens: Sequence[int]) -> list[BatchRow]:
    return [BatchRow(token, pos + i, seq_id, True) for i, token in enumerate(tokens)]


def singly(context: LlamaContext, seq_id: int, pos: int, tokens: Sequence[int]) -> list[np.ndarray]:
    """The logits of tokens that are decoded one by one; they are removed again."""
    logits = [context.decode([row])[0].copy() for row in rows_of(seq_id, pos, tokens)]
    context.truncate(seq_id, pos)
    return logits


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("n_rows", [0, 16])
def test_rows_of_a_tree_are_those_of_its_paths(cache: str, n_rows: int) -> None:
    settings = ModelSettings(path=str(EMBEDDED_TARGET), n_threads=1, cache_type_k=cache, cache_type_v=cache)
    model = LlamaModel(settings)
    context = LlamaContext(model, 512, 2, n_branches=4)
    rng = np.random.default_rng(3)
    text, chain, first, second = (rng.integers(5, 4000, n).tolist() for n in (41, 6, 3, 2))
    for seq_id in (1, 0):  # the cells of another text come before and lie between
        context.decode(rows_of(seq_id, 0, text[:-1]))
    for kept in (2, 0, 3):  # rounds: tokens of the chain that were accepted
        pos, last = context.n_past(0), text[-1]
        paths = [[last, *chain], [last, *chain[:3], *first], [last, *second]]
        plain, with_first, with_second = (singly(context, 0, pos, path) for path in paths)
        branches = [rows_of(0, pos + 4, first), rows_of(0, pos + 1, second)]
        logits = context.decode(rows_of(0, pos, paths[0]), n_rows, n_rows, branches)
        expected = [*plain, *with_first[4:], *with_second[1:]]
        assert len(logits) == len(expected)
        assert all(np.array_equal(row, other) for row, other in zip(logits, expected, strict=True))
        assert context.n_past(0) == pos + len(paths[0])
        assert context.truncate(0, pos + kept) == pos + kept
        assert context.n_past(1) == len(text) - 1
    context.copy(0, 1, 10)  # branches hold no cells of texts that have ended
    context.truncate(0, 0)
    assert context.load(0, context.save(1)) == 10
    context.close()
    model.close()


def test_graphs_are_used_again_whatever_the_number_of_branches(target: LlamaModel) -> None:
    """llama.cpp prepares a decode again where its number of sequences is another one."""
    context = LlamaContext(target, 256, n_branches=3)
    context.decode(rows_of(0, 0, range(10, 30)))
    reused = {}
    for n_apart in (0, 3):
        before = llama.llama_perf_context(context.handle).n_reused
        for n in (0, 1, 2, 3, 1, 0, 3, 2):
            pos = context.n_past(0)
            branches = [rows_of(0, pos + 1, [40 + i]) for i in range(n)]
            context.decode(rows_of(0, pos, [7, 8, 9]), 12, 12, branches, n_apart)
            context.truncate(0, pos + 1)
        reused[n_apart] = llama.llama_perf_context(context.handle).n_reused - before
    assert reused[3] == 7
    assert reused[0] < 2
    context.close()


def test_branches_that_would_end_the_process_are_errors(trees: LlamaContext) -> None:
    trees.truncate(0, 0)
    batch = rows_of(0, 0, [7, 8])
    for branches in ([rows_of(0, 0, [9])], [rows_of(1, 1, [9])], [[]], [rows_of(0, 1, [9])] * 13):
        with pytest.raises(LimitError, match="branches"):
            trees.decode(batch, branches=branches)
    assert trees.n_past(0) == 0


class Guesses(ScriptedDrafter):
    """Drafts wrong tokens at every third place, with the right one as the second candidate there."""

    with_alternatives = False

    def __init__(self, texts: Mapping[tuple[int, ...], Sequence[int]], n_after: int = 2) -> None:
        super().__init__(self._guess)
        self.texts, self.n_after = texts, n_after

    def _rest(self, history: Sequence[int], draft: Sequence[int]) -> Sequence[int]:
        for prompt, text in self.texts.items():
            n = len(prompt)
            if tuple(history[:n]) == prompt and list(history[n:]) == list(text[: len(history) - n]):
                return text[len(history) - n + len(draft) :]
        return ()

    def _guess(self, history: Sequence[int], draft: Sequence[int]) -> int | None:
        rest = self._rest(history, draft)
        if not rest:
            return None
        return int(rest[0]) if (len(history) + len(draft)) % 3 else (int(rest[0]) + 1) % 4000

    def step(self, drafts: Mapping[int, Sequence[int]]) -> dict[int, Proposal]:
        assert self.with_alternatives
        proposals = {}
        for seq, proposal in super().step(drafts).items():
            rest = self._rest(self.histories[seq], drafts[seq])
            other = [int(t) for t in rest[: 1 + self.n_after]]
            if other[0] != proposal.token:
                proposal = proposal._replace(other=Alternative(other, 0.3))
            proposals[seq] = proposal
        return proposals


def decode(
    context: LlamaContext,
    model: LlamaModel,
    drafters: Sequence[Drafter],
    requests: Sequence[Request],
    n: int,
) -> list[Generation]:
    """Decode the requests together, with `n` branches a draft, and check the caches after every round."""
    for seq_id in range(context.n_seq_max):
        context.truncate(seq_id, 0)
    policy = Fixed(drafters, 4) if n else Fixed([], 0)
    engine = engine_for(model, context, policy, draft_tree=n)
    generations = [engine.submit(r) for r in requests]
    while engine.busy:
        engine.step()
        for g in engine.active:
            assert context.n_past(g.seq_id) == g.n_past <= len(g.history) - 1
    return generations


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("n_slots", [1, 4])
def test_second_candidates_give_the_same_text_in_fewer_rounds(
    target: LlamaModel, trees: LlamaContext, temperature: float, n_slots: int
) -> None:
    requests = [request(target, name, 40, temperature) for name in ("explain", "rename", "json")]
    requests.append(replace(requests[0], prompt=requests[0].prompt[:-1] + requests[2].prompt))
    requests = requests[:n_slots]
    plain = [decode(trees, target, [], [one], 0)[0] for one in requests]
    texts = {tuple(g.request.prompt): g.output for g in plain}
    generations = decode(trees, target, [Guesses(texts)], requests, 3)
    assert [g.output for g in generations] == [g.output for g in plain]
    for g in generations:
        assert g.stats.n_branch_accept > 10
        assert g.stats.n_accept + g.stats.rounds >= 39
        assert g.stats.rounds < 16


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("planned", [False, True])
def test_texts_of_the_pair_do_not_depend_on_branches(
    target: LlamaModel, draft: LlamaModel, trees: LlamaContext, temperature: float, planned: bool
) -> None:
    requests = [request(target, name, 60, temperature) for name in ("explain", "rename", "json")]
    plain = [decode(trees, target, [], [one], 0)[0].output for one in requests]
    own = LlamaContext(draft, 1024, 4)
    drafters = [CopyDrafter(), ModelDrafter(own, target.n_vocab)]
    for seq_id in range(4):
        trees.truncate(seq_id, 0)
    clock = iter(range(1, 10**9))
    policy = Planner(drafters, lambda: next(clock) * 1e-4) if planned else Fixed(drafters[::-1], 4)
    engine = engine_for(target, trees, policy, draft_tree=4)
    generations = [engine.submit(r) for r in requests]
    while engine.busy:
        engine.step()
    assert [g.output for g in generations] == plain
    assert planned or sum(g.stats.n_branch for g in generations) > 10
    own.close()


def test_which_models_have_none(
    tiny: Callable[..., LlamaModel], target: LlamaModel, trees: LlamaContext
) -> None:
    assert (why_no_branches(target), trees.n_branches) == ("", 12)
    for kind in ("jamba", "mamba", "lfm2"):
        model = tiny(kind, flash_attn="auto")
        context = LlamaContext(model, 256, n_branches=4)
        assert "state" in why_no_branches(model)
        assert context.n_branches == 0
        context.close()
    assert "windows" in why_no_branches(tiny("gemma3", flash_attn="auto", swa_full=False))
    assert why_no_branches(tiny("gemma3", flash_attn="auto")) == ""
    assert "flash" in why_no_branches(tiny("llama"))
