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
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specllama.core.margin import choice_margin, slack
from specllama.core.noise import gumbel
from specllama.core.params import SamplingParams
from specllama.core.ports import DecodeError, Mask, Row

Ids = NDArray[np.int64]
Values = NDArray[np.float64]

NOTHING_LEGAL = -1  # a choice where the grammar and what is forbidden leave nothing
_BLOCK = 64  # size of the blocks whose maxima find the top k
_SPARE = 8  # candidates beyond top_k that a margin looks at
_BAND = 1.0  # without top_k: logits below the last candidate that a margin looks at
_FEW = 512  # values up to which numpy's sort by two keys is the quicker one
_FAR = 1e30  # beyond any difference of logits
_CUT = 20.0  # with top_k off, tokens further than _CUT temperatures below the best are never chosen


class Choice(NamedTuple):
    """A chosen token; margin: logits by which the row must change for another choice (inf: not asked)."""

    token: int
    margin: float


class Chooser:
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
        self._as_is = not bias and not params.penalised
        # A repeat penalty stretches differences: the logits of the model need to change by so much less.
        repeat = params.repeat_penalty if params.penalised else 1.0
        self._gain = max(repeat, 1 / repeat)

    def limited(self, n_vocab: int) -> Chooser:
        """The same rule for a model that has `n_vocab` tokens only."""
        if n_vocab >= self.n_vocab:
            return self
        forbidden = [int(t) for t, b in zip(self._bias_ids, self._bias, strict=True) if b == -np.inf]
        return Chooser(self.params, self.seed, n_vocab, forbidden)

    def choose(
        self,
        row: Row,
        history: Sequence[int],
        margin: bool = False,
        mask: Mask | None = None,
        ahead: Sequence[int] = (),
    ) -> Choice:
        """The token that follows `history` given its logits `row`, shape (at least n_vocab,).

        The position is len(history). With `margin` the distance to another choice is measured too. mask:
        what a grammar allows behind `ahead`, the end of the history that it has not accepted yet. Truncation
        comes first, so that a choice that happens to be legal is the choice; only where truncation leaves
        nothing legal, it is made again among all that is. The choice is NOTHING_LEGAL where there is none.
        Raises DecodeError where the row has no finite maximum.
        """
        row = self._adjusted(row, history)
        choice = self._choose(row, len(history), margin)
        if mask is None or mask.allows(choice.token, ahead):
            return choice
        return self._choose_legal(row, len(history), margin, mask.allowed(ahead)[: len(row)])

    def _choose(self, row: Row, position: int, margin: bool) -> Choice:
        if not self.params.greedy:
            choice = self._sample(row, position, margin)
            assert choice is not None
            return choice
        best = int(row.argmax())
        top = _finite(float(row[best]), position)
        return Choice(best, (top - _second(row, best)) / self._gain if margin else math.inf)

    def _choose_legal(self, row: Row, position: int, margin: bool, legal: NDArray[np.bool_]) -> Choice:
        """Truncate, then choose among what is legal; where that is nothing, the other way round."""
        rest = np.full_like(row, -np.inf)
        rest[: len(legal)] = np.where(legal, row[: len(legal)], -np.inf)
        if rest.max() == -np.inf:
            return Choice(NOTHING_LEGAL, math.inf)
        if not self.params.greedy:
            choice = self._sample(row, position, margin, legal)
            if choice is not None:
                return choice
        return self._choose(rest, position, margin)

    def _adjusted(self, row: Row, history: Sequence[int]) -> Row:
        """Bias and penalties (repeat penalty as llama.cpp: divide what is positive, multiply the rest)."""
        if len(row) > self.n_vocab:
            row = row[: self.n_vocab]
        if self._as_is:
            return row
        row = row.copy()
        row[self._bias_ids] += self._bias
        p = self.params
        if p.penalised and history:
            counts = Counter(history[-p.repeat_last_n :] if p.repeat_last_n > 0 else history)
            ids = np.fromiter((t for t in counts if t < self.n_vocab), np.int64)
            n = np.fromiter((c for t, c in counts.items() if t < self.n_vocab), np.float32)
            x = row[ids]
            x = np.where(x > 0, x / p.repeat_penalty, x * p.repeat_penalty)
            row[ids] = x - n * p.frequency_penalty - p.presence_penalty
        return row

    def _sample(
        self, row: Row, position: int, margin: bool, legal: NDArray[np.bool_] | None = None
    ) -> Choice | None:
        """Truncate by top-k, top-p and min-p (llama.cpp's order), then Gumbel-max over what is left and
        legal; None where that is nothing.
        """
        p = self.params
        top_k = p.top_k if p.top_k < len(row) else 0
        if top_k:
            whole = None
            ids = top_ids(row, min(top_k + _SPARE, len(row)) if margin else top_k)
            found = row[ids]
            top = _finite(float(found.max()), position)
            lowest = float(found.min())
            below = -math.inf if len(ids) == len(row) else lowest
            if lowest == -math.inf:
                ids = ids[found > -np.inf]
            floor = self._floor(top, top_k)
        else:
            top = _finite(float(row.max()), position)
            floor = self._floor(top, top_k)
            whole, below = self._bounds(row, top, floor)
            below -= _BAND if margin else 0.0
            ids = np.flatnonzero(row >= np.float32(below))
        if top_k or whole is not None or margin:
            ids = best_first(row, ids)
        values = row[ids].astype(np.float64)
        kept, whole = self._truncate(values, top, top_k, floor, whole)
        n = len(ids) if margin else kept
        with np.errstate(over="ignore"):  # a tiny temperature leaves -inf to all but the best
            scores = (values[:n] - top) / p.temperature + gumbel(self.seed, position, ids[:n])
        if legal is not None:
            known = ids[:n] < len(legal)
            scores[~known | ~legal[np.where(known, ids[:n], 0)]] = -math.inf
        best = int(scores[:kept].argmax())
        if legal is not None and scores[best] == -math.inf:
            return None
        if not margin:
            return Choice(int(ids[best]), math.inf)
        scores *= p.temperature
        if below > -math.inf:  # what was not looked at counts as one more candidate, with the best of scores
            values, scores = np.append(values, below), np.append(scores, math.inf)
        gap = choice_margin(values, scores, slack(values, top_k, floor, p.top_p, whole), kept, best)
        return Choice(int(ids[best]), gap / self._gain)

    def _floor(self, top: float, top_k: int) -> float:
        """Logits below this are never chosen: min-p, and the cut where there is no top-k; a float32 value."""
        p = self.params
        floor = top + math.log(p.min_p) if p.min_p > 0 else -_FAR
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
            weights = np.cumsum(np.exp(values[:kept] - top))
            whole = float(weights[-1]) if whole is None else whole
            kept = min(kept, int(np.searchsorted(weights, p.top_p * whole, side="left")) + 1)
        if values[kept - 1] < floor:
            kept = int(np.searchsorted(-values[:kept], -floor, side="right"))
        return max(kept, 1), 1.0 if whole is None else whole


