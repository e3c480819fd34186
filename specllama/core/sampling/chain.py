"""llama.cpp's sampling steps in any order (src/llama-sampler.cpp): which tokens they leave with which logits.

A function of (row, parameters, seed, position, history, state). The state is that of Mirostat and adaptive-p,
a fold over the tokens of the text. What most requests ask for is computed by sampler.py alone, faster.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import DecodeError, Row
from specllama.core.sampling import dry
from specllama.core.sampling.infill import InfillRule
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.rows import Ids, best_first, top_ids, uniform

Values = NDArray[np.float64]
State = tuple[float, ...]
_SORTED = 2048  # candidates that are sorted at once
_COLDEST = 1e-35  # temperatures up to it take the likeliest token: the logits would overflow
_N_MIROSTAT = 100  # likeliest tokens by which Mirostat judges the distribution
_WIDTH, _PEAK, _SHARPNESS = 0.3, 5.0, 10.0  # of adaptive-p
_XTC_DRAW = np.array([-1], np.int64)  # the draw of XTC is the noise of no token


class Survivors(NamedTuple):
    """What the steps leave. ids, values: tokens and final logits, of which the choice is a softmax, same
    shape. before: their probabilities before adaptive-p, None without.
    """

    ids: Ids
    values: NDArray[np.float32]
    before: NDArray[np.float32] | None = None

    def among(self, legal: NDArray[np.bool_]) -> Survivors:
        """Those that are legal. legal: by token, of the first ones."""
        kept = self.ids < len(legal)
        kept[kept] = legal[self.ids[kept]]
        before = None if self.before is None else self.before[kept]
        return Survivors(self.ids[kept], self.values[kept], before)


def recent(history: Sequence[int], ahead: Sequence[int], n: int) -> list[int]:
    """The last n tokens of `history` and `ahead`; n = -1 for all."""
    n = n if n > 0 else len(history) + len(ahead)
    return [*history[-n:], *ahead][-n:] if ahead else [*history[-n:]]


def penalised(logits: Row, counts: NDArray[np.float32], params: SamplingParams) -> NDArray[np.float32]:
    """The logits of tokens that occurred so often, same shape. llama.cpp's repeat penalty divides positive
    logits and multiplies the others.
    """
    repeated = np.where(logits > 0, logits / params.repeat_penalty, logits * params.repeat_penalty)
    lowered: NDArray[np.float32] = repeated - counts * params.frequency_penalty - params.presence_penalty
    return lowered


class Candidates:
    """The tokens that the steps so far have left. row: logits, shape (n_vocab,); becomes theirs.

    ids: None for the whole vocabulary. values: logits, finite, float32. n_out: tokens that cannot be chosen,
    which llama.cpp keeps, with a logit of -inf, and counts. Raises DecodeError for a row without a finite
    maximum.
    """

    def __init__(self, row: Row) -> None:
        self.ids: Ids | None = None
        self.values, self.n_out = row, 0
        if not math.isfinite(row.max()):
            raise DecodeError("the model's logits are not finite")
        self._drop_impossible()

    def __len__(self) -> int:
        return len(self.values) + self.n_out

    def _keep(self, at: Ids, least: int = 0) -> None:
        """Keep those at these indices, and of the impossible ones as many as make up `least`."""
        self.ids = at if self.ids is None else self.ids[at]
        self.values = self.values[at]
        self.n_out = min(self.n_out, max(0, least - len(at)))

    def _drop_impossible(self) -> None:
        if self.values.min() == -np.inf:
            size = len(self)
            self._keep((self.values > -np.inf).nonzero()[0])
            self.n_out = size - len(self.values)

    def weights(self) -> tuple[NDArray[np.float32], float]:
        """The probability of each relative to the likeliest one's, and their sum."""
        weights = np.exp(self.values - self.values.max())
        return weights, float(weights.sum(dtype=np.float64))

    def _surprise(self) -> tuple[NDArray[np.float32], float, Values, float]:
        """`weights`, the negative log probabilities, and the entropy."""
        weights, mass = self.weights()
        costs = math.log(mass) - (self.values - self.values.max())
        return weights, mass, costs, float(np.dot(weights, costs)) / mass

    def lower(self, penalties: Mapping[int, float]) -> None:
        """Lower the logits of tokens."""
        tokens = np.fromiter(penalties, np.int64, len(penalties))
        at, which = self._places(tokens)
        with np.errstate(over="ignore"):
            lowered = np.fromiter(penalties.values(), np.float64, len(tokens)).astype(np.float32)
        self.values[at] -= lowered[which]
        self._drop_impossible()

    def _places(self, tokens: Ids) -> tuple[Ids, Ids]:
        """The indices of those of these tokens that are left, and their indices in `tokens`."""
        if self.ids is None:
            which = (tokens < len(self.values)).nonzero()[0]
            return tokens[which], which
        place = np.full(int(max(self.ids.max(), tokens.max(initial=0))) + 1, -1)
        place[self.ids] = np.arange(len(self.ids))
        at = place[tokens]
        which = (at >= 0).nonzero()[0]
        return at[which], which

    def penalties(self, params: SamplingParams, tokens: Sequence[int]) -> None:
        counts = Counter(tokens)
        at, which = self._places(np.fromiter(counts, np.int64, len(counts)))
        n = np.fromiter(counts.values(), np.float32, len(counts))[which]
        self.values[at] = penalised(self.values[at], n, params)

    def top_n_sigma(self, n: float) -> None:
        if len(self) > 1:
            size, values = len(self), self.values
            least = float(values.max()) - n * float(values.std(dtype=np.float64))
            self._keep((values >= least).nonzero()[0])
            self.n_out = size - len(self.values)

    def top_k(self, k: int) -> None:
        if k < len(self.values):
            self._keep(top_ids(self.values, k))
        else:
            self.n_out = min(self.n_out, k - len(self.values))

    def typ_p(self, share: float, least: int) -> None:
        weights, mass, costs, entropy = self._surprise()
        self._keep_share(np.abs(costs - entropy), weights, share * mass, least, True)

    def top_p(self, share: float, least: int) -> None:
        weights, mass = self.weights()
        self._keep_share(-self.values, weights, share * mass, least, False)

    def _keep_share(
        self,
        costs: NDArray[np.floating[Any]],
        weights: NDArray[np.float32],
        goal: float,
        least: int,
        more: bool,
    ) -> None:
        """Keep those of least cost whose weights together reach the goal (exceed it if `more`), and at least
        so many.
        """
        at = _reaching(costs, weights, goal, more)
        if len(at) < least:
            at = np.sort(costs.argsort(kind="stable")[:least])
        self._keep(at, least)

    def min_p(self, share: float, least: int) -> None:
        at = (self.values >= self.values.max() + np.float32(math.log(share))).nonzero()[0]
        self._keep(at if len(at) >= least else top_ids(self.values, min(least, len(self.values))), least)

    def xtc(self, threshold: float, least: int) -> None:
        """Remove the tokens that are as likely as the threshold, except the least likely of them."""
        weights, mass = self.weights()
        likely = (weights >= threshold * mass).nonzero()[0]
        if len(likely) > 1 and len(self) - len(likely) + 1 >= least:
            rest = np.ones(len(self.values), np.bool_)
            rest[best_first(self.values, likely)[:-1]] = False
            n_out = self.n_out
            self._keep(rest.nonzero()[0])
            self.n_out = n_out

    def temperature(self, temperature: float, range_: float = 0.0, exponent: float = 1.0) -> None:
        if range_ > 0:
            if len(self) < 2:
                return
            low, high = max(0.0, temperature - range_), temperature + range_
            share = max(0.0, self._surprise()[3]) / math.log(len(self))
            temperature = low + (high - low) * share**exponent
        if temperature <= _COLDEST:
            size = len(self)
            self._keep(np.array([self.values.argmax()]))
            self.n_out = size - 1
        else:
            self.values = self.values / np.float32(temperature)
            self._drop_impossible()

    def infill(self, rule: InfillRule) -> None:
        order = top_ids(self.values, len(self.values))
        self._keep(order, len(self))
        assert self.ids is not None
        kept, _ = rule.survivors(self.ids, self.values.astype(np.float64), len(self))
        if kept:
            self._keep(np.array(kept))
        else:
            self.ids, self.values, self.n_out = np.array([rule.end_id]), np.ones(1, np.float32), 0

    def mirostat(self, level: float, n_vocab: int) -> None:
        """Mirostat 1: so many of the likeliest tokens that their surprise, by Zipf's law, is `level` bits."""
        weights, mass = self.weights()
        best = top_ids(self.values, min(_N_MIROSTAT, len(self.values)))
        p = np.zeros(min(_N_MIROSTAT, len(self)))
        p[: len(best)] = weights[best] / np.float32(mass)
        ranks = np.arange(1, len(p))
        steps = np.log((ranks + 1) / ranks)
        with np.errstate(all="ignore"):
            slope = np.dot(steps, np.log(p[:-1] / p[1:])) / np.dot(steps, steps)
            excess = slope - 1
            k = (excess * np.exp2(level) / (1 - float(n_vocab) ** -excess)) ** (1 / slope)
        self.top_k(int(min(k, len(self))) if k >= 1 else 1)

    def mirostat_v2(self, level: float) -> None:
        """Mirostat 2: the tokens of at most `level` bits, or the likeliest one."""
        weights, mass = self.weights()
        at = (weights >= mass * 2.0 ** min(-level, 64.0)).nonzero()[0]
        self._keep(at if len(at) else np.array([self.values.argmax()]))

    def survivors(self) -> Survivors:
        ids = np.arange(len(self.values)) if self.ids is None else self.ids
        return Survivors(ids, self.values)


