"""What is cached for a scope serves it alone: a right guess in another one costs what a wrong one does."""

from __future__ import annotations

import itertools

import pytest

from specllama.core.engine import Engine
from specllama.core.policy.fixed import Fixed
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Generation, Request
from specllama.drafters.model import ModelDrafter
from specllama.testing import Memory, TableContext

N_VOCAB = 32
TEXT = [4 + i * 7 % 25 for i in range(90)]
WRONG = [5 + i * 11 % 25 for i in range(90)]
MEMORIES: tuple[Memory, ...] = ("full", "window", "rollback", "checkpoint")


class Harness:
    """An engine with a draft model. Its caches are in `target` and `draft`."""

    def __init__(self, memory: Memory = "full", offloads: bool = False) -> None:
        ticks = itertools.count()
        self.target, self.draft = (TableContext(N_VOCAB, 900, 3, memory) for _ in range(2))
        policy = Fixed([ModelDrafter(self.draft, N_VOCAB)], 3)
        room = (lambda _: True) if offloads else None
        self.engine = Engine(self.target, policy, end_ids={3}, clock=lambda: float(next(ticks)), room=room)

    def submit(self, prompt: list[int], scope: str, n: int = 8) -> Generation:
        params = SamplingParams(temperature=1.0, max_tokens=n, ignore_eos=True)
        return self.engine.submit(Request(prompt, params, 7, cache_scope=scope))

    def run(self, prompt: list[int], scope: str, n: int = 8) -> Generation:
        generation = self.submit(prompt, scope, n)
        while generation.finish_reason is None:
            self.engine.step()
        return generation

    def cost(self, prompt: list[int], scope: str) -> tuple[int, list[int], list[int], list[int]]:
        """(reused ids, widths of the target's and of the draft's decodes, output) of a request."""
        self.target.widths.clear()
        self.draft.widths.clear()
        generation = self.run(prompt, scope)
        stats = generation.stats
        assert stats.n_evaluated == len(prompt) - stats.n_reused
        return stats.n_reused, [*self.target.widths], [*self.draft.widths], generation.output


def fresh(prompt: list[int], memory: Memory = "full") -> tuple[int, list[int], list[int], list[int]]:
    """The cost of a request where nothing is cached."""
    return Harness(memory).cost(prompt, "key 2")


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("offloads", [False, True])
def test_an_idle_cache_of_another_scope_is_not_reused(memory: Memory, offloads: bool) -> None:
    harness = Harness(memory, offloads)
    harness.run(TEXT, "key 1", 40)
    harness.run([9, 9], "key 3", 40)  # meanwhile the cache of the first is moved out, where it is
    assert harness.cost(TEXT, "key 2") == fresh(TEXT, memory)


def test_neither_is_the_cache_of_a_slot_in_use() -> None:
    harness = Harness()
    running = harness.submit(TEXT, "key 1", 200)
    while not running.prefilled:
        harness.engine.step()
    assert harness.run(TEXT, "key 2").stats.n_reused == 0
    assert harness.run([*TEXT, 9], "key 1").stats.n_reused == len(TEXT)
    assert running.finish_reason is None


def test_equal_prompts_at_once_are_shared_within_a_scope() -> None:
    harness = Harness()
    first, other, same = (harness.submit(TEXT, scope) for scope in ("key 1", "key 2", "key 1"))
    while harness.engine.busy:
        harness.engine.step()
    assert [g.stats.n_reused for g in (first, other, same)] == [0, 0, len(TEXT)]
    assert other.output == first.output == same.output
    assert sum(w for w in harness.draft.widths if w > 8) >= 2 * len(TEXT)


def test_within_a_scope_a_prefix_is_reused_as_before() -> None:
    for scope in ("", "key 1"):
        harness = Harness()
        first = harness.run(TEXT, scope)
        longer = [*first.history, 9]
        reused, target, draft, _ = harness.cost(longer, scope)
        assert reused == len(first.history) - 1
        assert max(target + draft) < 8


def test_a_slot_that_changes_scope_keeps_nothing() -> None:
    """With all slots used by one scope, the next one starts from an empty cache, the draft model's too."""
    harness = Harness()
    for prompt in (TEXT, WRONG, [8, *TEXT]):
        harness.run(prompt, "key 1", 40)
    assert harness.cost(TEXT, "key 2") == fresh(TEXT)
    assert harness.cost(WRONG, "key 2")[0] == fresh(WRONG)[0] == 0
