"""What drafting has won and cost against plain decoding, and what it may still cost.

All amounts are in t(1), the time of a plain decode of one row, so a machine that slows down changes nothing.
"""

from __future__ import annotations

from specllama.core.policy.stored_values import is_number

ALLOWANCE = 3.5  # t(1), once per loaded pair; half a t(1) of the promised four is left to errors of the clock
SHARE = 0.01  # of the time of plain decoding, on top
STAKE = 0.65  # of the credit, at most, in one round
MOST = 32.0  # t(1); what was won longer ago may not be lost again
KEPT = (1.0, 5.0)  # t(1); least and most of the credit that a later process begins with
PLAIN_EVERY = 100.0  # t(1); then one plain round keeps t(1) known


class SpeculationBudget:
    """Keeps decoding within 1 % and four plain decodes of plain decoding.

    credit: what may still be lost. Only rounds that spent something on drafts move it, and the share, which
    fills it up to the allowance and no further: what a quiet day saved is not there to be lost in one answer.
    It is stored, so that the allowance is there once for a pair and not once for every answer of `run`.
    """

    def __init__(self) -> None:
        self.credit = ALLOWANCE
        self.since_plain = 0.0

    @property
    def plain_due(self) -> bool:
        """Whether it is time for a round without drafts."""
        return self.since_plain >= PLAIN_EVERY

    @property
    def stake(self) -> float:
        """What one round may lose, in t(1)."""
        return STAKE * self.credit

    def plain(self, worth: float) -> None:
        """A round without drafts; worth: its tokens at the price of plain ones, in t(1)."""
        self.since_plain = 0
        self._share(worth)

    def drafted(self, worth: float, cost: float) -> None:
        """A round that spent something on drafts; cost: what it took, in t(1)."""
        self.since_plain += cost
        self.credit = min(MOST + ALLOWANCE, self.credit + worth - cost)
        self._share(worth)

    def restore(self, credit: object) -> None:
        """Go on from the credit of an earlier process; unchanged where it is something else."""
        if is_number(credit):
            low, high = KEPT
            self.credit = max(low, min(high, float(credit)))

    def _share(self, worth: float) -> None:
        if self.credit < ALLOWANCE:
            self.credit = min(ALLOWANCE, self.credit + SHARE * worth)
