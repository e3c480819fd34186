"""The time that drafting has gained and lost relative to plain decoding, and what it may still lose.

All amounts are in t(1), the time of a plain decode of one row, so that they do not depend on the machine's
current speed. Knows no drafters, no models and no clock.
"""

from __future__ import annotations

from specllama.core.policy.config import DEFAULT, PolicyConfig, is_number


class SpeculationBudget:
    """Limits the loss against plain decoding to four plain decodes plus 1 %.

    credit: what may still be lost. Rounds that spent time on drafts change it; `config.overhead` refills it
    up to the allowance. It is stored, so that the allowance is granted once per pair, not once per answer.
    Gains raise it by at most `max_gain`, so that old ones cannot be lost again. since_plain: time since the
    last round without drafts.
    """

    def __init__(self, config: PolicyConfig = DEFAULT) -> None:
        self.config = config
        self.credit = config.allowance
        self.since_plain = 0.0

    @property
    def plain_due(self) -> bool:
        """Whether it is time for a round without drafts."""
        return self.since_plain >= self.config.plain_every

    @property
    def max_round_loss(self) -> float:
        """What one round may lose, in t(1)."""
        return self.config.round_share * self.credit

    def plain(self, worth: float) -> None:
        """Record a round without drafts. worth: the time of its tokens in plain decoding, in t(1)."""
        self.since_plain = 0
        self._refill(worth)

    def drafted(self, worth: float, cost: float) -> None:
        """Record a round that spent time on drafts. worth: as for `plain`. cost: the time of the round, in
        t(1).
        """
        self.since_plain += cost
        self.credit = min(self.config.allowance + self.config.max_gain, self.credit + worth - cost)
        self._refill(worth)

    def restore(self, credit: object) -> None:
        """Continue from the stored credit of an earlier process; anything but a number is ignored."""
        if is_number(credit):
            low, high = self.config.stored_credit
            self.credit = max(low, min(high, float(credit)))

    def _refill(self, worth: float) -> None:
        c = self.config
        if self.credit < c.allowance:
            self.credit = min(c.allowance, self.credit + c.overhead * worth)
