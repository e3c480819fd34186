"""Replaying recorded texts: the time that a policy would take on a machine of given costs, in simulated
time.

A trace holds a text and the draft model's choice at each of its positions, given the text before it.
Its choices after its own first mistake are not recorded; they are assumed to be wrong, with the
recorded confidence. This is the only approximation: policies and the copy drafter are the real ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from typing import Any

from specllama.core.interfaces import (
    Alternative,
    CachingDrafter,
    DraftCacheState,
    Drafter,
    Mask,
    Proposal,
    Sampler,
)
from specllama.core.policy.base import CHAINS, Draft, Policy, Round, RoundLimits, VerifyResult, matching
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.sampler import KeyedSampler
from specllama.core.sequence import common_prefix

WRONG = -1  # an id that is never right


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded text. prompt: ids. text: the ids that the target wrote after it. draft, conf: the draft
    model's choice and its probability at each position of the text. second, second_conf: the same of its
    second candidate, WRONG where it has none; empty where they were not recorded. Raises ValueError where the
    lengths differ, the prompt is empty or a probability is invalid.
    """

    prompt: list[int]
    text: list[int]
    draft: list[int]
    conf: list[float]
    second: list[int] = field(default_factory=list)
    second_conf: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        n = len(self.text)
        if not self.prompt or not n == len(self.draft) == len(self.conf):
            raise ValueError("a trace needs a prompt, and a choice and a probability for each id of its text")
        if self.second and not n == len(self.second) == len(self.second_conf):
            raise ValueError("a trace needs a second candidate for each id of its text, or none at all")
        if not all(isfinite(c) and 0 <= c <= 1 for c in (*self.conf, *self.second_conf)):
            raise ValueError("a trace has probabilities outside of 0 to 1")


CATCH_UP = 0.35  # cost of each further id that a step of the draft model evaluates, in steps
MAX_CATCH_UP = 60  # further ids beyond which the cost stays the same

Seconds = Callable[[int], float]


def undisturbed(now: float) -> float:  # noqa: ARG001
    """The slowdown of a machine of constant speed."""
    return 1.0


