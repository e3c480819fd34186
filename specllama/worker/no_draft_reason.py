"""Whether an answer was drafted for, and if not, why: in words, with measured figures only."""

from __future__ import annotations

from dataclasses import dataclass

from specllama.core.policy.base import Policy
from specllama.core.policy.break_even import break_evens, easiest
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.planner import Planner
from specllama.core.sequence import Generation
from specllama.core.stats import OfferStats

_ENOUGH = 64  # rounds, to tell
_HARDLY = 0.03  # drafted tokens of an answer, rounds with an offer
_SEEN = 8  # tokens, for their acceptance to be spoken of


@dataclass(frozen=True, slots=True)
class DraftingVerdict:
    """reason: why an answer was not drafted for, "" where it was or was too short to tell. by_costs: it is
    because of the times of decodes and drafts.
    """

    reason: str = ""
    by_costs: bool = False


def drafting_verdict(off_reason: str, policy: Policy, g: Generation) -> DraftingVerdict:
    """Whether the answer was drafted for. off_reason: why nothing drafts since the load, "" where something
    does.
    """
    if off_reason:
        return DraftingVerdict(off_reason)
    if not g.request.speculate:
        return DraftingVerdict("not asked for")
    if g.stats.rounds < _ENOUGH or g.stats.n_drafted + g.stats.n_forced > _HARDLY * g.stats.n_predict:
        return DraftingVerdict()
    return _why(policy, g)


def _why(policy: Policy, g: Generation) -> DraftingVerdict:
    """Why next to nothing was drafted of a long answer, by a policy that had drafters."""
    model = any(d.priced for d in policy.drafters)
    tally = policy.offer_stats(g.seq_id) if isinstance(policy, Planner) else OfferStats()
    copies = tally.offered > _HARDLY * tally.rounds
    if not model and not copies:
        return DraftingVerdict(
            "there is no draft model, and the text hardly repeats anything" if policy.drafters else ""
        )
    if not isinstance(policy, Planner):
        return DraftingVerdict()
    if model and tally.asked and not tally.named:
        return DraftingVerdict("the draft model had nothing to propose")
    return DraftingVerdict(_costs(policy, tally, model), by_costs=True)


def _costs(planner: Planner, tally: OfferStats, model: bool) -> str:
    """What drafts cost here and need, and what was seen of them. model: speak of the draft model's."""
    steps, learnt = planner.learnt.steps.curve, planner.learnt.tables
    if model and steps.count(1) < DEFAULT.min_samples:
        return "asking the draft model was not expected to pay for its reading of the text"
    found = break_evens(planner.costs, steps.predict(1) if model else 0.0)
    need = easiest(found)
    if need is None:
        return "drafts were not expected to pay; what decodes of several rows take was not measured yet"
    text = f"a decode of {need.k + 1} rows takes {need.decode:.2f} x one row's here"
    if model:
        text += f" and a token of the draft model {need.step:.2f} x"
    if need.acceptance >= 1:
        return f"{text}, so that {'its drafts' if model else 'drafts'} cannot pay"
    who = "its drafts pay" if model else "a draft pays"
    text += f", {who} from an acceptance of {_percent(need.acceptance)}"
    n, right = (tally.named, tally.named_right) if model else (tally.offered, tally.offered_right)
    seen = right / n if n >= _SEEN else None
    if seen is None:
        names = [d.name for d in planner.drafters if d.priced == model and not d.forces]
        tables = [learnt[name] for name in names if learnt[name].n_seen >= _SEEN]
        seen = tables[0].rate if tables else None
    if seen is None:
        return text
    text += f"; {_percent(seen)} was seen"
    if seen >= need.acceptance:
        spent = planner.budget.max_round_loss < need.decode - 1  # no round may lose so much
        text += f", but {'drafts have lost what they may' if spent else 'no draft was sure enough to gain'}"
    return text


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
