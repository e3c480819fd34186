"""What second candidates are worth: how often they are right where the first is wrong, and what they gain.

Two ways of choosing them are replayed. `auto` is the planner's: as many as fill up a decode at no cost.
`paid` takes the tokens of chain and branches with the largest path probability, as many as give the best
rate, where that exceeds the chain's by 1 %, and counts that an accepted token of a branch is evaluated again
(Li et al., EAGLE-2, arXiv 2406.16858).
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from scripts.replay import devices, hindsight
from specllama.core.interfaces import Drafter
from specllama.core.policy.base import CHAINS, DraftBranch, TreeLimits
from specllama.core.policy.candidates import CandidateDraft, best_affordable_length
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.planner import Planner
from specllama.core.policy.warm_up import warm_up
from specllama.core.replay.curves import curve
from specllama.core.replay.devices import ChangingDevice
from specllama.core.replay.simulator import MakeDraft, Replay, TraceDrafter
from specllama.core.replay.trace import Trace
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.sampler import KeyedSampler
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.history import HistoryDrafter
from specllama.drafters.request_history import RequestHistory

N_BRANCHES = 3
DEPTHS = 4
N_ORDERS = 2  # random orders of the texts; decisions about one text change those about the next ones
MIN_GAIN = 0.01  # by which the rate of a tree has to exceed that of the chain
SLOPE_ROWS = 3  # over which the cost of one more row in the next round is averaged


class Counts(NamedTuple):
    """Positions at one depth of drafts whose tokens before were right. wrong: those at which the first
    candidate was wrong. right: those of them at which the second one was right.
    """

    n: int = 0
    wrong: int = 0
    right: int = 0

    def plus(self, first: bool, second: bool) -> Counts:
        return Counts(self.n + 1, self.wrong + (not first), self.right + (second and not first))


def of_model(trace: Trace) -> list[Counts]:
    """Those of the draft model or head, by depth."""
    found = [Counts()] * DEPTHS
    for at in range(len(trace.text)):
        for depth in range(min(DEPTHS, len(trace.text) - at)):
            token = trace.text[at + depth]
            first = trace.draft[at + depth] == token
            second = bool(trace.second) and trace.second[at + depth] == token
            found[depth] = found[depth].plus(first, second)
            if not first:
                break
    return found


def of_copies(trace: Trace, drafter: CopyDrafter | HistoryDrafter) -> Counts:
    """Those of the first tokens that a model-free drafter proposes."""
    found = Counts()
    drafter.with_alternatives = True
    drafter.start(0, trace.prompt, KeyedSampler(SamplingParams(temperature=0), 0, 1))
    for token in trace.text:
        proposal = drafter.step({0: ()}).get(0)
        if proposal is not None:
            other = proposal.other
            found = found.plus(proposal.token == token, other is not None and other.tokens[0] == token)
        drafter.committed(0, [token])
    return found


def show_counts(traces: Mapping[str, Sequence[Trace]]) -> None:
    """Print a line for each workload and drafter."""
    history = RequestHistory()
    for workload, texts in traces.items():
        depths = [_total(column) for column in zip(*map(of_model, texts), strict=True)]
        copies = [of_copies(trace, CopyDrafter()) for trace in texts]
        remembered = []
        for trace in texts:
            remembered.append(of_copies(trace, HistoryDrafter(history)))
            history.keep("", [*trace.prompt, *trace.text], len(trace.prompt))
        print(f"  {workload}, model: " + ", ".join(f"{d}: {_share(c)}" for d, c in enumerate(depths)))
        for name, found in (("copy", copies), ("memory", remembered)):
            print(f"  {workload}, {name}: {_share(_total(found))}")


def _total(some: Sequence[Counts]) -> Counts:
    return Counts(*(sum(column) for column in zip(*some, strict=True)))


def _share(counts: Counts) -> str:
    n, wrong, right = counts
    if not n:
        return "none"
    return f"{right / wrong if wrong else 0:.0%} of {wrong} wrong ones ({wrong / n:.0%} of {n})"


class PaidPlanner(Planner):
    """Verifies second candidates wherever they raise the rate of the round; see `paid` above."""

    def _use_alternatives(self, wanted: bool) -> None:  # noqa: ARG002
        super()._use_alternatives(True)

    def _branches(
        self, candidates: Mapping[int, CandidateDraft], counts: Any, limits: TreeLimits
    ) -> dict[int, list[DraftBranch]]:
        """One sequence alone; changes the length of its chain in `counts`."""
        ((seq, draft),) = candidates.items()
        budget, n = self._round, counts[seq]
        if not limits.n_branches or not draft.branches:
            return {}
        chain = budget.rate(1 + draft.expected_accepted(n), 1 + n)
        last = min(1 + n + SLOPE_ROWS, budget.max_rows)
        row = (budget.predict(last) - budget.predict(1 + n)) / max(1, last - 1 - n)
        share = min(1.0, max(0.0, 1 - row * chain))
        worth = [(-p, -1) for p in draft.path_probs]
        worth += [(-p * share, i) for i, b in enumerate(draft.branches) for p in b.path_probs]
        worth.sort(key=lambda one: one[0])
        expected = list(accumulate(-p for p, _ in worth))
        n_tokens, rate = best_affordable_length(expected, budget, 1, 1)
        owners = [i for _, i in worth[:n_tokens]]
        if rate <= chain * (1 + MIN_GAIN) or max(owners, default=-1) < 0:
            return {}
        counts[seq] = owners.count(-1)
        chosen = [(b, owners.count(i)) for i, b in enumerate(draft.branches)]
        return {seq: [DraftBranch(b.at, b.tokens[:k], b.source) for b, k in chosen if k][: limits.n_branches]}


class TreeCell(NamedTuple):
    """A machine and draft cost: by way of choosing, the gain over chains, in all and of the worst workload,
    and tokens of branches accepted and drafted.
    """

    machine: str
    step: float
    gains: dict[str, tuple[float, float, int, int]]


MakeSession = Callable[[type[Planner], TreeLimits], Replay]
WAYS: dict[str, tuple[type[Planner], TreeLimits]] = {
    "chains": (Planner, CHAINS),
    "auto": (Planner, TreeLimits(N_BRANCHES)),
    "paid": (PaidPlanner, TreeLimits(N_BRANCHES)),
}


def on_curve(points: Mapping[int, float], step: float, draft: MakeDraft) -> MakeSession:
    """Sessions on a machine of which all widths are measured."""
    seconds = curve(points)

    def make(planner: type[Planner], tree: TreeLimits) -> Replay:
        def policy(drafters: list[Drafter], clock: Callable[[], float]) -> Planner:
            return planner(drafters, clock, hindsight.measured_curve(seconds))

        return Replay(policy, seconds, step, CopyDrafter, draft=draft, tree=tree)

    return make


def on_device(data: Mapping[str, Any], step: float, draft: MakeDraft) -> MakeSession:
    """Sessions on a device whose decodes depend on those before, after those of loading."""

    def make(planner: type[Planner], tree: TreeLimits) -> Replay:
        device, steps = ChangingDevice.from_dict(data), devices.draft_device(data, step)

        def policy(drafters: list[Drafter], clock: Callable[[], float]) -> Planner:
            return planner(drafters, clock)

        session = Replay(policy, device, steps, CopyDrafter, draft=draft, prompt=device.interrupt, tree=tree)
        assert isinstance(session.policy, Planner)
        warm_up(session.policy.costs, device, DEFAULT.max_rows)
        (priced,) = session.policy.learnt.priced.values()
        warm_up(priced.steps.curve, steps, DEFAULT.max_rows)
        return session

    return make


def cell(machine: str, step: float, make: MakeSession, traces: Mapping[str, Sequence[Trace]]) -> TreeCell:
    """Replay all texts in several orders in each way."""
    texts = [(workload, trace) for workload, some in traces.items() for trace in some]
    took: dict[str, dict[str, float]] = {way: dict.fromkeys(traces, 0.0) for way in WAYS}
    branches = dict.fromkeys(WAYS, (0, 0))
    for way, (planner, tree) in WAYS.items():
        for seed in range(N_ORDERS):
            session = make(planner, tree)
            for workload, trace in random.Random(seed).sample(texts, len(texts)):
                done = session.replay([trace])
                took[way][workload] += done.seconds
                accepted, drafted = branches[way]
                branches[way] = accepted + done.n_branch_accept, drafted + done.n_branch_drafted
    gains = {}
    for way in [w for w in WAYS if w != "chains"]:
        each = [took["chains"][w] / took[way][w] for w in traces if took[way][w]]
        total = sum(took["chains"].values()) / sum(took[way].values())
        gains[way] = total, min(each), *branches[way]
    return TreeCell(machine, step, gains)


def tree_cells(
    traces: Mapping[str, Sequence[Trace]],
    found: Mapping[str, Mapping[str, Any]],
    draft: MakeDraft = TraceDrafter,
) -> Iterator[TreeCell]:
    """On the nine cost curves, or on devices, at each draft cost."""
    if found:
        for name, data in found.items():
            for step in devices.STEPS:
                yield cell(name, step, on_device(data, step, draft), traces)
        return
    for name, points in hindsight.MACHINES.items():
        for step in hindsight.STEPS:
            yield cell(name, step, on_curve(points, step, draft), traces)


def show(label: str, traces: Mapping[str, Sequence[Trace]], cells: Iterator[TreeCell]) -> None:
    """Print how often second candidates are right, and what they gain."""
    print(label)
    show_counts(traces)
    gains: dict[str, list[float]] = {}
    for machine, step, found in cells:
        parts = []
        for way, (total, worst, accepted, drafted) in found.items():
            gains.setdefault(way, []).append(total)
            parts.append(f"{way} {total:.3f} (worst workload {worst:.3f}; {accepted} of {drafted} accepted)")
        print(f"  {machine}, draft cost {step}: " + ", ".join(parts), flush=True)
    print(
        "  means: " + ", ".join(f"{way} {statistics.geometric_mean(some):.3f}" for way, some in gains.items())
    )


def with_seconds(
    traces: Mapping[str, Sequence[Trace]], record: Callable[[Trace], Trace]
) -> dict[str, list[dict[str, Any]]]:
    """The traces as plain data, with the choices that the draft makes now. record: records one again."""
    same = total = 0
    found: dict[str, list[dict[str, Any]]] = {}
    for workload, texts in traces.items():
        for trace in texts:
            again = record(trace)
            same += sum(a == b for a, b in zip(trace.draft, again.draft, strict=True))
            total += len(trace.text)
            found.setdefault(workload, []).append(again.to_dict())
    print(f"{same} of {total} first choices are the recorded ones")
    return found
