"""Teacher forcing over table models: the output is the given ids, whatever is drafted."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specllama.core.engine import MAX_PENDING, Engine
from specllama.core.policy.fixed import Fixed
from specllama.core.policy.planner import Planner
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.sampler import KeyedSampler
from specllama.core.sequence import Request
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.model import ModelDrafter
from specllama.errors import ContextLengthError, UsageError
from specllama.testing import TableContext
from tests.support.examples import examples
from tests.support.scripted import ScriptedDrafter, TableMask
from tests.unit.core.test_engine_table import (
    END,
    MEMORIES,
    N_VOCAB,
    clock,
    engine_over,
    noisy_draft,
    params_strategy,
    prompt_strategy,
    run,
)

GREEDY = SamplingParams(temperature=0)
forced_strategy = st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=40)


class CountingRefills(TableContext):
    """Counts truncations that lost too many rows for a round, so that the prompt was prefilled again."""

    def __init__(self, *args, **named):
        super().__init__(*args, **named)
        self.lost = []  # decodes before each loss

    def truncate(self, seq_id, n_past):
        kept = super().truncate(seq_id, n_past)
        if n_past - kept >= MAX_PENDING:
            self.lost.append(len(self.widths))
        return kept

    @property
    def n_refilled(self):
        return sum(n_before < len(self.widths) for n_before in self.lost)


@settings(max_examples=examples(150), deadline=None)
@given(
    prompt_strategy,
    forced_strategy,
    params_strategy,
    st.integers(1, 16),
    st.sampled_from(MEMORIES),
    st.sampled_from(["none", "model", "copy", "both", "adaptive", "wrong", "perfect"]),
)
@example([4], [0] * 25, GREEDY, 9, "window", "wrong")
def test_the_output_is_the_forced_ids(prompt, forced, params, n_max, memory, kind):
    model = ModelDrafter(TableContext(N_VOCAB, 96, rows=noisy_draft(3)), N_VOCAB)
    drafters = {
        "none": [],
        "model": [model],
        "copy": [CopyDrafter()],
        "both": [CopyDrafter(), model],
        "adaptive": [CopyDrafter(), model],
        "wrong": [ScriptedDrafter(lambda h, d: (len(h) * 7 + len(d)) % N_VOCAB)],
        "perfect": [ScriptedDrafter(lambda h, d: [*forced, 5][min(len(h) - len(prompt), 99) + len(d)])],
    }[kind]
    policy = Planner(drafters, clock()) if kind == "adaptive" else Fixed(drafters, n_max)
    target = CountingRefills(N_VOCAB, 96, memory=memory)
    got = run(engine_over(target, policy), Request(prompt, params, 1, forced=forced))[0]
    n = min(len(forced), params.max_tokens) if params.max_tokens > 0 else len(forced)
    assert (got.output, got.finish_reason) == (forced[:n], "length")
    stats = got.stats
    assert (stats.n_predict, stats.near_ties, stats.redecided) == (n, 0, 0)
    # The first token, and those after a cache was filled again, come from no round.
    assert stats.n_accept + stats.rounds + target.n_refilled == n - 1
    assert stats.n_accept <= stats.n_drafted == sum(stats.drafted_by.values())
    if kind == "perfect":
        limit = min(n_max, target.max_rollback)
        assert stats.n_accept == stats.n_drafted == n - 1 - -(-(n - 1) // (limit + 1))


def test_choices_and_logprobs_are_those_of_plain_decoding(monkeypatch):
    chosen = []
    choose = KeyedSampler.choose

    def noted(self, row, history, *more, **named):
        choice = choose(self, row, history, *more, **named)
        chosen.append((len(history), choice.token))
        return choice

    monkeypatch.setattr(KeyedSampler, "choose", noted)
    forced = [5, 6, 7, 5, 6, 7, 5, 6, 7, 8, 5, 6]
    params = SamplingParams(temperature=0.8, logprobs=2)
    runs = []
    for policy in (Fixed([], 0), Fixed([CopyDrafter()], 4)):
        chosen.clear()
        (got,) = run(engine_over(TableContext(N_VOCAB), policy), Request([5, 6, 7], params, 9, forced=forced))
        runs.append((got.logprobs, list(chosen)))
        assert got.output == forced
    assert runs[0] == runs[1]
    assert [at for at, _ in runs[0][1]] == list(range(3, 15)), "one choice for each token, in order"
    assert [token for _, token in runs[0][1]] != forced
    free = run(engine_over(TableContext(N_VOCAB), Fixed([], 0)), Request([5, 6, 7], params, 9))[0]
    assert runs[0][1][0][1] == free.output[0]


def test_forced_end_tokens_do_not_end_the_generation():
    forced = [END, 7, END, END, 8, END]
    for drafters in ([], [ScriptedDrafter(lambda h, d: [*forced, 5][len(h) - 2 + len(d)])]):
        engine = engine_over(TableContext(N_VOCAB), Fixed(drafters, 3))
        (got,) = run(engine, Request([5, 6], GREEDY, 1, forced=forced))
        assert (got.output, got.finish_reason) == (forced, "length")


def test_near_ties_are_not_decided_again():
    engine = Engine(
        TableContext(N_VOCAB),
        Fixed([ScriptedDrafter(lambda _h, _d: 9)], 3),
        end_ids={END},
        clock=clock(),
        epsilon=1e9,
        exact=True,
    )
    (got,) = run(engine, Request([5, 6], GREEDY, 1, forced=[9, 9, 9, 4, 9, 9]))
    assert (got.stats.redecided, got.stats.near_ties, got.stats.n_accept) == (0, 0, 3)


def test_forced_and_free_generations_share_a_context():
    """Each output is as without the others, also where the shared cache is too small for all at once."""
    forced = [4 + i * 5 % 28 for i in range(40)]
    requests = [
        Request([5, 6, 7], GREEDY, 1, forced=forced),
        Request([8, 9], SamplingParams(max_tokens=40, ignore_eos=True), 2),
        Request([9, 9], GREEDY, 3, forced=forced[::-1]),
    ]
    alone = run(engine_over(TableContext(N_VOCAB), Fixed([], 0)), requests[1])[0]
    for n_ctx in (256, 72):
        draft = TableContext(N_VOCAB, n_ctx, 3, rows=noisy_draft(1))
        engine = engine_over(
            TableContext(N_VOCAB, n_ctx, 3), Fixed([CopyDrafter(), ModelDrafter(draft, N_VOCAB)], 5)
        )
        one, two, three = run(engine, *requests)
        assert (one.output, two.output, three.output) == (forced, alone.output, forced[::-1])


def test_forced_ids_may_fill_the_context_exactly():
    engine = engine_over(TableContext(N_VOCAB, 20), Fixed([ScriptedDrafter(lambda _h, _d: 9)], 4))
    (got,) = run(engine, Request([5] * 8, GREEDY, 1, forced=[9] * 12))
    assert (got.output, got.finish_reason) == ([9] * 12, "length")
    with pytest.raises(ContextLengthError, match="8 tokens, the given text 13, and the context 20"):
        engine.submit(Request([5] * 8, GREEDY, 1, forced=[9] * 13))
    limited = SamplingParams(temperature=0, max_tokens=2)
    assert run(engine, Request([5] * 8, limited, 1, forced=[9] * 99))[0].output == [9, 9]


@pytest.mark.parametrize("forced", [[], [N_VOCAB], [5, -1], [5, 6.5], ["a"], [None]])
def test_invalid_forced_ids_are_rejected(forced):
    engine = engine_over(TableContext(N_VOCAB), Fixed([], 0))
    with pytest.raises(UsageError):
        engine.submit(Request([5], GREEDY, 1, forced=forced))
    assert not engine.busy


def test_rejects_forced_ids_with_a_grammar():
    mask = TableMask(N_VOCAB, lambda _: {5})
    with pytest.raises(UsageError, match="grammar"):
        engine_over(TableContext(N_VOCAB), Fixed([], 0)).submit(
            Request([5], GREEDY, 1, mask=mask, forced=[5])
        )
