"""When to use a priced drafter, a draft model or a head, and for how many tokens: the draft gate, and the
loop that drafts token by token.

A draft costs at least one step of the drafter, plus catching up with tokens missing from its cache; its
confidence decides whether to continue. Whether a draft pays is learnt from the gains of earlier ones. The
planner decides which of these tokens are verified, and priced.py which of several priced drafters is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from specllama.core.interfaces import BlockDrafting, Drafter, PaddedDrafting
from specllama.core.policy.acceptance import (
    ALONE,
    LIKELY_COPY,
    UNLIKELY_COPY,
    PairGain,
    PairState,
)
from specllama.core.policy.acceptance_table import AcceptanceTable
from specllama.core.policy.candidates import CandidateDraft, RoundBudget, best_length
from specllama.core.policy.config import DEFAULT, PolicyConfig


def gate_kind(draft: CandidateDraft, n: int, config: PolicyConfig = DEFAULT) -> int:
    """What the model competes with (ALONE, UNLIKELY_COPY, LIKELY_COPY), if without it the first `n` tokens of
    the model-free draft would be verified.
    """
    if not n or draft.forced or not config.gate_by_copy:  # the model continues after forced tokens
        return ALONE
    return LIKELY_COPY if draft.path_probs[0] > config.likely_copy else UNLIKELY_COPY


def prior_gains(
    seconds: Callable[[int], float], step: float, config: PolicyConfig = DEFAULT, head: bool = False
) -> tuple[float, float, float]:
    """The assumed gain from a priced drafter, by `gate_kind`, in t(1), before it is used for the first time.
    seconds: of a target decode of n rows. step: seconds of one token of the drafter. head: it is a trained
    head, of which even good ones are right less often than a good draft model.
    """
    t1 = seconds(1)
    if t1 <= 0:
        return 0.0, 0.0, 0.0
    best = accepted = 0.0
    chance = config.good_head_chance if head else config.good_chance
    for k in range(1, 17):
        accepted += chance**k
        best = max(best, 1 + accepted - (seconds(k + 1) + k * step) / t1)
    alone = config.good_share * min(best, config.max_prior_gain) - config.wasted_steps * step / t1
    return alone, alone / 2, alone - config.likely_copy_gain


def can_gain(
    seconds: Callable[[int], float],
    step: float,
    table: AcceptanceTable,
    next_token: AcceptanceTable,
    config: PolicyConfig = DEFAULT,
) -> bool:
    """Whether the drafter could be faster than plain decoding with first tokens as often right as so far,
    where every draft is verified from the confidence and to the length that give most. True while too few are
    known. seconds: of a target decode of n rows. step: seconds of one token of the drafter.
    """
    right, seen = table.first_tokens(len(config.chances))
    n_seen, t1, next_chance = sum(seen), seconds(1), next_token.rate
    if n_seen < config.enough_tokens or t1 <= 0:
        return True
    next_chance = config.next_chances[-1] if next_chance is None else next_chance
    for bin_ in range(len(seen)):
        verified, path = sum(seen[bin_:]) / n_seen, sum(right[bin_:]) / n_seen
        tokens = 1.0
        for k in range(1, config.lookahead + 1):
            tokens += path
            path *= next_chance
            if tokens * t1 > t1 + step + verified * (seconds(k + 1) - t1 + (k - 1) * step):
                return True
    return False


class DraftGate:
    """Decides in which rounds of one request a priced drafter is used. prior: gains assumed while the pair
    has none. head: it is a trained head, whose gains are no larger than their noise: averaged over fewer
    rounds, they give up to 7 % less in replays of its first text. can_gain: False for a drafter that cannot
    gain (see `can_gain`): it is used only in place of likely copies, and tried after `no_gain_wait` rounds,
    sooner after gains in a row.
    """

    def __init__(
        self,
        pair: PairGain,
        prior: tuple[float, float, float],
        config: PolicyConfig = DEFAULT,
        head: bool = False,
        can_gain: bool = True,
    ) -> None:
        self.pair, self.config, self._can_gain = pair, config, can_gain
        self._rate = config.head_request_rate if head else config.request_rate
        for kind, gain in enumerate(prior):
            if pair.gains[kind] is None:
                pair.gains[kind] = gain
        self.gains = [(g or 0.0) + config.optimism for g in pair.gains]
        self.times = list(pair.times)
        self._n_gains = 0  # latest drafts in a row that gained
        self._since, self._wait, self._forgone = [0, 0, 0], [config.first_wait] * 3, 0.0

    def should_draft(self, kind: int, catch_up: float, other: float = 0.0) -> bool:
        """Whether to use the drafter in this round. catch_up: the cost of catching up, in t(1). other: the
        gain of what would be used in its place.

        Ski-rental rule: catch up once the forgone gain equals its cost, since later drafts profit from it
        too. Where the drafter does not pay, it is tried again after a wait, which doubles: a slow useless
        draft costs 2 % more with equal waits.
        """
        gain, share = self.gains[kind] - other, self.config.forgone_share
        self._since[kind] += 1
        if not self._can_gain and kind != LIKELY_COPY:
            wait, pair = self.config.no_gain_wait, self.pair
            pair.n_unused = min(wait, pair.n_unused + 1)
            return pair.n_unused >= wait >> 3 * self._n_gains
        if gain <= 0:
            return self._since[kind] >= self._wait[kind]
        self._forgone += share * gain
        return self._forgone + (1 - share) * gain > catch_up

    def record_use(self, kind: int) -> None:
        """Record that the drafter is used in this round."""
        self.pair.n_unused = 0
        self._since[kind], self._forgone = 0, 0.0

    def observe(self, kind: int, gain: float, added: float) -> None:
        """Record the gain from using the drafter and the time that it added to the round, in t(1), both
        without the cost of catching up.
        """
        c, pair = self.config, self.pair
        self._n_gains = self._n_gains + 1 if gain > 0 else 0
        self.times[kind] = _moved(self.times[kind], added, self._rate)
        pair.times[kind] = _moved(pair.times[kind], added, c.pair_rate)
        self.gains[kind] = _moved(self.gains[kind], gain, self._rate)
        pair.gains[kind] = _moved(pair.gains[kind], gain, c.pair_rate)
        self._wait[kind] = c.first_wait if gain > 0 else min(c.longest_wait, 2 * self._wait[kind])


def _moved(average: float | None, value: float, rate: float) -> float:
    """The average after one more value; the first one replaces an unknown average."""
    return value if average is None else average + rate * (value - average)


class ModelDraftLoop:
    """Steps a priced drafter for several sequences together, and measures its time."""

    def __init__(self, clock: Callable[[], float], pair: PairState, config: PolicyConfig = DEFAULT) -> None:
        self.clock, self.pair, self.config = clock, pair, config
        self._kinds: dict[str, tuple[PaddedDrafting | None, bool]] = {}  # by name; looking takes 20 us

    def _kind(self, model: Drafter) -> tuple[PaddedDrafting | None, bool]:
        """(the drafter where its decodes can be filled up, whether it drafts whole blocks)."""
        if model.name not in self._kinds:
            padded = model if isinstance(model, PaddedDrafting) else None
            self._kinds[model.name] = padded, isinstance(model, BlockDrafting)
        return self._kinds[model.name]

    def extend_drafts(
        self,
        model: Drafter,
        forcing: Drafter | None,
        drafts: Mapping[int, CandidateDraft],
        limits: Mapping[int, int],
        rest: Mapping[int, tuple[int, float]],
        budget: RoundBudget,
        n_pending: int,
        t1: float,
    ) -> None:
        """Extend each draft while that may increase the round's rate, at most to its limit.

        forcing: the drafter of forced tokens, which are added without a step of the model. rest: by sequence,
        rows of the round and tokens expected from it without its own draft. n_pending: ids that the first
        step evaluates. t1: seconds of a plain decode. Adds the time to `budget.spent`.
        """
        open_, in_block = set(drafts), False
        best = dict.fromkeys(drafts, 0)  # the length with the best rate
        name, chances, state = model.name, self.pair.tables[model.name].chances, self.pair.priced[model.name]
        steps, (padded, in_blocks) = state.steps, self._kind(model)
        while open_:
            if forcing is not None:
                open_ = self._force(forcing, drafts, limits, open_)
                if not open_:
                    return
            rows = n_pending
            if padded is not None:
                padded.pad_to = steps.width(n_pending)
            begun = self.clock()
            proposals = model.step({seq: drafts[seq].tokens for seq in drafts if seq in open_})
            took = self.clock() - begun
            if padded is not None:
                rows = max(rows, padded.n_decoded)
            if not in_block:
                steps.observe(rows, took)
            budget.spent += took
            n_pending, in_block = len(open_), in_blocks
            for seq in list(open_):
                draft, proposal = drafts[seq], proposals.get(seq)
                if proposal is not None:
                    bin_ = self.pair.bin_of(name, proposal.confidence, len(draft.tokens))
                    draft.add(proposal.token, name, bin_, chances[bin_])
                    if proposal.other is not None:
                        self.pair.add_branch(draft, len(draft.tokens) - 1, name, proposal.other)
                    if len(draft.tokens) < limits[seq]:
                        best[seq], rate = best_length(draft.expected, budget, *rest[seq], best[seq])
                        step = 0.0 if in_block else steps.predict(len(open_), t1)
                        next_chance = state.next_chance(bin_)
                        if self._may_gain(draft, next_chance, rate, *rest[seq], budget, step):
                            continue
                open_.discard(seq)

    def _force(
        self,
        forcing: Drafter,
        drafts: Mapping[int, CandidateDraft],
        limits: Mapping[int, int],
        open_: set[int],
    ) -> set[int]:
        """Add the tokens that are forced next; returns the sequences that have not reached their limits."""
        forced, chance = set(open_), self.pair.tables[forcing.name].chances[0]
        while forced:
            proposals = forcing.step({seq: drafts[seq].tokens for seq in drafts if seq in forced})
            for seq, proposal in proposals.items():
                drafts[seq].add(proposal.token, forcing.name, 0, chance)
            forced = {seq for seq in proposals if len(drafts[seq].tokens) < limits[seq]}
        return {seq for seq in open_ if len(drafts[seq].tokens) < limits[seq]}

    def _may_gain(
        self,
        draft: CandidateDraft,
        next_chance: float,
        top: float,
        rows: int,
        tokens: float,
        budget: RoundBudget,
        step: float,
    ) -> bool:
        """Whether some of the next tokens could raise the round's rate above `top`, the best so far, if
        need be beyond a step of the cost curve. next_chance: of a token after an accepted last one. step:
        seconds of one more token.
        """
        n, spent, scale = rows + len(draft.tokens), budget.spent, budget.scale
        chance = 1 - self.config.risk_share * (1 - next_chance)
        path, expected = draft.path_probs[-1], tokens + draft.expected[-1]
        end = min(n + self.config.lookahead, budget.max_rows) + 1
        for q, took in enumerate(budget.seconds[n + 1 : end], 1):
            path *= chance
            expected += path
            if expected / (took * scale + spent + q * step) > top:
                return budget.allows(n + q, q * step)
        return False
