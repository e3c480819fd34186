"""Simulated times of other ways of decoding on a trace: llama.cpp's grid, the best fixed length, an oracle
that stops drafts at the first wrong token; and the cost curves of nine machines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from specllama.core.interfaces import Drafter
from specllama.core.policy.config import DEFAULT, PolicyConfig
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.fixed import Fixed
from specllama.core.replay.simulator import CATCH_UP, GREEDY, Replay, Seconds, Trace, steps_at
from specllama.core.sampling.sampler import KeyedSampler
from specllama.core.sequence import common_prefix
from specllama.drafters.copy import CopyDrafter

LENGTHS = (0, 1, 2, 3, 5, 7, 11, 15)
GRID = (*((n, 0.0) for n in LENGTHS[1:]), (7, 0.8), (15, 0.8))  # n_max, p_min
NGRAM, NGRAM_DRAFT = 4, 15  # tokens that must match, tokens drafted
MAX_ORACLE_DRAFT = 48  # tokens


def measured_curve(seconds: Seconds, config: PolicyConfig = DEFAULT) -> CostCurve:
    """A cost curve with all widths measured."""
    found = CostCurve(config)
    for n in range(1, config.max_rows + 1):
        for _ in range(config.min_samples):
            found.observe(n, seconds(n))
    return found


def plain(traces: Sequence[Trace], seconds: Seconds) -> float:
    """Seconds of plain decoding."""
    return sum(len(t.text) for t in traces) * seconds(1)


def llama_cpp_loop(trace: Trace, seconds: Seconds, step: float, n_max: int, p_min: float = 0.0) -> float:
    """Seconds of llama.cpp's loop: drafts of up to n_max tokens while the draft model's probability is at
    least p_min; the draft model evaluates every verified batch again.
    """
    text, at, spent = trace.text, 0, 0.0
    while at < len(text):
        n = n_right = 0
        for here in range(at, min(at + n_max, len(text) - 1)):
            spent += step
            if trace.conf[here] < p_min:
                break
            n_right += n_right == n and trace.draft[here] == text[here]
            n += 1
        spent += seconds(n + 1) + CATCH_UP * step * n
        at += n_right + 1
    return spent


def ngram(trace: Trace, seconds: Seconds) -> float:
    """Seconds of llama.cpp's simple n-gram drafter."""
    ids, at, spent = [*trace.prompt, *trace.text], 0, 0.0
    latest: dict[tuple[int, ...], int] = {}  # position after the latest occurrence of an n-gram
    n_indexed = NGRAM
    while at < len(trace.text):
        n = len(trace.prompt) + at
        while n_indexed < n:
            latest[tuple(ids[n_indexed - NGRAM : n_indexed])] = n_indexed
            n_indexed += 1
        found = latest.get(tuple(ids[n - NGRAM : n])) if n >= NGRAM else None
        draft = ids[found : min(found + NGRAM_DRAFT, n)] if found is not None else []
        del draft[len(trace.text) - at - 1 :]
        spent += seconds(len(draft) + 1)
        at += 1 + common_prefix(draft, trace.text[at:])
    return spent


def best_of_grid(traces: Sequence[Trace], seconds: Seconds, step: float) -> float:
    """Seconds of llama.cpp's best settings for these texts together: plain, n-gram, draft lengths."""
    return min(
        plain(traces, seconds),
        sum(ngram(t, seconds) for t in traces),
        *(sum(llama_cpp_loop(t, seconds, step, n, p) for t in traces) for n, p in GRID),
    )


class Decodes(NamedTuple):
    """What is decoded for a text. rows: of each decode of the target. steps: ids of each step of the draft
    model.
    """

    rows: list[int]
    steps: list[int]


def fixed_decodes(trace: Trace, length: int) -> Decodes:
    """With copies and our own fixed length, the same on every machine."""
    decodes = Decodes([], [])

    def listed(to: list[int]) -> Seconds:
        def seconds(n: int) -> float:
            to.append(n)
            return 1.0

        return seconds

    def make(drafters: list[Drafter], _clock: Callable[[], float]) -> Fixed:
        return Fixed(drafters, length)

    Replay(make, listed(decodes.rows), listed(decodes.steps), CopyDrafter).replay([trace])
    return decodes


def best_fixed(decodes: Sequence[Sequence[Decodes]], seconds: Seconds, step: float) -> float:
    """Seconds of our own best fixed length for some texts together. decodes: of each text, by length."""
    of_step = steps_at(step)
    return min(
        sum(sum(map(seconds, text.rows)) + sum(map(of_step, text.steps)) for text in texts)
        for texts in decodes
    )


def oracle_stop(trace: Trace, seconds: Seconds, step: float, free: Sequence[int] | None = None) -> float:
    """Seconds of an oracle that knows how many tokens each drafter gets right and drafts no more: a bound.
    free: `right_copies`, None without.
    """
    text, n = trace.text, len(trace.text)
    n_right = [0] * (n + 1)
    for i in range(n - 1, -1, -1):
        n_right[i] = n_right[i + 1] + 1 if trace.draft[i] == text[i] else 0
    free = free or [0] * n
    best = [0.0] * (n + 1)
    for i in range(n - 1, -1, -1):
        room = n - i - 1
        best[i] = seconds(1) + best[i + 1]
        for k in range(1, min(free[i], room) + 1):
            best[i] = min(best[i], seconds(k + 1) + best[i + k + 1])
        for k in range(1, min(n_right[i], MAX_ORACLE_DRAFT, room) + 1):
            best[i] = min(best[i], seconds(k + 1) + k * step + best[i + k + 1])
    return best[0]


def right_copies(trace: Trace, drafter: Drafter) -> list[int]:
    """How many tokens a model-free drafter gets right at every position."""
    drafter.start(0, trace.prompt, KeyedSampler(GREEDY, 0, 1))
    found = []
    for at, token in enumerate(trace.text):
        n = 0
        drafted: list[int] = []
        while at + n < len(trace.text) and n < MAX_ORACLE_DRAFT:
            proposal = drafter.step({0: drafted}).get(0)
            if proposal is None or proposal.token != trace.text[at + n]:
                break
            drafted.append(proposal.token)
            n += 1
        found.append(n)
        drafter.committed(0, [token])
    return found


# t(n) / t(1): a 640 M-parameter target measured on two machines with two AVX-512 cores; the shape of a GPU.
MACHINES: dict[str, dict[int, float]] = {
    name: {int(n): t for n, t in points.items()}
    for name, points in json.loads(Path(__file__).with_name("machines.json").read_text("utf-8")).items()
}
STEPS = (0.02, 0.07, 0.15)  # t(1) of a step of the draft model