class SimulatedClock:
    """The simulated clock. disturb: from the time so far to the factor by which the machine is slower.

    now: seconds as the policy measures them; quiet: seconds without disturbance.
    """

    def __init__(self, disturb: Callable[[float], float] = undisturbed) -> None:
        self.now = self.quiet = 0.0
        self._disturb = disturb

    def clock(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds * self._disturb(self.now)
        self.quiet += seconds


class TraceDrafter(CachingDrafter):
    """A simulated draft model: proposes the recorded choices and advances the clock by the time they cost.

    step_seconds: from the ids that a step evaluates to its seconds. The cache and catching up are simulated
    as well.
    """

    name, runs_model, continues = "model", True, True

    def __init__(self, machine: SimulatedClock, step_seconds: Seconds) -> None:
        self.machine, self.step_seconds = machine, step_seconds
        self.traces: dict[int, Trace] = {}
        self._at: dict[int, int] = {}  # ids of the text that are committed
        self._held: dict[int, list[int]] = {}  # the skipped ids and those in the cache
        self._skipped: dict[int, int] = {}

    def begin(self, seq_id: int, trace: Trace, prefilled: bool) -> None:
        """Start a sequence with this trace. prefilled: its prompt is in the cache already."""
        self.traces[seq_id], self._at[seq_id] = trace, 0
        self._held[seq_id] = trace.prompt[:-1] if prefilled else []
        self._skipped[seq_id] = 0

    def start(self, seq_id: int, prompt: Sequence[int], sampler: Sampler, mask: Mask | None = None) -> None:
        """Nothing: `begin` has started the sequence."""

    def set_cache_scope(self, seq_id: int, scope: str) -> None:
        """Nothing: traces share no cells."""

    def cache_state(self, seq_id: int) -> DraftCacheState:
        n, kept = len(self._history(seq_id)), self._kept(seq_id, ())
        return DraftCacheState(self._skipped[seq_id], kept - self._skipped[seq_id], n - kept)

    def restart_from_tail(self, seq_id: int, n_last: int) -> None:
        """As in `CachingDrafter`; the recorded choices stay, although a shorter context would change them."""
        self._skipped[seq_id] = max(0, len(self._history(seq_id)) - n_last)
        self._held[seq_id] = self._history(seq_id)[: self._skipped[seq_id]]

    def _history(self, seq_id: int) -> list[int]:
        trace = self.traces[seq_id]
        return [*trace.prompt, *trace.text[: self._at[seq_id]]]

    def _kept(self, seq_id: int, draft: Sequence[int]) -> int:
        ids = [*self._history(seq_id), *draft]
        return min(common_prefix(self._held[seq_id], ids), len(ids) - 1)

    def step(self, drafts: Mapping[int, Sequence[int]]) -> dict[int, Proposal]:
        self._evaluate(drafts)
        proposals = {seq_id: self._proposal(seq_id, draft) for seq_id, draft in drafts.items()}
        return {seq_id: proposal for seq_id, proposal in proposals.items() if proposal is not None}

    def _evaluate(self, drafts: Mapping[int, Sequence[int]]) -> None:
        """Spend the time of evaluating what is not in the cache."""
        n_ids = 0
        for seq_id, draft in drafts.items():
            ids = [*self._history(seq_id), *draft]
            n_ids += len(ids) - self._kept(seq_id, draft)
            self._held[seq_id] = ids
        if n_ids:
            self.machine.spend(self.step_seconds(n_ids))

    def _proposal(self, seq_id: int, draft: Sequence[int]) -> Proposal | None:
        trace, at = self.traces[seq_id], self._at[seq_id]
        here = at + len(draft)
        if here >= len(trace.text):
            return None
        token, other = trace.draft[here], None
        right = list(draft) == trace.text[at:here]
        if trace.second and self.with_alternatives and trace.second[here] != WRONG:
            other = Alternative((trace.second[here] if right else WRONG,), trace.second_conf[here])
        if not right and token == trace.text[here]:
            token = WRONG
        return Proposal(token, trace.conf[here], other)

    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:
        self._at[seq_id] += len(tokens)

    def forget(self, seq_id: int) -> None:
        """Nothing: the next `begin` replaces the sequence."""


@dataclass(slots=True)
class Replayed:
    """Totals of a replay. seconds: without disturbance. measured: seconds with it."""

    seconds: float = 0.0
    measured: float = 0.0
    tokens: int = 0
    rounds: int = 0
    n_drafted: int = 0
    n_accept: int = 0
    n_branch_accept: int = 0


MakeDraft = Callable[[SimulatedClock, Seconds], TraceDrafter]
MakePolicy = Callable[[list[Drafter], Callable[[], float]], Policy]
GREEDY = SamplingParams(temperature=0)


class Replay:
    """A loaded pair on a simulated machine; the policy keeps what it learns from one `replay` to the next.

    seconds: of the next target decode, by its rows; called once for each decode, so that it may depend on
    those before (`devices.ChangingDevice`). step: seconds of a draft model step of n ids, or a number for one
    id (`steps_at`); None: no draft model. free: makes the copy drafter; None: no copies. disturb: see
    `SimulatedClock`. prefilled: prompts are in the draft model's cache at no cost. ended: called with each
    trace when it is complete. draft: makes what proposes the recorded choices, of a head where that is
    wanted. prompt: called when the prompt of a text is decoded, if given. limits: branches that the target
    can verify. one_width: all decodes of a text have one width, as where changes cost something.
    """

    def __init__(
        self,
        make_policy: MakePolicy,
        seconds: Seconds,
        step: Seconds | float | None,
        free: Callable[[], Drafter] | None,
        disturb: Callable[[float], float] = undisturbed,
        prefilled: bool = True,
        ended: Callable[[Trace], None] = lambda trace: None,  # noqa: ARG005
        draft: MakeDraft = TraceDrafter,
        prompt: Callable[[], None] | None = None,
        limits: RoundLimits = CHAINS,
        one_width: bool = False,
    ) -> None:
        self._prompt, self._limits, self.one_width = prompt, limits, one_width
        self._last_width = self._n_same = 0  # rows of the last decode, and decodes of it in a row
        self._ended = ended
        self.machine, self.seconds, self.prefilled = SimulatedClock(disturb), seconds, prefilled
        drafters: list[Drafter] = [free()] if free is not None else []
        self.model = None
        if step is not None:
            self.model = draft(self.machine, step if callable(step) else steps_at(step))
            drafters.append(self.model)
        self.policy = make_policy(drafters, self.machine.clock)

    def replay(self, traces: Sequence[Trace], n_slots: int = 1) -> Replayed:
        """Decode the texts to their ends, `n_slots` at a time."""
        done, waiting = Replayed(), [t for t in traces if t.text]
        active: dict[int, _Text] = {}
        quiet, now = self.machine.quiet, self.machine.now
        while waiting or active:
            for slot in range(n_slots):
                if slot not in active and waiting:
                    width = self.policy.text_width(True) if self.one_width else 0
                    self._begin(slot, waiting[0])
                    active[slot] = _Text(waiting.pop(0), width=width)
            self._round(active, done)
        done.seconds, done.measured = self.machine.quiet - quiet, self.machine.now - now
        return done

    def _begin(self, slot: int, trace: Trace) -> None:
        if self.model is not None:
            self.model.begin(slot, trace, self.prefilled)
        self.policy.start(slot, trace.prompt, KeyedSampler(GREEDY, 0, 1))
        if self._prompt is not None:
            self._prompt()
            self._last_width = 0

    def _round(self, active: dict[int, _Text], done: Replayed) -> None:
        began = self.machine.now
        n_recomputed = sum(text.n_recomputed for text in active.values())
        max_draft_len = {slot: len(text.trace.text) - text.at - 1 for slot, text in active.items()}
        held = 0
        if self.one_width:
            (first, *others) = active.values()
            held = self.policy.total_width(len(active)) if others else first.width
            max_draft_len = {
                slot: min(room, max(0, held - len(active))) for slot, room in max_draft_len.items()
            }
        drafts = self.policy.draft(
            max_draft_len, inf, replace(self._limits, n_recomputed=n_recomputed, width=held)
        )
        drafted = self.machine.now
        rows = len(active) + n_recomputed + sum(d.n_rows for d in drafts.values())
        width = max(rows, held)
        self.machine.spend(self.seconds(width))
        decoded = self.machine.now
        outcomes = []
        for slot, text in active.items():
            outcome = text.verify(slot, drafts.get(slot, Draft()))
            self.policy.committed(slot, text.trace.text[text.at - outcome.n_emitted : text.at])
            outcomes.append(outcome)
            done.tokens += outcome.n_emitted
            done.n_drafted += outcome.draft.n_rows
            done.n_accept += outcome.n_accept
            done.n_branch_accept += outcome.n_branch
        done.rounds += 1
        seconds = decoded - drafted, drafted - began, decoded - began
        self._n_same = self._n_same + 1 if width == self._last_width else 1
        self._last_width = width
        self.policy.observe(Round(rows, *seconds, outcomes, width - rows, self._n_same))
        if held and len(active) == 1:
            for slot, text in active.items():
                text.width = self.policy.next_width(slot, text.width)
        for slot, text in list(active.items()):
            if text.at == len(text.trace.text):
                self.policy.forget(slot)
                self._ended(text.trace)
                del active[slot]


@dataclass(slots=True)
class _Text:
    """A text that is being decoded. at: tokens so far. n_recomputed: those that are to be evaluated again.
    width: of all its decodes, 0 where that may change.
    """

    trace: Trace
    at: int = 0
    n_recomputed: int = 0
    width: int = 0

    def verify(self, slot: int, draft: Draft) -> VerifyResult:
        """Accept what is right of the draft, and one token more where the text goes on."""
        rest = self.trace.text[self.at :]
        n_accept, n_branch = common_prefix(draft.tokens, rest), 0
        for branch in matching(draft.branches, n_accept, rest[n_accept] if n_accept < len(rest) else WRONG):
            n_branch = common_prefix(branch.tokens, rest[n_accept:])
        n_accept += n_branch
        emitted = rest[: n_accept + 1]
        self.at += len(emitted)
        self.n_recomputed = min(n_branch, len(emitted) - 1)
        return VerifyResult(slot, draft, n_accept, len(emitted), n_branch)


def steps_at(step: float) -> Seconds:
    """From the number of ids that a step of the draft model evaluates to its seconds; `step`: of one id."""
    return lambda n: step * (1 + CATCH_UP * min(n - 1, MAX_CATCH_UP))


class TraceHead(TraceDrafter):
    """A head that drafts token by token: tokens that were accepted are evaluated again, with the target's
    hidden states. n_kept: hidden states that are kept of a prompt; earlier tokens are never evaluated.
    """

    name = "head"
    reads_features = True

    def __init__(self, machine: SimulatedClock, step_seconds: Seconds, n_kept: int) -> None:
        super().__init__(machine, step_seconds)
        self.n_kept = n_kept

    def begin(self, seq_id: int, trace: Trace, prefilled: bool) -> None:
        super().begin(seq_id, trace, prefilled)
        self._skipped[seq_id] = max(0, len(trace.prompt) - self.n_kept)
        if not prefilled:
            self._held[seq_id] = trace.prompt[: self._skipped[seq_id]]

    def cache_state(self, seq_id: int) -> DraftCacheState:
        """As of a real head: tokens before its first row count as if they were not there."""
        return super().cache_state(seq_id)._replace(n_skipped=0)

    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:
        del self._held[seq_id][len(self._history(seq_id)) :]
        super().committed(seq_id, tokens)


class TraceBlocks(TraceHead):
    """A head that drafts a block of `n_draft` tokens in its first step; the others cost nothing."""

    drafts_blocks = True

    def __init__(self, machine: SimulatedClock, step_seconds: Seconds, n_kept: int, n_draft: int) -> None:
        # A block's step evaluates the last id too, whether or not its cell is there.
        super().__init__(machine, lambda n: step_seconds(n + 1), n_kept)
        self.n_draft, self._drafted = n_draft, set[int]()

    def cache_state(self, seq_id: int) -> DraftCacheState:
        state = super().cache_state(seq_id)
        return state._replace(n_pending=state.n_pending + 1)

    def step(self, drafts: Mapping[int, Sequence[int]]) -> dict[int, Proposal]:
        self._evaluate({seq_id: () for seq_id in drafts if seq_id not in self._drafted})
        self._drafted |= set(drafts)
        proposals = {s: self._proposal(s, draft) for s, draft in drafts.items() if len(draft) < self.n_draft}
        return {seq_id: proposal for seq_id, proposal in proposals.items() if proposal is not None}

    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:
        self._drafted.discard(seq_id)
        super().committed(seq_id, tokens)


# Simulated devices on which a decode's time depends on the widths of those before it, as on a GPU.


def curve(points: Mapping[int, float], max_rows: int = 66) -> Seconds:
    """From 1 to `max_rows` rows to the seconds of a decode. points: seconds by rows; times between them are
    interpolated, times outside are those of the nearest one.
    """
    widths = sorted(points)
    table = [0.0] * (max_rows + 1)
    for n in range(1, max_rows + 1):
        high = next((i for i, w in enumerate(widths) if w >= n), len(widths) - 1)
        low = max(0, high - 1) if widths[high] != n else high
        a, b = widths[low], widths[high]
        table[n] = points[b] if a == b else points[a] + (points[b] - points[a]) * (n - a) / (b - a)
    return table.__getitem__


MAX_ROWS = 1024


class ChangingDevice:
    """The seconds of each decode of a context, called once for each. Everything is in seconds, by rows.

    steady: of a decode whose width is that of the two before. first, second: of the first and the second
    decode of another width, more than a steady one. loading: of the first two decodes of a width in all; no
    less than they take anyway.
    """

    def __init__(
        self,
        steady: Seconds,
        first: Seconds = lambda n: 0.0,  # noqa: ARG005
        second: Seconds = lambda n: 0.0,  # noqa: ARG005
        loading: tuple[Seconds, Seconds] | None = None,
    ) -> None:
        self.steady, self.first, self.second, self.loading = steady, first, second, loading
        self._last, self._run = 0, 0
        self._seen: Counter[int] = Counter()

    def interrupt(self) -> None:
        """A prompt was decoded: the next decode is the first of its width."""
        self._last, self._run = 0, 0

    def __call__(self, n_rows: int) -> float:
        if n_rows != self._last:
            self._last, self._run = n_rows, 0
        self._run += 1
        self._seen[n_rows] += 1
        more = {1: self.first, 2: self.second}.get(self._run)
        seconds = self.steady(n_rows) + (more(n_rows) if more is not None else 0.0)
        if self.loading is not None and (seen := self._seen[n_rows]) <= len(self.loading):
            seconds = max(seconds, self.loading[seen - 1](n_rows))
        return seconds

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], loading: bool = True) -> ChangingDevice:
        """From parsed JSON, in milliseconds: steady, and by rows first, second and loading (pairs), or
        first_more and second_more. Widths in between are interpolated; for changes the nearest width counts.
        loading: with the cost of loading, where there is one.
        """
        points = {int(n): ms / 1e3 for n, ms in data["steady"].items()}
        steady = curve(points, MAX_ROWS)

        def more(name: str) -> Seconds:
            if (same := data.get(f"{name}_more")) is not None:
                return lambda n: same / 1e3  # noqa: ARG005
            excess = {int(n): max(0.0, ms / 1e3 - steady(int(n))) for n, ms in data.get(name, {}).items()}
            return nearest(excess)

        pairs = {int(n): pair for n, pair in data.get("loading", {}).items()}
        first, second = (nearest({n: pair[i] / 1e3 for n, pair in pairs.items()}) for i in (0, 1))
        return cls(steady, more("first"), more("second"), (first, second) if pairs and loading else None)


def nearest(points: Mapping[int, float]) -> Seconds:
    """The seconds of the nearest width; 0 without any."""
    return lambda n: points[min(points, key=lambda width: abs(width - n))] if points else 0.0