def _reaching(costs: NDArray[np.floating[Any]], weights: NDArray[np.float32], goal: float, more: bool) -> Ids:
    """Indices, ascending, of the least costs whose weights together are at least the goal, more than it if
    `more`; of all where they are not. Sorts only those about where it is reached.
    """
    rest: Ids | None = None  # all
    inside, before, share = list[Ids](), 0.0, 16
    while (n := len(costs) if rest is None else len(rest)) > _SORTED:
        theirs = costs if rest is None else costs[rest]
        sample = np.sort(theirs[:: n // 64])
        near = theirs <= sample[len(sample) // share]
        close, far = (mask.nonzero()[0] if rest is None else rest[mask] for mask in (near, ~near))
        if len(close) == n:
            break
        mass = before + float(weights[close].sum(dtype=np.float64))
        if mass > goal or (mass == goal and not more):
            rest = close
        else:
            inside, before, rest, share = [*inside, close], mass, far, 2
    rest = np.arange(len(costs)) if rest is None else rest
    order = rest[costs[rest].argsort(kind="stable")]
    sums = before + np.cumsum(weights[order], dtype=np.float64)
    n_kept = int(sums.searchsorted(goal, side="right" if more else "left")) + 1
    return np.sort(np.concatenate((*inside, order[:n_kept])))


class Chain:
    """The steps of one request. infill, breakers: see `sampler.KeyedSampler`."""

    def __init__(
        self,
        params: SamplingParams,
        seed: int,
        n_vocab: int,
        infill: InfillRule | None = None,
        breakers: dry.Breakers | None = None,
    ) -> None:
        self.params, self._seed, self._n_vocab = params, seed, n_vocab
        self._steps = active_steps(params, infill)
        self._infill, self._breakers = infill, breakers or {}

    def start(self) -> State:
        """The state at the beginning of a text."""
        p = self.params
        return (2 * p.mirostat_tau,) if p.mirostat else (p.adaptive_target / _rest(p), 1 / _rest(p))

    def survivors(
        self, row: Row, history: Sequence[int], ahead: Sequence[int], state: State, infill: bool = True
    ) -> Survivors:
        """What may follow `history` and `ahead`. row: logits with their biases, shape (n_vocab,); changed.
        infill: False leaves that step out.
        """
        p, left = self.params, Candidates(row)
        least = p.min_keep
        for step in self._steps:
            if step == "penalties":
                left.penalties(p, recent(history, ahead, p.repeat_last_n))
            elif step == "dry":
                left.lower(self._repeated(recent(history, ahead, p.dry_penalty_last_n)))
            elif step == "top_n_sigma":
                left.top_n_sigma(p.top_n_sigma)
            elif step == "top_k":
                left.top_k(p.top_k)
            elif step == "typ_p":
                left.typ_p(p.typical_p, least)
            elif step == "top_p":
                left.top_p(p.top_p, least)
            elif step == "min_p":
                left.min_p(p.min_p, least)
            elif step == "xtc":
                if uniform(self._seed, len(history) + len(ahead), _XTC_DRAW)[0] <= p.xtc_probability:
                    left.xtc(p.xtc_threshold, least)
            elif step == "temperature":
                left.temperature(p.temperature, p.dynatemp_range, p.dynatemp_exponent)
            elif step == "mirostat":
                left.temperature(p.temperature)
                (left.mirostat(state[0], self._n_vocab) if p.mirostat == 1 else left.mirostat_v2(state[0]))
            elif step == "infill" and infill and self._infill is not None:
                left.infill(self._infill)
        if "adaptive_p" in self._steps:
            return self._adapted(left, state)
        return left.survivors()

    def _repeated(self, tokens: Sequence[int]) -> Mapping[int, float]:
        p = self.params
        return dry.penalties(tokens, self._breakers, p.dry_multiplier, p.dry_base, p.dry_allowed_length)

    def _adapted(self, left: Candidates, state: State) -> Survivors:
        """Logits by the distance of the probabilities from the one that the text so far asks for."""
        weights, mass = left.weights()
        before = weights / np.float32(mass)
        goal = min(max(2 * self.params.adaptive_target - state[0] / state[1], 0.0), 1.0)
        away = np.abs(before - goal) / _WIDTH
        return Survivors(left.survivors().ids, _PEAK - _SHARPNESS * away * away / (1 + away), before)

    def after(self, state: State, left: Survivors, token: int) -> State:
        """The state after a token of `left`; the same after any other."""
        at = (left.ids == token).nonzero()[0]
        p = self.params
        if not len(at) or not (p.mirostat or left.before is not None):
            return state
        if left.before is not None:
            decay = 1 - _rest(p)
            return float(left.before[at[0]]) + decay * state[0], 1 + decay * state[1]
        values = left.values.astype(np.float64)
        log_sum = math.log(float(np.exp(values - values.max()).sum())) + float(values.max())
        bits = (log_sum - float(left.values[at[0]])) / math.log(2)
        return (state[0] - p.mirostat_eta * (bits - p.mirostat_tau),)


def _rest(params: SamplingParams) -> float:
    """What is left of 1 by the decay of adaptive-p."""
    return 1 - min(params.adaptive_decay, 0.99)


def active_steps(params: SamplingParams, infill: InfillRule | None) -> list[str]:
    """The steps that do something, in their order; "mirostat" stands for all of its own."""
    p = params
    if p.mirostat:
        return ["mirostat"]
    active = {
        "penalties": p.penalised,
        "dry": p.dry_multiplier != 0 and p.dry_penalty_last_n != 0,
        "top_n_sigma": p.top_n_sigma > 0,
        "top_k": p.top_k > 0,
        "typ_p": p.typical_p < 1,
        "top_p": p.top_p < 1,
        "min_p": p.min_p > 0,
        "xtc": p.xtc_probability > 0 and p.xtc_threshold <= 0.5,
        "temperature": p.temperature != 1 or p.dynatemp_range > 0,
        "infill": infill is not None,
        "adaptive_p": p.adaptive_target >= 0,
    }
    return [step for step in p.samplers if active[step]]
