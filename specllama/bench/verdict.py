"""What the figures come to, in words: what auto gained, where it loses, and why, where nothing can pay."""

from __future__ import annotations

from specllama.bench.intervals import Estimate
from specllama.bench.samples import AUTO, PLAIN
from specllama.bench.summary import BenchSummary, SummaryRow

_CLEAR = 0.02  # a loss below this is not worth a word
_MOST_NAMED = 4


def verdict(s: BenchSummary, off: str = "") -> str:
    """A sentence or a few. off: why nothing could be drafted at all."""
    if off:
        return f"Only plain decoding was measured: {off}."
    total = s.total
    auto = total.cells.get(AUTO)
    speedup = auto.speedup if auto else None
    if speedup is None or total.best is None:
        return "Too little was measured to compare drafting with plain decoding."
    parts = [f"auto decoded at {times(speedup)} plain decoding's speed"]
    if (against := total.auto_against_best) is not None and total.best != PLAIN:
        best = total.cells[total.best].speedup
        assert best is not None
        name = f"{total.best} ({best.value:.2f} x)"
        parts.append(f"at {times(against)} that of the best fixed length in hindsight, {name}")
    elif not nothing_pays(s):
        parts.append("no fixed length was faster than plain decoding")
    text = " and ".join(parts)
    if losing := [row for row in s.rows if row.workload and _loses(row)]:
        text += f"; it loses on {_named(losing)}"
    if missing := [row for row in s.rows if row.workload and _leaves(row) and row not in losing]:
        text += f"; more was to be had on {_named(missing, best=True)}"
    text = text[0].upper() + text[1:] + "."
    if nothing_pays(s):
        text += f" {why(s)}"
    elif not _certain(s):
        text += " None is faster than plain decoding for sure: more --runs or prompts narrow the intervals."
    return text


def nothing_pays(s: BenchSummary) -> bool:
    """Whether no way of drafting was faster than plain decoding, over all workloads."""
    speedups = _speedups(s)
    return bool(speedups) and all(e.value <= 1 for e in speedups)


def _certain(s: BenchSummary) -> bool:
    """Whether some way of drafting is faster, its interval says."""
    return any(e.low is not None and e.low > 1 for e in _speedups(s))


def _speedups(s: BenchSummary) -> list[Estimate]:
    return [c.speedup for name, c in s.total.cells.items() if name != PLAIN and c.speedup is not None]


def why(s: BenchSummary) -> str:
    """Why drafting does not pay here: what verifying costs, what drafting costs, what was accepted."""
    costs, head = s.costs, "Speculation does not pay here over all workloads"
    second, t1 = costs.second, costs.t1
    if second is None or not t1 or costs.first_accepted is None:
        return f"{head}: hardly anything was drafted."
    text = f"{head}: a decode of {second.rows:.3g} rows takes {second.seconds / t1:.2f} x one row's time"
    if costs.draft_token is not None:
        text += f", a draft token {costs.draft_token / t1:.2f} x"
    need, got = costs.break_even, costs.first_accepted
    assert need is not None
    accepted = f"{_percent(got)} of first draft tokens were accepted"
    if need >= 1:
        return f"{text}, so that such drafts cannot pay even where all of them are accepted; {accepted}."
    text += f", so that such a draft pays from an acceptance of {_percent(need)}; {accepted}"
    if costs.drafted is not None and costs.drafted < 0.5:
        text += f", but only {_percent(costs.drafted)} of rounds had a draft"
    elif got > need:
        text += ", but later ones less often, and a round takes time beside its decode"
    return f"{text}."


def times(e: Estimate) -> str:
    """`1.42 x (1.35 - 1.50)`, the interval where there is one."""
    interval = "" if e.low is None or e.high is None else f" ({e.low:.2f} - {e.high:.2f})"
    return f"{e.value:.2f} x{interval}"


def label(row: SummaryRow) -> str:
    """The row's name."""
    where = row.workload or "all"
    return where if row.temperature is None else f"{where} at temperature {row.temperature:g}"


def _loses(row: SummaryRow) -> bool:
    """Whether auto is slower than plain decoding for sure, as far as the interval says."""
    auto = row.cells.get(AUTO)
    e = auto.speedup if auto else None
    return e is not None and e.value < 1 - _CLEAR and e.high is not None and e.high < 1


def _leaves(row: SummaryRow) -> bool:
    """Whether a fixed length is faster than auto for sure."""
    e = row.auto_against_best
    return row.best != PLAIN and e is not None and e.value < 1 - _CLEAR and e.high is not None and e.high < 1


def _named(rows: list[SummaryRow], best: bool = False) -> str:
    shown = []
    for row in rows[:_MOST_NAMED]:
        cell = row.cells[row.best if best and row.best else AUTO]
        e = cell.speedup
        assert e is not None
        shown.append(f"{label(row)} ({f'length {row.best}: ' if best else ''}{e.value:.2f} x)")
    if len(rows) > _MOST_NAMED:
        shown.append(f"{len(rows) - _MOST_NAMED} more")
    return ", ".join(shown)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
