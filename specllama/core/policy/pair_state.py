"""What is learnt of a loaded pair, over all requests: what is accepted, what asking takes, what was won."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specllama.core.policy.acceptance import AcceptanceTable
from specllama.core.policy.budget import SpeculationBudget
from specllama.core.policy.candidates import CandidateDraft
from specllama.core.policy.cost_curve import CostCurve, StepCosts
from specllama.core.policy.draft_gate import PairGain

# Chances before any was seen, by bin of confidence: of a token; of the model's token behind an accepted one.
CHANCES = (0.05, 0.15, 0.27, 0.42, 0.57, 0.72, 0.85, 0.92, 0.96, 0.98, 0.985, 0.99, 0.995)
AFTER = tuple(0.4 + 0.04 * b for b in range(len(CHANCES)))
FORCED = 0.95  # that the target spells what a grammar forces in the usual way
MODEL, GRAMMAR, MEMORY = "model", "grammar", "memory"  # drafters that are told apart by name


class PairState:
    """tables: by drafter, chances by bin of its confidence. after: chances of the model's token behind an
    accepted one, by that one's bin. steps: what the draft model takes. looks: what asking it brought. ledger:
    what drafting won, and may still lose.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.tables = {
            name: AcceptanceTable(CHANCES, weight=8, forget=0.995)
            for name in (*names, MEMORY) if name not in (MODEL, GRAMMAR)
        }  # fmt: skip
        self.tables |= {MODEL: AcceptanceTable(CHANCES), GRAMMAR: AcceptanceTable((FORCED,))}
        self.after = AcceptanceTable(AFTER)
        self.steps, self.looks, self.ledger = StepCosts(), PairGain(), SpeculationBudget()

    def score_free(self, offer: CandidateDraft, tokens: Sequence[int]) -> None:
        """Count what one drafter offered for nothing, drafted or not, as far as the text has come."""
        n, right = 0, True
        for offered, token in zip(offer.tokens, tokens, strict=False):
            n += 1
            if offered != token:
                right = False
                break
        if n:
            self.tables[offer.sources[0]].see_run(offer.bins[:n], right)

    def score_look(self, offer: CandidateDraft, tokens: Sequence[int]) -> None:
        """The same for what the draft model said."""
        before = None
        for offered, token, source, bin_ in zip(
            offer.tokens, tokens, offer.sources, offer.bins, strict=False
        ):
            if source == MODEL:
                self.tables[MODEL].see(bin_, offered == token)
                if before is not None:
                    self.after.see(before, offered == token)
            if offered != token:
                return
            before = bin_ if source == MODEL else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data to be stored."""
        return {
            "tables": {name: table.to_dict() for name, table in self.tables.items()},
            "after": self.after.to_dict(),
            "steps": self.steps.curve.to_dict(),
            "gains": list(self.looks.gains),
            "credit": self.ledger.credit,
        }

    def restore(self, data: object) -> None:
        """Go on from what `to_dict` gave; parts that are something else are left as they are."""
        if not isinstance(data, Mapping):
            return
        tables = data.get("tables")
        for name, table in self.tables.items():
            table.restore(tables.get(name) if isinstance(tables, Mapping) else None)
        self.after.restore(data.get("after"))
        self.steps.curve = CostCurve.from_dict(data.get("steps"))
        self.looks.restore(data.get("gains"))
        self.ledger.restore(data.get("credit"))
