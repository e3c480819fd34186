"""What drafting has won and cost against plain decoding, and what it may still cost.

All amounts are in t(1), the time of a plain decode of one row, so a machine that slows down changes nothing.
"""

from __future__ import annotations

from specllama.core.stored import is_number

ALLOWANCE = 3.4  # t(1), once per loaded pair
LOAN = 0.5  # t(1), at most, on top for copies; the rest of the promised four is left to errors of the clock
LOAN_RATE, LOAN_UP_TO = 0.1, 2.0  # of what copies not made would have won; credit above which none is given
SHARE = 0.01  # of the time of plain decoding, on top
STAKE = 0.65  # of the credit, at most, in one round
MOST = 32.0  # t(1); what was won longer ago may not be lost again
KEPT = (1.0, 5.0)  # t(1); least and most of the credit that a later process begins with
PLAIN_EVERY = 100.0  # t(1); then one plain round keeps t(1) known


class Ledger:
    """Keeps decoding within 1 % and four plain decodes of plain decoding.

    credit: what may still be lost. Rounds that spent something on drafts move it, and the share, which fills
    it up to the allowance and no further: what a quiet day saved is not there to be lost in one answer. It is
    stored, so that the allowance is there once for a pair and not once for every answer of `run`.
    lent: a part of the credit, for drafts that cost nothing to ask for, because such drafts would have paid;
    else one bad beginning would shut out the best copies until the share has paid for the next one. What
    drafting wins pays it back.
    """

    def __init__(self) -> None:
        self.credit = ALLOWANCE
        self.lent = 0.0
        self.since_plain = 0.0

    @property
    def own(self) -> float:
        """The credit without what was lent."""
        return self.credit - self.lent

    @property
    def plain_due(self) -> bool:
        """Whether it is time for a round without drafts."""
        return self.since_plain >= PLAIN_EVERY

    @property
    def stake(self) -> float:
        """What one round may lose, in t(1)."""
        return STAKE * self.credit

    @property
    def look_stake(self) -> float:
        """What one round that asks the draft model may lose, in t(1)."""
        return STAKE * self.own

    def plain(self, worth: float) -> None:
        """A round without drafts; worth: its tokens at the price of plain ones, in t(1)."""
        self.since_plain = 0
        self._share(worth)

    def drafted(self, worth: float, cost: float) -> None:
        """A round that spent something on drafts; cost: what it took, in t(1)."""
        self.since_plain += cost
        own, self.lent = self.own + worth - cost, self.lent - max(0.0, min(self.lent, worth - cost))
        self.credit = min(MOST + ALLOWANCE, own + self.lent)
        self._share(worth)

    @property
    def lends(self) -> bool:
        """Whether there is so little that more is lent."""
        return self.credit < LOAN_UP_TO

    def missed(self, won: float) -> None:
        """A draft that was not made would have won so much (lost, where negative), in t(1)."""
        if self.lends:
            lent = max(0.0, min(LOAN, self.lent + LOAN_RATE * won))
            self.credit += lent - self.lent
            self.lent = lent

    def restore(self, credit: object) -> None:
        """Go on from the credit of an earlier process; unchanged where it is something else."""
        if is_number(credit):
            low, high = KEPT
            self.credit = max(low, min(high, float(credit)))

    def _share(self, worth: float) -> None:
        if self.own < ALLOWANCE:
            self.credit = min(ALLOWANCE + self.lent, self.credit + SHARE * worth)
