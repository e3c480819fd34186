"""Choosing a token: a pure function of (logits row, parameters, seed, position, history). No RNG state.

Sampling is Gumbel-max (Maddison, Tarlow, Minka, arXiv 1411.0030) with keyed noise: noise =
-log(-log(u)), u from a counter-based hash of (seed, position, token). The same request therefore
chooses the same token at the same position whatever was drafted, and a draft model that samples with
the same key agrees with the target nearly as often as their distributions allow (Daliri, Musco, Suresh,
arXiv 2408.07978).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import DecodeError, Mask, Row, SampledToken
from specllama.core.sampling.infill import InfillRule
from specllama.core.sampling.params import GOLDEN, SamplingParams, splitmix64

# Keyed Gumbel noise: a pure function of (seed, position, token), without random-generator state.
#
# SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) serves as a counter-based hash; its bits become the noise.


# 0-d arrays: numpy would convert a plain number at every operation.
_GOLDEN = np.array(GOLDEN, np.uint64)
_MULT1, _MULT2 = np.array(0xBF58476D1CE4E5B9, np.uint64), np.array(0x94D049BB133111EB, np.uint64)
_S30, _S27, _S31, _S12 = (np.array(n, np.uint64) for n in (30, 27, 31, 12))
_UNIT, _HALF = np.array(2.0**-52), np.array(2.0**-53)


def gumbel(seed: int, position: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard Gumbel noise -log(-log(u)) of the tokens `ids` at `position`, same shape as `ids`; the same
    for the same seed, position and id.
    """
    key = np.array(splitmix64(seed ^ splitmix64(position)), np.uint64)
    bits = np.multiply(ids.view(np.uint64), _GOLDEN)
    np.add(bits, key, bits)
    shifted = np.right_shift(bits, _S30)
    np.bitwise_xor(bits, shifted, bits)
    np.multiply(bits, _MULT1, bits)
    np.right_shift(bits, _S27, shifted)
    np.bitwise_xor(bits, shifted, bits)
    np.multiply(bits, _MULT2, bits)
    np.right_shift(bits, _S31, shifted)
    np.bitwise_xor(bits, shifted, bits)
    np.right_shift(bits, _S12, bits)  # 52 bits: with 53, adding a half could round up to u = 1
    u: NDArray[np.float64] = np.multiply(bits, _UNIT)
    np.add(u, _HALF, u)
    for _ in range(2):
        np.log(u, u)
        np.negative(u, u)
    return u


# The margin of a choice: how much a row of logits may change without changing the chosen token.
#
# If every logit changes by less than half of the margin, the choice is certain to stay the same, whatever
# happens to the order of the other tokens and to the number that truncation keeps.


Values = NDArray[np.float64]


def truncation_slack(values: Values, top_k: int, floor: float, top_p: float, total_mass: float) -> Values:
    """By how much differences of logits must change before truncation decides otherwise, for each position of
    the sorted values; positive where the position is kept, negative where it is cut off. Shape of `values`.

    top_k: 0 for no limit. floor: logits below it are cut off. total_mass: the mass of which top_p keeps a
    share, relative to that of the best token. A change of m in differences of logits changes the odds of any
    set of tokens by a factor of at most exp(m).
    """
    slack = values - floor
    if top_p < 1:
        before = np.concatenate(((0.0,), np.cumsum(np.exp(values - values[0]))[:-1]))
        with np.errstate(divide="ignore", invalid="ignore"):
            slack = np.minimum(slack, _logit(np.asarray(top_p)) - _logit(np.minimum(before / total_mass, 1)))
    if top_k:
        slack[top_k:] = -np.inf
    slack[0] = np.inf
    return slack