def top_ids(row: Row, k: int) -> Ids:
    """Ids of the k largest values of `row`, in no order; among equals at the edge the lowest ids. Exact;
    the ids of what is not a number where there is such.

    Deals the row out to blocks, finds the k blocks with the largest maxima and looks at those only: the k-th
    largest value cannot be smaller than the k-th largest maximum. Block b holds the ids b, b + n_blocks,
    b + 2 n_blocks ..., so that all maxima are taken together in memory order.
    """
    n = len(row)
    n_blocks = n // _BLOCK
    if n_blocks <= 2 * k:
        return _largest(row, np.arange(n), k) if not np.isnan(row.max()) else np.flatnonzero(np.isnan(row))
    whole = n_blocks * _BLOCK
    maxima = row[:whole].reshape(_BLOCK, n_blocks).max(axis=0)
    edges = np.partition(maxima, n_blocks - k)
    if np.isnan(edges[-1]):  # they sort last; whoever asked for the best shall see them
        return np.flatnonzero(np.isnan(row))
    edge = edges[n_blocks - k]
    blocks = np.flatnonzero(maxima >= edge)
    ids = (np.arange(_BLOCK)[:, None] * n_blocks + blocks).ravel()
    if whole < n:
        ids = np.concatenate((ids, np.arange(whole, n)))
    return _largest(row[ids], ids, k)


def best_first(row: Row, ids: Ids) -> Ids:
    """`ids` by their value in `row`, the largest first, lower ids first among equals."""
    if len(ids) < _FEW:
        return ids[np.lexsort((ids, -row[ids]))]
    bits = (row[ids] + np.float32(0)).view(np.uint32)  # + 0: no negative zeros
    keys = np.where(bits >> np.uint32(31), bits, bits ^ np.uint32(0x7FFFFFFF)).astype(np.uint64)
    keys <<= np.uint64(32)
    keys |= ids.astype(np.uint64)
    keys.sort()
    keys &= np.uint64(0xFFFFFFFF)
    return keys.astype(np.int64)


def _largest(values: Row, ids: Ids, k: int) -> Ids:
    if len(ids) <= k:
        return ids
    edge = np.partition(values, len(values) - k)[len(values) - k]
    above = ids[values > edge]
    return np.concatenate((above, ids[values == edge][: k - len(above)]))


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
    top = row.max()
    return float(np.exp(row[token] - top) / np.exp(row - top).sum())


def top_logprobs(row: Row, token: int, n: int) -> tuple[float, list[tuple[int, float]]]:
    """Natural-log probability of the token in the softmax of the raw row, and the n likeliest ids with
    theirs, best first.
    """
    top = float(row.max())
    log_sum = top + math.log(float(np.exp(row - np.float32(top)).sum(dtype=np.float64)))
    ids = best_first(row, top_ids(row, min(n, len(row)))) if n else ()
    return float(row[token]) - log_sum, [(int(i), float(row[i]) - log_sum) for i in ids]


def log_softmax(row: Row) -> NDArray[np.float64]:
    """Natural-log probabilities of the raw row, same shape."""
    x = row.astype(np.float64)
    x -= x.max()
    x -= np.log(np.exp(x).sum())
    return x
