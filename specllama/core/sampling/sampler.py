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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specllama.core.image_rows import FIRST_PLACEHOLDER, without_images
from specllama.core.interfaces import DecodeError, Mask, Row, SampledToken
from specllama.core.sampling.chain import Chain, Survivors, active_steps, penalised, recent
from specllama.core.sampling.dry import Breakers
from specllama.core.sampling.infill import InfillRule
from specllama.core.sampling.native import MAX_BIASES, UNKNOWN, NativeChoice
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.rows import BlockMaxima, Ids, best_first, gumbel, keyed_best

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


NOTHING_LEGAL = -1  # the choice where grammar and forbidden ids leave no token
_MARGIN_CANDIDATES = 8  # candidates beyond top_k that a margin considers
_MARGIN_BAND = 1.0  # without top_k: logits below the last candidate that a margin considers
_INFINITE_GAP = 1e30  # larger than any difference of logits
_MIN_TEMPERATURE = 1e-200  # below it even the least difference of two logits outweighs all noise
_MAX_DEPTH = (
    20.0  # with top_k off, tokens further than this many temperatures below the best are never chosen
)


_USUAL = ("penalties", "top_k", "top_p", "min_p", "infill", "temperature")
_OFF: Mapping[str, Mapping[str, Any]] = {
    "penalties": {"repeat_last_n": 0}, "top_k": {"top_k": 0}, "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0}, "temperature": {"temperature": 1.0},
}  # fmt: skip


def _usual(params: SamplingParams, infill: InfillRule | None) -> SamplingParams | None:
    """The parameters without those of steps that are not in the chain, where the others are the most usual
    steps in their usual order; else None.
    """
    steps = active_steps(params, infill)
    in_order = [step for step in _USUAL if step in steps] == steps
    if not in_order or params.min_keep > 1 or (params.dynatemp_range > 0 and "temperature" in steps):
        return None
    off = {k: v for step in _OFF if step not in params.samplers for k, v in _OFF[step].items()}
    return replace(params, **off) if off else params