def choice_margin(values: Values, scores: Values, slack: Values, n_kept: int, best: int) -> float:
    """The margin of the choice at index `best` of the sorted candidates, the first `n_kept` of which survived
    truncation.

    scores: values plus noise, in logits. slack: see `truncation_slack`. A token leaves or enters the kept set
    by moving to a position that truncation treats differently: it has to pass the values in between, and the
    decision at that position may have to change too.
    """
    slack = np.concatenate((np.maximum(slack[:n_kept], 0.0), np.minimum(slack[n_kept:], 0.0)))
    leaving = np.maximum(values[best] - values[best:], slack[best:])
    margin = float(leaving[1:].min(initial=leaving[0]))
    rivals = np.concatenate((scores[:best], scores[best + 1 : n_kept]))
    margin = min(margin, float(scores[best] - rivals.max(initial=-np.inf)))
    if n_kept < len(values):
        outside = values[n_kept:]
        # values + slack falls along the positions: the cheapest way in is next to where it meets the value.
        at = np.searchsorted(-(values + slack), -outside, side="left")
        entering = np.minimum(
            np.maximum(values[at] - outside, -slack[at]),
            np.maximum(values[at - 1] - outside, -slack[at - 1]),
        )
        margin = min(margin, float(np.maximum(entering, scores[best] - scores[n_kept:]).min()))
    return margin


def _logit(p: Values) -> Values:
    return np.log(p) - np.log1p(-p)


# The k largest values of a row of logits, exactly, without sorting the whole row.


Ids = NDArray[np.int64]

_BLOCK_SIZE, _SMALL_BLOCK_SIZE = 64, 16
_LONG_ROW = 16384  # from this length on blocks have _BLOCK_SIZE values
_COARSE = 8  # maxima of so many blocks, where there are many: the threshold is a little lower
_STABLE_SORT_LIMIT = 512  # fewer values are sorted faster by a stable sort than by unique integer keys


