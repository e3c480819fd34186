"""The infill step: llama.cpp's rule, and the same text with and without drafts."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.core.engine import Engine
from specllama.core.policy.fixed import Fixed
from specllama.core.sampling.infill import InfillRule
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.sampler import KeyedSampler
from specllama.core.sequence import Request
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.model import ModelDrafter
from specllama.testing import TableContext, table_row
from tests.support.examples import examples
from tests.support.scripted import TableMask

END, OTHER_END = 0, 1


def rule_of(pieces: list[bytes]) -> InfillRule:
    return InfillRule({END, OTHER_END}, END, lambda token: pieces[token])


def survivors(pieces: list[bytes], chances: list[float]) -> list[int]:
    """Of tokens 2, 3, … with these texts; their probabilities add up to 1 with those of the ends before."""
    ids = sorted((i for i, chance in enumerate(chances) if chance), key=lambda i: -chances[i])
    values = np.log(np.array([chances[i] for i in ids]))
    return sorted(ids[i] for i in rule_of(pieces).survivors(np.array(ids), values)[0])


def reference(pieces: list[bytes], ids: list[int], p: list[float]) -> list[int]:
    """llama_sampler_infill_apply, over lists. ids: the likeliest first. Returns indices, none for the end."""
    end = [i in (END, OTHER_END) for i in ids]
    p, dead, n = list(p), [False] * len(ids), len(ids)
    p_end, p_text = sum(p[i] for i in range(n) if end[i]), sum(p[i] for i in range(n) if not end[i])
    if 3 * p_end * n > p_text:
        return [i for i in range(n) if end[i]]
    for a in range(n):
        for b in range(n):
            if dead[a]:
                break
            if a == b or dead[b] or not pieces[ids[a]] or not pieces[ids[b]].startswith(pieces[ids[a]]):
                continue
            into, gone = (b, a) if p[b] > p[a] else (a, b)
            p[into] += p[gone]
            p[gone], dead[gone] = 0.0, True
    kept = [i for i in range(n) if end[i] or p[i] >= 0.2]
    n_text = sum(not end[i] for i in kept)
    if not n_text:
        return []
    total = sum(p[i] for i in kept)
    return [i for i in kept if (end[i] or p[i] / total >= 1 / (n_text + 1)) and not dead[i]]


def test_the_example_of_llama_cpp():
    """hel 0.5, hell 0.2, hello 0.1 become hel 0.8, and what is then below 0.2 is dropped."""
    pieces = [b"", b"", b"hel", b"hell", b"hello", b"dummy"]
    assert survivors(pieces, [0, 0, 0.5, 0.2, 0.1, 0.2]) == [2]


def test_the_likelier_of_two_tokens_takes_the_share_of_the_other():
    assert survivors([b"", b"", b"a", b"ab", b"c"], [0, 0, 0.15, 0.3, 0.55]) == [3, 4]


def test_the_text_ends_where_its_end_is_likely_for_so_many_candidates():
    pieces = [b"", b"", b"a", b"b"]
    assert survivors(pieces, [0.05, 0, 0.5, 0.45]) == [0, 2, 3]  # 3 · 0.05 · 3 < 0.95
    assert survivors(pieces, [0.11, 0, 0.5, 0.39]) == [0]


def test_the_text_ends_where_no_candidate_is_likely():
    pieces = [b"", b"", *(bytes([97 + i]) for i in range(10))]
    rule, row = rule_of(pieces), np.zeros(12, np.float32)
    row[:2] = -30
    sampler = KeyedSampler(SamplingParams(top_k=12), 1, 12, infill=rule)
    assert sampler.choose(row, [5]).token == END


texts = st.lists(st.text("ab", max_size=3).map(str.encode), min_size=1, max_size=12)


@settings(max_examples=examples(300), deadline=None)
@given(texts, st.data())
def test_the_rule_is_that_of_llama_cpp(texts, data):
    pieces = [b"", b"", *texts]
    weights = data.draw(st.lists(st.integers(1, 1000), min_size=len(pieces), max_size=len(pieces)))
    weights[:2] = (w / 1000 for w in weights[:2])
    ids = sorted(range(len(pieces)), key=lambda i: -weights[i])
    values = np.log(np.array([weights[i] for i in ids]))
    kept, margin = rule_of(pieces).survivors(np.array(ids), values)
    p = np.exp(values - values[0])
    if margin > 1e-6:  # else rounding decides
        assert kept == reference(pieces, ids, (p / p.sum()).tolist())


@settings(max_examples=examples(200), deadline=None)
@given(texts, st.data())
def test_a_change_of_less_than_half_the_margin_changes_nothing(texts, data):
    pieces = [b"", b"", *texts]
    n = len(pieces)
    values = np.array(sorted(data.draw(st.lists(st.floats(-8, 0), min_size=n, max_size=n)), reverse=True))
    ids = np.array(data.draw(st.permutations(range(n))))
    kept, margin = rule_of(pieces).survivors(ids, values)
    half = min(margin, 5.0) * 0.499
    signs = data.draw(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=n, max_size=n))
    assert rule_of(pieces).survivors(ids, values + half * np.array(signs))[0] == kept


def generated(request: Request, *drafters, n_max: int = 4) -> list[int]:
    ticks = itertools.count()
    engine = Engine(
        TableContext(32, 96), Fixed(list(drafters), n_max), end_ids={0, 1}, clock=lambda: float(next(ticks))
    )
    generation = engine.submit(request)
    while engine.busy:
        engine.step()
    return generation.output


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.integers(2, 31), min_size=1, max_size=12),
    st.sampled_from([0, 0.5, 1.0]),
    st.integers(0, 2**64 - 1),
    st.integers(1, 8),
    st.booleans(),
)
def test_the_text_is_the_same_with_and_without_drafts(prompt, temperature, seed, n_max, masked):
    rule = rule_of([b"", b"", *(bytes(f"{i:b}", "ascii") for i in range(30))])
    params = SamplingParams(temperature=temperature, top_k=12, top_p=0.99, min_p=0, max_tokens=30)

    def request() -> Request:
        mask = TableMask(32, lambda _: range(2, 20)) if masked else None
        return Request(prompt, params, seed, infill=rule, mask=mask)

    expected = generated(request(), n_max=0)
    draft = TableContext(32, 96, rows=lambda ids: table_row(ids, 32) + table_row(ids, 32, 5) * 0.3)
    assert generated(request(), ModelDrafter(draft, 32), CopyDrafter(), n_max=n_max) == expected
    if masked:
        assert set(expected) <= set(range(2, 20))


def test_a_close_decision_of_the_rule_lowers_the_margin():
    pieces = [b"", b"", b"a", b"b", b"c"]
    sampler = KeyedSampler(
        SamplingParams(temperature=0, top_k=5, top_p=1, min_p=0), 1, 5, infill=rule_of(pieces)
    )
    row = np.log(np.array([1e-9, 1e-9, 0.6, 0.201, 0.199], np.float32))
    choice = sampler.choose(row, [4], margin=True)
    assert choice.token == 2
    assert 0 < choice.margin < 0.01


@pytest.mark.parametrize("max_tokens", [-2, 7])
def test_where_ends_are_ignored_the_rule_is_off(max_tokens):
    rule = rule_of([b""] * 32)
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=max_tokens > 0, top_k=30)
    output = generated(Request([5, 6], params, 1, infill=rule))
    assert len(output) == (7 if max_tokens > 0 else 94)
    assert math.isfinite(sum(output))