class KeyedSampler:
    """The sampling rule with the parameters and the seed of one sequence.

    forbidden: ids that are never chosen (the model's suppress_tokens, the end tokens under ignore_eos).
    n_vocab: ids at or above it are never chosen, so that a draft model with a larger vocabulary keeps to the
    target's. infill: the step of that name, None for none. barred: ids that are not chosen at positions
    below `barred_until`, where nothing else may end the text either. breakers: those of the step `dry`.
    prompt: one with images, whose ids are no tokens and are left out of histories; () for one without.
    state: shared by the samplers of one sequence; see `advance`.
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
        breakers: Breakers | None = None,
        state: list[tuple[float, ...]] | None = None,
        prompt: Sequence[int] = (),
    ) -> None:
        if infill is not None and not params.infill_sampling:
            params = replace(params, infill_sampling=True)
        usual = _usual(params, infill)
        self.params = params = usual or params
        self._chain = None if usual else Chain(params, seed, n_vocab, infill, breakers)
        self._state = state or [self._chain.start() if self._chain else ()]
        self._barred, self._barred_until, self._breakers = tuple(barred), barred_until, breakers
        self._prompt, self._text = prompt, without_images(prompt)
        self._first_image = next((i for i, t in enumerate(prompt) if t >= FIRST_PLACEHOLDER), None)
        self._early = (
            KeyedSampler(params, seed, n_vocab, [*forbidden, *barred], None, (), 0, breakers, self._state)
            if barred_until
            else None
        )
        self.infill = infill
        self.seed = seed
        self.n_vocab = n_vocab
        bias = {t: b for t, b in params.logit_bias.items() if 0 <= t < n_vocab}
        bias |= {t: -np.inf for t in forbidden if 0 <= t < n_vocab}
        self._bias_ids = np.array(sorted(bias), np.int64)
        self._bias = np.array([bias[t] for t in sorted(bias)], np.float32)
        self._forbidden = frozenset(t for t, b in bias.items() if b == -np.inf)
        # Then the choice is the argmax of the allowed tokens, whatever the history.
        self._simple = (
            self._chain is None
            and params.greedy
            and not params.penalised
            and len(self._forbidden) == len(bias)
            and infill is None
        )
        self._temperature = max(params.temperature, _MIN_TEMPERATURE)
        self._log_min_p = math.log(params.min_p) if params.min_p > 0 else -_INFINITE_GAP
        # A repeat penalty stretches differences of logits, so margins in the model's logits are smaller.
        repeat = params.repeat_penalty if params.penalised else 1.0
        self._stretch = max(repeat, 1 / repeat)
        # Then the compiled choice is that of the unchanged row.
        self._direct = usual is not None and infill is None and not (params.greedy or params.penalised)
        self._direct = self._direct and len(bias) <= MAX_BIASES
        steps = params.top_k, params.top_p, self._log_min_p, self._temperature
        self._native = NativeChoice(*steps, seed, bias if self._direct else {})

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is chosen."""
        return self.params.greedy

    @property
    def _without_infill(self) -> KeyedSampler:
        return KeyedSampler(self.params, self.seed, self.n_vocab, tuple(self._forbidden))

    def limited(self, n_vocab: int) -> KeyedSampler:
        """The same rule for a model with a vocabulary of only `n_vocab` tokens."""
        return self if n_vocab >= self.n_vocab else self.widened(n_vocab)

    def widened(self, n_vocab: int) -> KeyedSampler:
        """The same rule for a draft model with tokens that the target lacks: their ids come after its own."""
        more = self.infill, self._barred, self._barred_until, self._breakers, self._state, self._prompt
        return KeyedSampler(self.params, self.seed, n_vocab, tuple(self._forbidden), *more)

    def _text_of(self, history: Sequence[int]) -> Sequence[int]:
        """The history without images, which that of a draft model does not have."""
        i, n = self._first_image, len(self._prompt)
        if i is None or len(history) < n or history[i] < FIRST_PLACEHOLDER:
            return history
        return [*self._text, *history[n:]]

    def advance(self, choice: SampledToken) -> None:
        """The state goes on to the next position: its token was chosen so. Drafts do not change the state."""
        self._state[0] = choice.state

    def choose(
        self,
        row: Row,
        history: Sequence[int],
        margin: float = 0.0,
        mask: Mask | None = None,
        ahead: Sequence[int] = (),
    ) -> SampledToken:
        """The token after `history` and `ahead`. row: the logits there, shape (at least n_vocab,); changed in
        place during the call and restored.

        The position is the length of both. margin: how far from another choice the row should be, 0 for any
        distance; that of the choice is measured, or with other than the usual steps this one or 0. mask: the
        grammar, after it has accepted `history`. Truncation precedes the grammar: a legal choice made without
        the grammar stays the choice. Only where truncation leaves no legal token, the legal tokens alone are
        truncated. The token is NOTHING_LEGAL where none is legal. Raises DecodeError where the row has no
        finite maximum.
        """
        if self._first_image is not None:
            history = self._text_of(history)
        position = len(history) + len(ahead)
        if self._early is not None and position < self._barred_until:
            return self._early.choose(row, history, margin, mask, ahead)
        if len(row) > self.n_vocab:
            row = row[: self.n_vocab]
        if self._chain is not None:
            return self._choose_by_chain(self._chain, row, history, margin, mask, ahead)
        if self._simple and mask is None and not margin:
            best = int(row.argmax())
            if best not in self._forbidden and math.isfinite(row[best]):
                return SampledToken(best, math.inf)
        measured = margin > 0
        token = self._native.choose(row, position) if self._direct and not measured else UNKNOWN
        if token != UNKNOWN and (mask is None or mask.allows(token, ahead)):
            return SampledToken(token, math.inf)
        originals = self._adjust(row, history, ahead)
        try:
            if token == UNKNOWN:
                choice = self._choose(row, position, measured)
                if mask is None or mask.allows(choice.token, ahead):
                    return choice
            assert mask is not None  # which does not allow it
            return self._choose_legal(row, position, measured, mask.allowed(ahead)[: len(row)])
        finally:
            for ids, logits in reversed(originals):
                row[ids] = logits

    def _choose_by_chain(
        self,
        chain: Chain,
        row: Row,
        history: Sequence[int],
        margin: float,
        mask: Mask | None,
        ahead: Sequence[int],
    ) -> SampledToken:
        """`choose` with any steps. The margin is that of three changed rows: of the chosen token alone, both
        ways, and of all that were left out.
        """
        position, state = len(history) + len(ahead), self._state[0]

        def chosen(row: Row) -> tuple[int, Survivors]:
            left = self._left(chain, row, history, ahead)
            token = int(left.ids[keyed_best(self.seed, position, left.ids, left.values)])
            if mask is None or mask.allows(token, ahead):
                return token, left
            legal = self._legal(chain, left, row, history, mask.allowed(ahead)[: len(row)], ahead)
            if not len(legal.ids):
                return NOTHING_LEGAL, left
            return int(legal.ids[keyed_best(self.seed, position, legal.ids, legal.values)]), legal

        token, left = chosen(row)
        least = math.inf
        if margin > 0 and token != NOTHING_LEGAL:
            lower, higher, others = row.copy(), row.copy(), row + np.float32(margin)
            lower[token] -= margin
            higher[token] += margin
            others[left.ids] -= margin
            same = all(chosen(changed)[0] == token for changed in (lower, higher, others))
            least = margin if same else 0.0
        return SampledToken(token, least, chain.after(state, left, token))

    def _left(
        self, chain: Chain, row: Row, history: Sequence[int], ahead: Sequence[int], infill: bool = True
    ) -> Survivors:
        """What the steps leave of the row, which keeps its values."""
        row = row.astype(np.float32)
        row[self._bias_ids] += self._bias
        return chain.survivors(row, history, ahead, self._state[0], infill)

    def _legal(
        self,
        chain: Chain,
        left: Survivors,
        row: Row,
        history: Sequence[int],
        legal: NDArray[np.bool_],
        ahead: Sequence[int] = (),
    ) -> Survivors:
        """The legal ones of `left`; if there is none, what the steps leave of the legal tokens."""
        if len((some := left.among(legal)).ids):
            return some
        rest = np.full_like(row, -np.inf)
        rest[: len(legal)][legal] = row[: len(legal)][legal]
        rest[list(self._forbidden)] = -np.inf
        if rest.max() == -np.inf:
            return some
        return self._left(chain, rest, history, ahead, infill=False)

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
        """
        originals = []
        if len(self._bias_ids):
            originals.append((self._bias_ids, logits := row[self._bias_ids]))
            row[self._bias_ids] = logits + self._bias
        p = self.params
        if p.penalised:
            counts = Counter(recent(history, ahead, p.repeat_last_n))
            ids = np.fromiter((t for t in counts if t < self.n_vocab), np.int64)
            n = np.fromiter((c for t, c in counts.items() if t < self.n_vocab), np.float32)
            originals.append((ids, logits := row[ids]))
            row[ids] = penalised(logits, n, p)
        return originals

    def _sample(
        self, row: Row, position: int, margin: bool, legal: NDArray[np.bool_] | None = None
    ) -> SampledToken | None:
        """Truncate by top-k, top-p and min-p (llama.cpp's order), then Gumbel-max over the tokens left; with
        `legal` only over the legal ones, None where none is left.

        unseen: an upper bound of the logits that are not among the candidates; -inf where all are.
        """
        usual = not margin and legal is None and self.infill is None
        by_native = usual and not self._direct
        if by_native and (token := self._native.choose(row, position)) != UNKNOWN:
            return SampledToken(token, math.inf)
        maxima, top_k = BlockMaxima(row), self._top_k(row)
        top = _finite(maxima.top, position)
        floor = self._floor(top, top_k)
        if usual:
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
        history = self._text_of(history)
        if self._early is not None and len(history) < self._barred_until:
            return self._early.final_logprobs(row, history, mask, token, n)
        row = row[: self.n_vocab]
        if self._chain is not None:
            left = self._left(self._chain, row, history, ())
            if mask is not None:
                left = self._legal(self._chain, left, row, history, mask.allowed()[: len(row)])
            ids, values, temperature = left.ids, left.values.astype(np.float64), 1.0
        else:
            ids, values, temperature = *self._kept_now(row, history, mask), self._temperature
        order = np.argsort(-values, kind="stable")
        ids, scores = ids[order], (values[order] - values.max()) / temperature
        if self._chain is None and self.params.greedy:
            ids, scores = ids[:1], scores[:1]
        logprobs = scores - math.log(float(np.exp(scores).sum()))
        at = np.flatnonzero(ids == token)
        top = [(int(i), float(lp)) for i, lp in zip(ids[:n], logprobs[:n], strict=True) if lp > -math.inf]
        return float(logprobs[at[0]]) if len(at) else -math.inf, top

    def _kept_now(self, row: Row, history: Sequence[int], mask: Mask | None) -> tuple[Ids, Values]:
        """`_kept` of the row with biases and penalties, which keeps its values."""
        originals = self._adjust(row, history, ())
        try:
            return self._kept(row, len(history), mask)
        finally:
            for changed, logits in reversed(originals):
                row[changed] = logits

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
