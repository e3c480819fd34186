"""Choosing a token: a pure function of (logits row, parameters, seed, position, history). No RNG state.

Sampling is Gumbel-max with keyed noise: noise = -log(-log(u)), u from a counter-based hash of (seed,
position, token), so the same request chooses the same token at the same place whatever was drafted, and a
draft model that chooses with the same key agrees with the target as often as their distributions allow
(Daliri, Musco, Suresh, arXiv 2408.07978).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import DecodeError, Mask, Row, SampledToken
from specllama.core.sampling.gumbel import gumbel
from specllama.core.sampling.margin import choice_margin, truncation_slack
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.top_k import Ids, best_first, top_ids

Values = NDArray[np.float64]

NOTHING_LEGAL = -1  # a choice where the grammar and what is forbidden leave nothing
_SPARE = 8  # candidates beyond top_k that a margin looks at
_BAND = 1.0  # without top_k: logits below the last candidate that a margin looks at
_FAR = 1e30  # beyond any difference of logits
_COLDEST = 1e-200  # temperature; below it even the least difference of two logits outweighs all noise
_CUT = 20.0  # with top_k off, tokens further than _CUT temperatures below the best are never chosen


class KeyedSampler:
    """The choice rule with the parameters and seed of one sequence.

    params: what the request asked for. seed: the sequence's own. forbidden: ids never chosen (the model's
    suppress_tokens, the end tokens under ignore_eos). n_vocab: ids at or above it are never chosen, which
    is how a draft model with a larger vocabulary is held to the target's.
    """

    def __init__(
        self, params: SamplingParams, seed: int, n_vocab: int, forbidden: Sequence[int] = ()
    ) -> None:
        self.params = params
        self.seed = seed
        self.n_vocab = n_vocab
        bias = {t: b for t, b in params.logit_bias.items() if t < n_vocab}
        bias |= {t: -np.inf for t in forbidden if 0 <= t < n_vocab}
        self._bias_ids = np.array(sorted(bias), np.int64)
        self._bias = np.array([bias[t] for t in sorted(bias)], np.float32)
        self._forbidden = frozenset(t for t, b in bias.items() if b == -np.inf)
        # Then the largest of what is not forbidden is the choice, whatever was said before.
        self._simple = params.greedy and not params.penalised and len(self._forbidden) == len(bias)
        self._temperature = max(params.temperature, _COLDEST)
        self._min_p = math.log(params.min_p) if params.min_p > 0 else -_FAR
        # A repeat penalty stretches differences: the logits of the model need to change by so much less.
        repeat = params.repeat_penalty if params.penalised else 1.0
        self._gain = max(repeat, 1 / repeat)

    def limited(self, n_vocab: int) -> KeyedSampler:
        """The same rule for a model that has `n_vocab` tokens only."""
        if n_vocab >= self.n_vocab:
            return self
        return KeyedSampler(self.params, self.seed, n_vocab, tuple(self._forbidden))

    def choose(
        self,
        row: Row,
        history: Sequence[int],
        margin: bool = False,
        mask: Mask | None = None,
        ahead: Sequence[int] = (),
    ) -> SampledToken:
        """The token that follows `history` and `ahead` given its logits `row`, shape (at least n_vocab,),
        which are changed meanwhile and put back.

        The position is the length of both. With `margin` the distance to another choice is measured too.
        mask: what a grammar that has accepted `history` allows. Truncation comes first, so that a choice that
        happens to be legal is the choice; only where truncation leaves nothing legal, it is made again among
        all that is. The choice is NOTHING_LEGAL where there is none. Raises DecodeError where the row has no
        finite maximum.
        """
        if len(row) > self.n_vocab:
            row = row[: self.n_vocab]
        if self._simple and mask is None and not margin:
            best = int(row.argmax())
            if best not in self._forbidden and math.isfinite(row[best]):
                return SampledToken(best, math.inf)
        position = len(history) + len(ahead)
        replaced = self._adjust(row, history, ahead)
        try:
            choice = self._choose(row, position, margin)
            if mask is None or mask.allows(choice.token, ahead):
                return choice
            return self._choose_legal(row, position, margin, mask.allowed(ahead)[: len(row)])
        finally:
            for ids, values in reversed(replaced):
                row[ids] = values

    def _choose(self, row: Row, position: int, margin: bool) -> SampledToken:
        if not self.params.greedy:
            choice = self._sample(row, position, margin)
            assert choice is not None
            return choice
        best = int(row.argmax())
        top = _finite(float(row[best]), position)
        return SampledToken(best, (top - _second(row, best)) / self._gain if margin else math.inf)

    def _choose_legal(self, row: Row, position: int, margin: bool, legal: NDArray[np.bool_]) -> SampledToken:
        """Truncate, then choose among what is legal; where that is nothing, the other way round."""
        rest = np.full_like(row, -np.inf)
        rest[: len(legal)] = np.where(legal, row[: len(legal)], -np.inf)
        if rest.max() == -np.inf:
            return SampledToken(NOTHING_LEGAL, math.inf)
        if not self.params.greedy:
            choice = self._sample(row, position, margin, legal)
            if choice is not None:
                return choice
        return self._choose(rest, position, margin)

    def _adjust(self, row: Row, history: Sequence[int], ahead: Sequence[int]) -> list[tuple[Ids, Row]]:
        """Bias and penalties (repeat penalty as llama.cpp: divide what is positive, multiply the rest), in
        place: a copy of a row takes longer than most choices. Ids and their values before, in order.
        """
        replaced = []
        if len(self._bias_ids):
            replaced.append((self._bias_ids, x := row[self._bias_ids]))
            row[self._bias_ids] = x + self._bias
        p = self.params
        if p.penalised:
            n_looked = p.repeat_last_n if p.repeat_last_n > 0 else len(history) + len(ahead)
            counts = Counter([*history[-n_looked:], *ahead][-n_looked:])
            ids = np.fromiter((t for t in counts if t < self.n_vocab), np.int64)
            n = np.fromiter((c for t, c in counts.items() if t < self.n_vocab), np.float32)
            replaced.append((ids, x := row[ids]))
            x = np.where(x > 0, x / p.repeat_penalty, x * p.repeat_penalty)
            row[ids] = x - n * p.frequency_penalty - p.presence_penalty
        return replaced

    def _sample(
        self, row: Row, position: int, margin: bool, legal: NDArray[np.bool_] | None = None
    ) -> SampledToken | None:
        """Truncate by top-k, top-p and min-p (llama.cpp's order), then Gumbel-max over what is left and
        legal; None where that is nothing.
        """
        p = self.params
        top_k = p.top_k if p.top_k < len(row) else 0
        if top_k:
            whole = None
            ids = top_ids(row, min(top_k + _SPARE, len(row)) if margin else top_k)
            values = row[ids].astype(np.float64)
            top, below = _finite(float(values[0]), position), float(values[-1])
            if below == -math.inf:
                n = int(np.count_nonzero(values > below))
                ids, values = ids[:n], values[:n]
            elif len(ids) == len(row):
                below = -math.inf
            floor = self._floor(top, top_k)
        else:
            top = _finite(float(row.max()), position)
            floor = self._floor(top, top_k)
            whole, below = self._bounds(row, top, floor)
            below -= _BAND if margin else 0.0
            ids = np.flatnonzero(row >= np.float32(below))
            if whole is not None or margin:
                ids = best_first(row, ids)
            values = row[ids].astype(np.float64)
        kept, whole = self._truncate(values, top, top_k, floor, whole)
        if kept == 1 and not margin and legal is None:
            return SampledToken(int(ids[0]), math.inf)
        n = len(ids) if margin else kept
        scores = (values[:n] - top) / self._temperature + gumbel(self.seed, position, ids[:n])
        if legal is not None:
            known = ids[:n] < len(legal)
            scores[~known | ~legal[np.where(known, ids[:n], 0)]] = -math.inf
        best = int(scores[:kept].argmax())
        if legal is not None and scores[best] == -math.inf:
            return None
        if not margin:
            return SampledToken(int(ids[best]), math.inf)
        scores *= self._temperature
        if below > -math.inf:  # what was not looked at counts as one more candidate, with the best of scores
            values, scores = np.append(values, below), np.append(scores, math.inf)
        slack = truncation_slack(values, top_k, floor, p.top_p, whole)
        gap = choice_margin(values, scores, slack, kept, best)
        return SampledToken(int(ids[best]), gap / self._gain)

    def _floor(self, top: float, top_k: int) -> float:
        """Logits below this are never chosen: min-p, and the cut where there is no top-k; a float32 value."""
        p = self.params
        floor = top + self._min_p
        return float(np.float32(floor if top_k else max(floor, top - _CUT * p.temperature)))

    def _bounds(self, row: Row, top: float, floor: float) -> tuple[float | None, float]:
        """Without top-k: the row's mass relative to the best if top-p needs it, and a bound of the kept."""
        p = self.params
        if p.top_p == 1:
            return None, floor
        weights = np.exp(row - np.float32(top))
        whole = float(weights.sum(dtype=np.float64))
        depth = 1.0
        while top - depth > floor:
            near = row >= np.float32(top - depth)
            if weights[near].sum(dtype=np.float64) > p.top_p * whole * (1 + 1e-6):
                return whole, top - depth
            depth *= 2
        return whole, floor

    def _truncate(
        self, values: Values, top: float, top_k: int, floor: float, whole: float | None
    ) -> tuple[int, float]:
        """How many candidates survive, and the mass that top-p is a share of (1 if not needed)."""
        p = self.params
        kept = min(top_k, len(values)) if top_k else len(values)
        if p.top_p < 1:
            weights = np.exp(values[:kept] - top).cumsum()
            whole = float(weights[-1]) if whole is None else whole
            kept = min(kept, int(weights.searchsorted(p.top_p * whole)) + 1)
        if values[kept - 1] < floor:
            kept = int(np.count_nonzero(values[:kept] >= floor))
        return max(kept, 1), 1.0 if whole is None else whole


def _finite(top: float, position: int) -> float:
    if not math.isfinite(top):
        raise DecodeError(f"the model's logits at position {position} are not finite")
    return top


def _second(row: Row, best: int) -> float:
    """The largest value of `row` that is not at `best`."""
    before = row[:best].max() if best else -np.inf
    after = row[best + 1 :].max() if best + 1 < len(row) else -np.inf
    return float(max(before, after))


def probability(row: Row, token: int) -> float:
    """The token's probability in the softmax of the raw row."""
    weights = row - row.max()
    np.exp(weights, out=weights)
    return float(weights[token] / weights.sum())


def top_logprobs(row: Row, token: int, n: int) -> tuple[float, list[tuple[int, float]]]:
    """Natural-log probability of the token in the softmax of the raw row, and the n likeliest ids with
    theirs, best first.
    """
    top = float(row.max())
    log_sum = top + math.log(float(np.exp(row - np.float32(top)).sum(dtype=np.float64)))
    ids = top_ids(row, min(n, len(row))) if n else ()
    return float(row[token]) - log_sum, [(int(i), float(row[i]) - log_sum) for i in ids]


def log_softmax(row: Row) -> NDArray[np.float64]:
    """Natural-log probabilities of the raw row, same shape."""
    x = row.astype(np.float64)
    x -= x.max()
    x -= np.log(np.exp(x).sum())
    return x