class BlockMaxima:
    """The maxima of a row's blocks: with them, its largest values are found in a part of the row.

    top: the largest value, NaN where the row contains one. Block b holds the ids b, b + n_blocks,
    b + 2 n_blocks ..., so that one pass in memory order computes all maxima.
    """

    def __init__(self, row: Row) -> None:
        size = _SMALL_BLOCK_SIZE if len(row) < _LONG_ROW else _BLOCK_SIZE
        self.row, n = row, len(row) // size or len(row)
        n_in_blocks = len(row) // n * n
        self._blocks, self._rest = row[:n_in_blocks].reshape(-1, n), row[n_in_blocks:]
        self._maxima = self._blocks.max(axis=0)
        if n_rest := len(self._rest):
            np.maximum(self._maxima[:n_rest], self._rest, out=self._maxima[:n_rest])
        self._best = int(self._maxima.argmax())
        self.top = float(self._maxima[self._best])

    def ids_from(self, threshold: float) -> Ids:
        """Ids of the values that are at least `threshold`, in ascending order."""
        if len(self.row) >= _LONG_ROW:
            chosen = (self._maxima >= threshold).nonzero()[0]
            if 2 * len(chosen) < len(self._maxima):
                return self._ids_in(chosen, threshold)
        return (self.row >= threshold).nonzero()[0]

    def _ids_in(self, chosen: Ids, threshold: float) -> Ids:
        """As `ids_from`, of the blocks `chosen` and the rest of the row."""
        indices = (self._blocks.take(chosen, axis=1) >= threshold).ravel().nonzero()[0]
        offsets, columns = np.divmod(indices, len(chosen))
        ids: Ids = offsets * len(self._maxima) + chosen[columns]
        if len(self._rest):
            ids = np.concatenate((ids, (self._rest >= threshold).nonzero()[0] + self._blocks.size))
        return ids

    def only_from(self, threshold: float) -> int | None:
        """The id of the only value that is at least `threshold`; None where there are several."""
        if np.count_nonzero(self._maxima >= threshold) > 1:
            return None
        block = self.row[self._best :: len(self._maxima)]
        if np.count_nonzero(block >= threshold) > 1:
            return None
        return self._best + int(block.argmax()) * len(self._maxima)

    def top_ids(self, k: int) -> Ids:
        """As the function `top_ids`: the k-th largest value is not smaller than the k-th largest maximum."""
        row = self.row
        if math.isnan(self.top):
            return np.isnan(row).nonzero()[0]
        n = len(self._maxima)
        if 2 * _COARSE * k < n:
            values = self._maxima[: n // _COARSE * _COARSE].reshape(_COARSE, -1).max(axis=0)
        else:
            values = (self._maxima if 2 * k < n else row).copy()
        values.partition(len(values) - k)
        threshold = values[len(values) - k]
        if threshold == -math.inf:
            possible = best_first(row, (row > threshold).nonzero()[0])
            return np.concatenate((possible, (row == threshold).nonzero()[0][:k]))[:k]
        return best_first(row, self.ids_from(threshold))[:k]


def top_ids(row: Row, k: int) -> Ids:
    """Ids of the k largest values of `row`, the largest first, lower ids first among equals; shape (k,). If
    the row contains NaN, the ids of the NaNs instead, so that the caller notices.
    """
    return BlockMaxima(row).top_ids(k)


def best_first(row: Row, ids: Ids) -> Ids:
    """The ids, given in ascending order, sorted by their value in `row`: the largest first, lower ids first
    among equals.
    """
    if len(ids) < _STABLE_SORT_LIMIT:
        return ids[(-row[ids]).argsort(kind="stable")]
    bits = (row[ids] + np.float32(0)).view(np.uint32)  # + 0 turns negative zeros into positive ones
    keys = np.where(bits >> np.uint32(31), bits, bits ^ np.uint32(0x7FFFFFFF)).astype(np.uint64)
    keys <<= np.uint64(32)
    keys |= ids.astype(np.uint64)
    keys.sort()
    keys &= np.uint64(0xFFFFFFFF)
    return keys.astype(np.int64)


NOTHING_LEGAL = -1  # the choice where grammar and forbidden ids leave no token
_MARGIN_CANDIDATES = 8  # candidates beyond top_k that a margin considers
_MARGIN_BAND = 1.0  # without top_k: logits below the last candidate that a margin considers
_INFINITE_GAP = 1e30  # larger than any difference of logits
_MIN_TEMPERATURE = 1e-200  # below it even the least difference of two logits outweighs all noise
_MAX_DEPTH = (
    20.0  # with top_k off, tokens further than this many temperatures below the best are never chosen
)


class KeyedSampler:
    """The sampling rule with the parameters and the seed of one sequence.

    forbidden: ids that are never chosen (the model's suppress_tokens, the end tokens under ignore_eos).
    n_vocab: ids at or above it are never chosen, so that a draft model with a larger vocabulary keeps to the
    target's. infill: the step after truncation, None for none. barred: ids that are not chosen at positions
    below `barred_until`, where nothing else may end the text either.
    """

    def __init__(
        self,
        params: SamplingParams,
        seed: int,
        n_vocab: int,
        forbidden: Sequence[int] = (),
        infill: InfillRule | None = None,
        barred: Sequence[int] = (),
        barred_until: int = 0,
    ) -> None:
        self.params = params
        self._barred, self._barred_until = tuple(barred), barred_until
        self._early = KeyedSampler(params, seed, n_vocab, [*forbidden, *barred]) if barred_until else None
        self.infill = infill
        self.seed = seed
        self.n_vocab = n_vocab
        bias = {t: b for t, b in params.logit_bias.items() if t < n_vocab}
        bias |= {t: -np.inf for t in forbidden if 0 <= t < n_vocab}
        self._bias_ids = np.array(sorted(bias), np.int64)
        self._bias = np.array([bias[t] for t in sorted(bias)], np.float32)
        self._forbidden = frozenset(t for t, b in bias.items() if b == -np.inf)
        # Then the choice is the argmax of the allowed tokens, whatever the history.
        self._simple = (
            params.greedy and not params.penalised and len(self._forbidden) == len(bias) and infill is None
        )
        self._temperature = max(params.temperature, _MIN_TEMPERATURE)
        self._log_min_p = math.log(params.min_p) if params.min_p > 0 else -_INFINITE_GAP
        # A repeat penalty stretches differences of logits, so margins in the model's logits are smaller.
        repeat = params.repeat_penalty if params.penalised else 1.0
        self._stretch = max(repeat, 1 / repeat)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is chosen."""
        return self.params.greedy

    @property
    def _without_infill(self) -> KeyedSampler:
        return KeyedSampler(self.params, self.seed, self.n_vocab, tuple(self._forbidden))

    def limited(self, n_vocab: int) -> KeyedSampler:
        """The same rule for a model with a vocabulary of only `n_vocab` tokens."""
        if n_vocab >= self.n_vocab:
            return self
        return self.widened(n_vocab)

    def widened(self, n_vocab: int) -> KeyedSampler:
        """The same rule for a draft model with tokens that the target lacks: their ids come after its own."""
        forbidden, barred = tuple(self._forbidden), (self._barred, self._barred_until)
        return KeyedSampler(self.params, self.seed, n_vocab, forbidden, self.infill, *barred)

    def choose(
        self,
        row: Row,
        history: Sequence[int],
        margin: bool = False,
        mask: Mask | None = None,
        ahead: Sequence[int] = (),
    ) -> SampledToken:
        """The token after `history` and `ahead`. row: the logits there, shape (at least n_vocab,); changed in
        place during the call and restored.

        The position is the length of both. margin: measure how far the row is from another choice. mask: the
        grammar, after it has accepted `history`. Truncation precedes the grammar: a legal choice made without
        the grammar stays the choice. Only where truncation leaves no legal token, the legal tokens alone are
        truncated. The token is NOTHING_LEGAL where none is legal. Raises DecodeError where the row has no
        finite maximum.
        """
        position = len(history) + len(ahead)
        if self._early is not None and position < self._barred_until:
            return self._early.choose(row, history, margin, mask, ahead)
        if len(row) > self.n_vocab:
            row = row[: self.n_vocab]
        if self._simple and mask is None and not margin:
            best = int(row.argmax())
            if best not in self._forbidden and math.isfinite(row[best]):
                return SampledToken(best, math.inf)
        originals = self._adjust(row, history, ahead)
        try:
            choice = self._choose(row, position, margin)
            if mask is None or mask.allows(choice.token, ahead):
                return choice
            return self._choose_legal(row, position, margin, mask.allowed(ahead)[: len(row)])
        finally:
            for ids, logits in reversed(originals):
                row[ids] = logits

    def _choose(self, row: Row, position: int, margin: bool) -> SampledToken:
        if not self.params.greedy or self.infill is not None:
            choice = self._sample(row, position, margin)
            assert choice is not None
            return choice
        best = int(row.argmax())
        top = _finite(float(row[best]), position)
        return SampledToken(best, (top - _second(row, best)) / self._stretch if margin else math.inf)

    def _choose_legal(self, row: Row, position: int, margin: bool, legal: NDArray[np.bool_]) -> SampledToken:
        """Truncate, then choose among the legal tokens; if none is left, truncate the legal ones alone."""
        legal_row = np.full_like(row, -np.inf)
        legal_row[: len(legal)] = np.where(legal, row[: len(legal)], -np.inf)
        if legal_row.max() == -np.inf:
            return SampledToken(NOTHING_LEGAL, math.inf)
        if not self.params.greedy or self.infill is not None:
            choice = self._sample(row, position, margin, legal)
            if choice is not None:
                return choice
        if self.infill is not None:  # it may demand an end that is not legal
            return self._without_infill._choose(legal_row, position, margin)
        return self._choose(legal_row, position, margin)

    def _adjust(self, row: Row, history: Sequence[int], ahead: Sequence[int]) -> list[tuple[Ids, Row]]:
        """Apply biases and penalties in place: copying a row takes longer than most choices. Returns the ids
        changed and their logits before, in order.

        The repeat penalty is llama.cpp's: it divides positive logits and multiplies the others.
        """
        originals = []
        if len(self._bias_ids):
            originals.append((self._bias_ids, logits := row[self._bias_ids]))
            row[self._bias_ids] = logits + self._bias
        p = self.params
        if p.penalised:
            window = p.repeat_last_n if p.repeat_last_n > 0 else len(history) + len(ahead)
            counts = Counter([*history[-window:], *ahead][-window:])
            ids = np.fromiter((t for t in counts if t < self.n_vocab), np.int64)
            n = np.fromiter((c for t, c in counts.items() if t < self.n_vocab), np.float32)
            originals.append((ids, logits := row[ids]))
            logits = np.where(logits > 0, logits / p.repeat_penalty, logits * p.repeat_penalty)
            row[ids] = logits - n * p.frequency_penalty - p.presence_penalty
        return originals

    def _sample(
        self, row: Row, position: int, margin: bool, legal: NDArray[np.bool_] | None = None
    ) -> SampledToken | None:
        """Truncate by top-k, top-p and min-p (llama.cpp's order), then Gumbel-max over the tokens left; with
        `legal` only over the legal ones, None where none is left.

        unseen: an upper bound of the logits that are not among the candidates; -inf where all are.
        """
        maxima, top_k = BlockMaxima(row), self._top_k(row)
        top = _finite(maxima.top, position)
        floor = self._floor(top, top_k)
        if not margin and legal is None and self.infill is None:
            only = maxima.only_from(floor)
            if only is not None:
                return SampledToken(only, math.inf)
        ids, values, mass, unseen = self._candidates(maxima, top, top_k, floor, margin)
        n_kept, mass = self._truncate(values, top, top_k, floor, mass)
        if n_kept == 1 and not margin and legal is None:
            return SampledToken(int(ids[0]), math.inf)
        if self.infill is not None:
            ids, values = ids[:n_kept], values[:n_kept]
            noise = 0.0 if self.params.greedy else self._temperature * gumbel(self.seed, position, ids)
            choice = self.infill.choose(ids, values, values + noise, legal)
            return choice and SampledToken(
                choice.token, choice.margin / self._stretch if margin else math.inf
            )
        n = len(ids) if margin else n_kept
        scores = (values[:n] - top) / self._temperature + gumbel(self.seed, position, ids[:n])
        if legal is not None:
            in_vocab = ids[:n] < len(legal)
            scores[~in_vocab | ~legal[np.where(in_vocab, ids[:n], 0)]] = -math.inf
        best = int(scores[:n_kept].argmax())
        if legal is not None and scores[best] == -math.inf:
            return None
        if not margin:
            return SampledToken(int(ids[best]), math.inf)
        scores *= self._temperature
        if unseen > -math.inf:  # the unseen logits count as one more candidate, with the highest score
            values, scores = np.append(values, unseen), np.append(scores, math.inf)
        slack = truncation_slack(values, top_k, floor, self.params.top_p, mass)
        gap = choice_margin(values, scores, slack, n_kept, best)
        return SampledToken(int(ids[best]), gap / self._stretch)

    def _candidates(
        self, maxima: BlockMaxima, top: float, top_k: int, floor: float, margin: bool
    ) -> tuple[Ids, Values, float | None, float]:
        """The tokens that truncation may keep: ids, their logits (in order where a part of them may be cut
        off), mass (see `_truncate`), and the bound `unseen`. top: the largest logit. top_k: 0 if off.
        """
        row, mass = maxima.row, None
        if top_k:
            ids = maxima.top_ids(min(top_k + _MARGIN_CANDIDATES, len(row)) if margin else top_k)
            values = row[ids].astype(np.float64)
            unseen = float(values[-1])
            if unseen == -math.inf:
                n = int(np.count_nonzero(values > unseen))
                ids, values = ids[:n], values[:n]
            elif len(ids) == len(row):
                unseen = -math.inf
        else:
            mass, unseen = self._candidate_bound(row, top, floor)
            unseen -= _MARGIN_BAND if margin else 0.0
            ids = maxima.ids_from(float(np.float32(unseen)))
            if mass is not None or margin:
                ids = best_first(row, ids)
            values = row[ids].astype(np.float64)
        return ids, values, mass, unseen

    def final_logprobs(
        self, row: Row, history: Sequence[int], mask: Mask | None, token: int, n: int
    ) -> tuple[float, list[tuple[int, float]]]:
        """As `proposal.top_logprobs`, in the distribution from which `choose` chooses, after all
        parameters and the grammar. Tokens that cannot be chosen are not among the n most likely.
        """
        if self._early is not None and len(history) < self._barred_until:
            return self._early.final_logprobs(row, history, mask, token, n)
        row = row[: self.n_vocab]
        originals = self._adjust(row, history, ())
        try:
            ids, values = self._kept(row, len(history), mask)
        finally:
            for changed, logits in reversed(originals):
                row[changed] = logits
        order = np.argsort(-values, kind="stable")
        ids, scores = ids[order], (values[order] - values.max()) / self._temperature
        if self.params.greedy:
            ids, scores = ids[:1], scores[:1]
        logprobs = scores - math.log(float(np.exp(scores).sum()))
        at = np.flatnonzero(ids == token)
        top = [(int(i), float(lp)) for i, lp in zip(ids[:n], logprobs[:n], strict=True) if lp > -math.inf]
        return float(logprobs[at[0]]) if len(at) else -math.inf, top

    def _kept(self, row: Row, position: int, mask: Mask | None) -> tuple[Ids, Values]:
        """The tokens that truncation, the infill step and the grammar leave, and their logits."""
        maxima, top_k = BlockMaxima(row), self._top_k(row)
        top = _finite(maxima.top, position)
        floor = self._floor(top, top_k)
        ids, values, mass, _ = self._candidates(maxima, top, top_k, floor, False)
        n, _ = self._truncate(values, top, top_k, floor, mass)
        ids, values = ids[:n], values[:n]
        if self.infill is not None:
            kept, _ = self.infill.survivors(ids, values)
            ids, values = (ids[kept], values[kept]) if kept else (np.array([self.infill.end_id]), np.zeros(1))
        if mask is None:
            return ids, values
        legal = np.zeros(len(row), np.bool_)
        allowed = mask.allowed()[: len(row)]
        legal[: len(allowed)] = allowed
        if not legal[ids].any():
            legal_row = np.where(legal, row, -np.inf).astype(row.dtype)
            return self._without_infill._kept(legal_row, position, None)
        return ids[legal[ids]], values[legal[ids]]

    def _top_k(self, row: Row) -> int:
        """0 where it cuts nothing off."""
        return self.params.top_k if self.params.top_k < len(row) else 0

    def _floor(self, top: float, top_k: int) -> float:
        """The logit below which no token is chosen, as a float32 value: by min-p and, without top-k, by
        _MAX_DEPTH. top: the largest logit.
        """
        p = self.params
        floor = top + self._log_min_p
        temperature = p.temperature if self.infill is None else max(1.0, p.temperature)
        return float(np.float32(floor if top_k else max(floor, top - _MAX_DEPTH * temperature)))

    def _candidate_bound(self, row: Row, top: float, floor: float) -> tuple[float | None, float]:
        """Without top-k: the row's mass relative to the best token's (None where top-p is off), and a lower
        bound of the logits that truncation keeps.
        """
        p = self.params
        if p.top_p == 1:
            return None, floor
        weights = np.exp(row - np.float32(top))
        mass = float(weights.sum(dtype=np.float64))
        depth = 1.0
        while top - depth > floor:
            above = row >= np.float32(top - depth)
            if weights[above].sum(dtype=np.float64) > p.top_p * mass * (1 + 1e-6):
                return mass, top - depth
            depth *= 2
        return mass, floor

    def _truncate(
        self, values: Values, top: float, top_k: int, floor: float, mass: float | None
    ) -> tuple[int, float]:
        """How many of the sorted candidates are kept, and the mass of which top-p keeps a share (1 where
        top-p is off). mass: None for that of the first top_k candidates.
        """
        p = self.params
        n_kept = min(top_k, len(values)) if top_k else len(values)
        if p.top_p < 1:
            weights = np.exp(values[:n_kept] - top).cumsum()
            mass = float(weights[-1]) if mass is None else mass
            n_kept = min(n_kept, int(weights.searchsorted(p.top_p * mass)) + 1)
        if values[n_kept - 1] < floor:
            n_kept = int(np.count_nonzero(values[:n_kept] >= floor))
        return max(n_kept, 1), 1.0 if mass is None else mass


def _finite(top: float, position: int) -> float:
    if not math.isfinite(top):
        raise DecodeError(f"the model's logits at position {position} are not finite")
    return top


def _second(row: Row, best: int) -> float:
    """The largest value of `row` other than the one at index `best`."""
    before = row[:best].max() if best else -np.inf
    after = row[best + 1 :].max() if best + 1 < len(row) else -np.inf
    return float(max(before, after))
