"""Grammars: the choice under a mask, and that drafts do not change it."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.core.interfaces import MaskError
from specllama.core.policy.base import Policy
from specllama.core.policy.fixed import Fixed
from specllama.core.policy.planner import Planner
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.proposal import top_logprobs
from specllama.core.sampling.rows import gumbel
from specllama.core.sampling.sampler import NOTHING_LEGAL, KeyedSampler
from specllama.core.sequence import Request
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.grammar import GrammarDrafter
from specllama.drafters.model import ModelDrafter
from specllama.testing import TableContext, table_row
from tests.support.examples import examples
from tests.support.scripted import ScriptedDrafter, TableMask
from tests.unit.core.test_engine_table import END, N_VOCAB, engine_over, run
from tests.unit.core.test_sampling import adjusted, random_row, truncated_softmax


def legal_after(seed: int, order: int = 2, max_legal: int = 6):
    """A random grammar: after the last `order` ids 1 to `max_legal` ids are legal, sometimes the end too."""

    def legal(output) -> set[int]:
        rng = random.Random(f"{seed}:{list(output[-order:])}")
        tokens = set(rng.sample(range(4, N_VOCAB), rng.choice([1, 1, max_legal])))
        return tokens | {END} if rng.random() < 0.1 else tokens

    return legal


params_strategy = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_k=st.sampled_from([0, 1, 3, 40]),
    top_p=st.sampled_from([0.6, 1.0]),
    min_p=st.sampled_from([0.0, 0.1]),
    repeat_penalty=st.sampled_from([1.0, 1.3]),
    max_tokens=st.integers(1, 30),
)


def reference(row, params: SamplingParams, seed: int, history, legal) -> int:
    """Truncate, then Gumbel-max over the legal tokens; if none is left, truncate the legal tokens alone."""
    values = adjusted(row, params, history)
    if params.greedy:
        return max((t for t in values if t in legal), key=lambda t: (values[t], -t))
    kept = set(truncated_softmax(row, params, history)) & legal
    if not kept:
        kept = set(truncated_softmax(row, params, history, set(range(len(row))) - legal))
    ids = np.array(sorted(kept))
    scores = np.array([values[t] for t in sorted(kept)]) / params.temperature
    return int(ids[(scores + gumbel(seed, len(history), ids)).argmax()])


@given(
    params_strategy,
    st.integers(2, 60),
    st.integers(0, 999),
    st.integers(0, 2**64 - 1),
    st.sets(st.integers(0, 59), min_size=1),
    st.lists(st.integers(0, 9), max_size=8),
)
@settings(max_examples=examples(300))
def test_the_choice_under_a_mask_is_that_of_the_reference(params, n_vocab, row_seed, seed, legal, history):
    legal = {t for t in legal if t < n_vocab} or {0}
    row, mask = random_row(n_vocab, row_seed), TableMask(n_vocab, lambda _: legal)
    sampler = KeyedSampler(params, seed, n_vocab)
    got = sampler.choose(row, history, mask=mask).token
    assert got == reference(row, params, seed, history, legal)
    assert sampler.choose(row, history, margin=True, mask=mask).token == got


@given(
    params_strategy,
    st.integers(2, 60),
    st.integers(0, 999),
    st.none() | st.sets(st.integers(0, 59), min_size=1),
    st.lists(st.integers(0, 9), max_size=8),
    st.integers(0, 60),
)
@settings(max_examples=examples(300))
def test_final_logprobs_are_of_the_distribution_that_is_chosen_from(
    params, n_vocab, row_seed, legal, history, n
):
    legal = legal and ({t for t in legal if t < n_vocab} or {0})
    row = random_row(n_vocab, row_seed)
    expected = truncated_softmax(row, params, history)
    if legal:
        kept = {t: p for t, p in expected.items() if t in legal}
        without_others = truncated_softmax(row, params, history, set(range(n_vocab)) - legal)
        expected = kept or without_others
        expected = {t: p / sum(expected.values()) for t, p in expected.items()}
    if params.greedy and legal:
        best = max(legal, key=lambda t: (adjusted(row, params, history)[t], -t))
        expected = {best: 1.0}
    before = row.copy()
    mask = TableMask(n_vocab, lambda _: legal) if legal else None
    sampler = KeyedSampler(params, 1, n_vocab)
    token = sampler.choose(row, history, mask=mask).token
    logprob, top = sampler.final_logprobs(row, history, mask, token, n)
    assert np.array_equal(row, before)
    assert logprob == pytest.approx(math.log(expected[token]), abs=1e-4)
    shares = [math.exp(value) for _, value in top]
    assert shares == pytest.approx(sorted(expected.values(), reverse=True)[:n], abs=1e-4)
    assert all(expected[t] == pytest.approx(math.exp(value), abs=1e-4) for t, value in top)


@given(
    params_strategy,
    st.integers(0, 999),
    st.integers(0, 2**32),
    st.sets(st.integers(0, 39), min_size=1, max_size=12),
)
@settings(max_examples=examples(200))
def test_margins_are_valid_under_a_mask(params, row_seed, seed, legal):
    """A change of less than half of the margin never changes a choice among the tokens kept by truncation."""
    row, mask = random_row(40, row_seed, 1.0), TableMask(40, lambda _: legal)
    sampler = KeyedSampler(params, seed, 40)
    plain = sampler.choose(row, [])
    token, margin, _ = sampler.choose(row, [], margin=True, mask=mask)
    if plain.token not in legal and not params.greedy and not set(truncated_softmax(row, params)) & legal:
        return  # here a token that enters the truncation would matter as well
    limit = min(margin, 4.0) / 2 * 0.999 - 1e-5
    if limit <= 0:
        return
    rng = np.random.default_rng(seed)
    for _ in range(8):
        other = row + rng.choice([-limit, limit], 40).astype(np.float32)
        assert sampler.choose(other, [], mask=mask).token == token


def test_forbidden_tokens_stay_forbidden_under_a_mask():
    """Where the grammar allows only forbidden tokens, none is legal."""
    mask = TableMask(8, lambda _: {3})
    for temperature in (0, 1):
        params = SamplingParams(temperature=temperature)
        assert (
            KeyedSampler(params, 1, 8, forbidden=[3]).choose(random_row(8, 1), [], mask=mask).token
            == NOTHING_LEGAL
        )
        assert KeyedSampler(params, 1, 8).choose(random_row(8, 1), [], mask=mask).token == 3


def test_a_mask_applies_to_a_draft_model_with_another_vocabulary():
    mask = TableMask(40, lambda _: {5, 35})
    sampler = KeyedSampler(SamplingParams(temperature=0.7), 1, 40)
    assert sampler.limited(30).choose(random_row(30, 1), [], mask=mask).token == 5
    assert sampler.limited(30).choose(random_row(64, 1), [], mask=mask).token == 5
    longer = TableMask(40, lambda _: {35})
    assert sampler.limited(30).choose(random_row(30, 1), [], mask=longer).token == NOTHING_LEGAL


def drafters(kind: str):
    grammar, copy = GrammarDrafter(), CopyDrafter()
    model = ModelDrafter(TableContext(N_VOCAB, rows=lambda ids: table_row(ids, N_VOCAB, order=2)), N_VOCAB)
    blind = ScriptedDrafter(lambda h, d: (h[-1] + len(d)) % N_VOCAB)
    return {
        "grammar": [grammar],
        "model": [model],
        "all": [grammar, copy, model],
        "blind": [grammar, blind],
        "copy": [grammar, copy],
    }[kind]


@pytest.mark.parametrize("kind", ["grammar", "model", "all", "blind", "copy"])
@given(
    params_strategy,
    st.integers(0, 2**64 - 1),
    st.integers(0, 99),
    st.integers(1, 9),
    st.booleans(),
    st.sampled_from(["full", "checkpoint"]),
)
@settings(max_examples=examples(60))
def test_output_with_any_drafter_is_that_of_plain_decoding(kind, params, seed, rule, n_max, adaptive, memory):
    legal = legal_after(rule)

    def generate(policy: Policy):
        request = Request([5, 6, 7], params, seed, mask=TableMask(N_VOCAB, legal))
        engine = engine_over(TableContext(N_VOCAB, memory=memory), policy)
        return run(engine, request)[0]

    expected = generate(Fixed([], 0))
    output = expected.output
    assert all(token in legal(output[:i]) for i, token in enumerate(output))
    given_ = drafters(kind)
    got = generate(Planner(given_, itertools.count().__next__) if adaptive else Fixed(given_, n_max))
    assert (got.output, got.finish_reason) == (expected.output, expected.finish_reason)


def test_forced_tokens_need_no_decodes():
    """With one legal token at three of four positions, a quarter of the decodes is enough."""
    legal = lambda out: {8, 9} if len(out) % 4 == 0 else {10 + len(out) % 4}  # noqa: E731
    target = TableContext(N_VOCAB)
    request = Request([5, 6], SamplingParams(max_tokens=41), 1, mask=TableMask(N_VOCAB, legal))
    got = run(engine_over(target, Fixed([GrammarDrafter()], 8)), request)[0]
    assert (got.stats.n_forced, got.stats.n_forced_accept) == (30, 30)
    assert (got.stats.n_drafted, got.stats.n_accept, got.stats.drafted_by["grammar"]) == (0, 0, 30)
    assert got.stats.rounds == 10


def test_forced_tokens_and_guesses_make_one_draft():
    """The model drafts at positions with a choice, between forced tokens."""
    legal = lambda out: {8, 9} if len(out) % 3 == 0 else {10 + len(out) % 3}  # noqa: E731
    model = ModelDrafter(TableContext(N_VOCAB), N_VOCAB)  # the target itself
    request = Request([5, 6], SamplingParams(max_tokens=37), 1, mask=TableMask(N_VOCAB, legal))
    got = run(engine_over(TableContext(N_VOCAB), Fixed([GrammarDrafter(), model], 8)), request)[0]
    assert got.stats.rounds == 4
    assert got.stats.drafted_by == {"grammar": 24, "model": 8}
    assert got.stats.n_accept == got.stats.n_drafted == 8


def test_a_grammar_that_has_ended_ends_the_generation():
    mask = TableMask(N_VOCAB, lambda out: {7} if len(out) < 3 else {END})
    params = SamplingParams(ignore_eos=True, max_tokens=50)
    for policy in (Fixed([], 0), Fixed([GrammarDrafter()], 4)):
        got = run(engine_over(TableContext(N_VOCAB), policy), Request([5], params, 1, mask=mask))[0]
        assert (got.output, got.finish_reason) == ([7, 7, 7], "stop")
        mask = TableMask(N_VOCAB, mask.legal_after)
    nothing = TableMask(N_VOCAB, lambda _: set())
    got = run(engine_over(TableContext(N_VOCAB), Fixed([], 0)), Request([5], params, 1, mask=nothing))[0]
    assert (got.output, got.finish_reason, got.problem) == ([], "stop", None)


@pytest.mark.parametrize("method", ["allows", "accept"])
def test_a_grammar_error_ends_only_its_own_generation(method: str):
    class Failing(TableMask):
        def allows(self, token, ahead=()):
            self._fail_in("allows")
            return super().allows(token, ahead)

        def accept(self, token):
            self._fail_in("accept")
            super().accept(token)

        def _fail_in(self, name: str) -> None:
            if name == method and len(self.output) == 4:
                raise MaskError("too many items")

    failing = Request([5], SamplingParams(max_tokens=9), 1, mask=Failing(N_VOCAB, lambda _: {7, 8}))
    other = Request([5], SamplingParams(max_tokens=9, ignore_eos=True), 1)
    first, second = run(
        engine_over(TableContext(N_VOCAB, n_seq_max=2), Fixed([GrammarDrafter()], 4)), failing, other
    )
    n_output = 5 if method == "accept" else 4
    assert (first.finish_reason, first.n_output) == ("cancel", n_output)
    assert str(first.problem) == "the grammar is too complex: too many items"
    assert (second.finish_reason, second.n_output) == ("length", 9)


@given(st.integers(0, 99), st.integers(0, 5), st.integers(0, 2**32), st.booleans())
@settings(max_examples=examples(40))
def test_logprobs_are_those_of_plain_decoding(rule, n, seed, masked):
    def generate(policy: Policy):
        mask = TableMask(N_VOCAB, legal_after(rule)) if masked else None
        params = SamplingParams(temperature=1.0, max_tokens=25, logprobs=n, logit_bias={4: 3.0})
        return run(engine_over(TableContext(N_VOCAB), policy), Request([5, 6, 7], params, seed, mask=mask))[0]

    expected, got = generate(Fixed([], 0)), generate(Fixed(drafters("all"), 5))
    assert got.logprobs == expected.logprobs
    assert len(got.logprobs) == got.n_output
    for i, (token, entry) in enumerate(zip(got.output, got.logprobs, strict=True)):
        row = table_row(got.history[: 3 + i], N_VOCAB).astype(np.float64)
        logs = row - math.log(np.exp(row).sum())
        assert entry.logprob == pytest.approx(logs[token], abs=1e-5)
        best = sorted(range(N_VOCAB), key=lambda t: -row[t])[:n]
        assert [t for t, _ in entry.top] == best
        assert [v for _, v in entry.top] == pytest.approx([logs[t] for t in best], abs=1e-5)


@given(params_strategy, st.integers(0, 99), st.integers(0, 2**32), st.booleans())
@settings(max_examples=examples(40))
def test_final_logprobs_are_those_of_plain_decoding(params, rule, seed, masked):
    params = replace(params, logprobs=3)

    def generate(policy: Policy):
        mask = TableMask(N_VOCAB, legal_after(rule)) if masked else None
        request = Request([5, 6, 7], params, seed, mask=mask, final_probs=True)
        return run(engine_over(TableContext(N_VOCAB), policy), request)[0]

    expected, got = generate(Fixed([], 0)), generate(Fixed(drafters("all"), 5))
    assert got.logprobs == expected.logprobs
    assert len(got.logprobs) == got.n_output
    assert all(-math.inf < entry.logprob <= 0 and len(entry.top) <= 3 for entry in got.logprobs)


def test_logprobs_of_extreme_rows():
    row = np.array([-np.inf, 100.0, -1e30, 100.0], np.float32)
    logprob, top = top_logprobs(row, 0, 4)
    assert logprob == -math.inf
    assert [t for t, _ in top] == [1, 3, 2, 0]
    assert top[0][1] == pytest.approx(math.log(0.5))


def test_logprobs_are_recorded_only_on_request():
    got = run(
        engine_over(TableContext(N_VOCAB), Fixed([], 0)), Request([5], SamplingParams(max_tokens=5), 1)
    )[0]
    assert got.logprobs == []
