"""Why nothing was drafted for an answer, in words and with measured figures only; and what a draft of another
vocabulary gains for its target, stored for later choices by `-md auto`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specllama.client.tune_messages import MeasuredDraft
from specllama.config.store import Store
from specllama.core.policy.base import Policy
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.fixed import Fixed
from specllama.core.policy.planner import Planner
from specllama.core.replay.break_even import break_evens, easiest
from specllama.core.sequence import Generation
from specllama.core.stats import FREE, OfferStats
from specllama.drafters import MODEL, REGISTRY
from specllama.errors import option
from specllama.gguf.header import Header, identity
from specllama.worker.loader import Loaded

if TYPE_CHECKING:
    from specllama.models.foreign_drafts import Source

_MIN_ROUNDS = 64  # of an answer, to judge it
_TOO_SHORT = 16  # rounds; costs decide little in fewer
_FEW = 0.03  # share of drafted tokens in an answer, or of rounds with a candidate draft
_MIN_TOKENS = 8  # drafted, to report their acceptance


@dataclass(frozen=True, slots=True)
class DraftingVerdict:
    """reason: why nothing was drafted for an answer, or next to nothing for a long one; "" if something was;
    after a semicolon the figures behind it. by_costs: the reason is the time that decodes and
    drafts take in a long answer.
    """

    reason: str = ""
    by_costs: bool = False


def drafting_verdict(off_reason: str, policy: Policy, g: Generation) -> DraftingVerdict:
    """Why nothing was drafted for an answer. off_reason: of the load, "" if something drafts."""
    if off_reason:
        return DraftingVerdict(off_reason)
    if not g.request.speculate:
        return DraftingVerdict("off for this request")
    drafted, is_long = g.stats.n_drafted + g.stats.n_forced, g.stats.rounds >= _MIN_ROUNDS
    if drafted and (not is_long or drafted > _FEW * g.stats.n_predict):
        return DraftingVerdict()
    if not g.stats.rounds:
        ended = "no token was generated" if not g.stats.n_predict else "the answer is a single token"
        return DraftingVerdict(ended)
    verdict = _why(policy, g)
    if verdict.by_costs and g.stats.rounds < _TOO_SHORT:
        return DraftingVerdict("the answer was too short to try drafts")
    return verdict if is_long else DraftingVerdict(verdict.reason or "the answer was short")


def _why(policy: Policy, g: Generation) -> DraftingVerdict:
    """Why a policy that has drafters drafted almost nothing for a long answer."""
    stats = policy.offer_stats(g.seq_id) if isinstance(policy, Planner) else OfferStats()
    models = [d.name for d in policy.drafters if d.runs_model]
    name = max(models, key=lambda name: stats.used[name], default="")
    model = REGISTRY[name].noun if name else ""
    copies, drafted = stats.drafted[FREE] > _FEW * stats.rounds, any(stats.drafted[name] for name in models)
    if not model and not copies:
        return DraftingVerdict("there is no draft model, and the text hardly repeats anything")
    if not drafted and (crowded := _without_room(policy, len(g.history))):
        return DraftingVerdict(crowded)
    if not isinstance(policy, Planner):
        return DraftingVerdict(_left_out(policy, g) or "the drafters had nothing to propose")
    if model and stats.used[name] and not drafted:
        return DraftingVerdict(f"the {model} had nothing to propose")
    return DraftingVerdict(_costs(policy, stats, name, model), by_costs=True)


def _without_room(policy: Policy, n_tokens: int) -> str:
    """That the text no longer fits into the context of the draft model or head, "" if it does."""
    for drafter in policy.drafters:
        holder = getattr(drafter, "context", None) or getattr(drafter, "head", None)
        n_ctx = getattr(holder, "n_ctx", n_tokens)
        if drafter.runs_model and n_ctx < n_tokens:
            noun = REGISTRY[drafter.name].noun
            return f"the context of the {noun}, {n_ctx} tokens, is smaller than the text, {n_tokens} tokens"
    return ""


def _left_out(policy: Policy, g: Generation) -> str:
    """That drafts were left out because of the settings of a fixed length, "" if there were none."""
    if not isinstance(policy, Fixed) or not g.stats.n_discarded:
        return ""
    limits = []
    if policy.p_min > 0:
        limits.append(f"less probable than {option('draft_p_min')} {policy.p_min:g}")
    if policy.n_min > 1:
        limits.append(f"shorter than {option('draft_min')} {policy.n_min}")
    return f"all drafts were {' or '.join(limits)}" if limits else ""


def _costs(planner: Planner, stats: OfferStats, name: str, model: str) -> str:
    """The cost of drafts, the acceptance at which they pay, and the one seen. name, model: name and noun of
    the drafter whose drafts are meant, "" for copied ones.
    """
    learnt = planner.learnt.tables
    steps = planner.learnt.models[name].steps.curve if name else CostCurve()
    if model and steps.count(1) < DEFAULT.min_samples:
        return f"reading the text with the {model} was expected to take longer than its drafts would save"
    limits = break_evens(planner.costs, steps.predict(1) if model else 0.0)
    need = easiest(limits)
    if need is None:
        return "drafts were not expected to pay, though decodes of several rows were not timed yet"
    costs = f"a decode of {need.k + 1} rows takes {need.decode:.2f} x one row's here"
    if model:
        costs += f", a token of the {model} {need.step:.2f} x"
    if need.acceptance >= 1:
        return f"drafts cannot pay{f' with this {model}' if model else ''}; {costs}"
    least, whose = _percent(need.acceptance), f"the tokens of the {model}" if model else "copied tokens"
    n = stats.drafted[name or FREE]
    seen = stats.right[name or FREE] / n if n >= _MIN_TOKENS else None
    if seen is None:
        names = [name] if name else [d.name for d in planner.drafters if not (d.runs_model or d.forces)]
        tables = [learnt[name] for name in names if learnt[name].n_seen >= _MIN_TOKENS]
        seen = tables[0].rate if tables else None
    if seen is None:
        return f"drafts were not expected to pay, as {least} of {whose} have to be right; {costs}"
    right_ones = f"{_percent(seen)} of {whose} were right and {least} have to be"
    if seen < need.acceptance:
        return f"drafts would not have paid, as {right_ones}; {costs}"
    spent = planner.budget.max_round_loss < need.decode - 1
    why = "earlier drafts had cost too much time" if spent else "no draft was confident enough"
    return f"{why}, although {right_ones}; {costs}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def store_tuned(
    loaded: Loaded, draft: Header, measured: MeasuredDraft, copying: Sequence[MeasuredDraft]
) -> None:
    """Store what `tune` predicts for a draft. copying: the same without one, empty if copying is off."""
    if measured.forecast is None or measured.forecast.speedup is None or not loaded.settings.calibrate:
        return
    without = [one.forecast.speedup for one in copying if one.forecast is not None]
    need = easiest(measured.break_even)
    base = round(max([1.0, *(one for one in without if one is not None)]), 4)
    speedup, needed = measured.forecast.speedup, need.acceptance if need is not None else None
    figures = base, measured.forecast.tokens, measured.forecast.acceptance, needed
    _store(loaded, draft, "tune", speedup, *figures)


def store_answers(loaded: Loaded) -> None:
    """Store what the answers since the load say about a draft of another vocabulary, with those that were
    stored for the pair before. Nothing is stored without enough of them.
    """
    draft, planner = loaded.draft, loaded.profile.planner
    if draft is None or draft.translation is None or planner is None or not loaded.settings.calibrate:
        return
    speedup = planner.expected_speedup(MODEL.name)
    if speedup is None:
        return
    table = planner.learnt.tables[MODEL.name]
    _store(loaded, draft.header, "answers", speedup, 1.0, round(table.n_seen), table.rate)


def _store(loaded: Loaded, draft: Header, source: Source, speedup: float, *more: Any) -> None:
    """Store a figure among those of the target, next to its profile."""
    from specllama.models.foreign_drafts import FOLDER, DraftRecord, MeasuredDrafts

    record = DraftRecord(os.path.abspath(draft.path), identity(draft), source, round(speedup, 4), *more)
    MeasuredDrafts(loaded.header, Store(loaded.profile.store.root.with_name(FOLDER))).put(record)
