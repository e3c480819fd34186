#!/usr/bin/env python3
"""Replay recorded texts with the planner on nine cost curves and three draft costs, against what others take.

usage: -m scripts.replay TRACES.json ... [--cold] [--mixed] [--unread] [--fixed] [--detail] [--parts]
       -m scripts.replay TRACES.json ... --time
       -m scripts.replay --record OUT.json [-m TARGET -md DRAFT] --prompts FILE [-n TOKENS]
                        [--temp 0,0.8] [--seed S]

Rates over plain decoding, llama.cpp's default (three drafted tokens) and the best of its settings in
hindsight, as geometric means over curves, costs and workloads; then the same with a draft model that knows
nothing and is sure of it. --cold: nothing is known of the machine at first. --mixed: the texts of all
workloads in a random order, as users' come. --unread: the draft model reads prompts at our expense, which is
never counted for the others. --fixed: against the best of our own fixed lengths too (slow). --parts: what
each part earns, by leaving it out. --time: what the planner takes for a round of one and of eight sequences,
drafters left aside. A prompts file is a JSON object, workload to list of prompts; a traces file one of lists
of {prompt, text, draft, conf}, all ids. A workload's name is followed by its temperature where several are
recorded.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from scripts.replay import hindsight as others
from specllama.bench import workloads
from specllama.core.interfaces import Drafter
from specllama.core.policy.base import Draft, Round
from specllama.core.policy.config import DEFAULT, PolicyConfig
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.planner import Planner
from specllama.core.replay.recording import record, write_text
from specllama.core.replay.simulator import Replay, Seconds, Trace, curve
from specllama.core.sampling.params import SamplingParams
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.drafters.copy import CopyDrafter
from specllama.errors import SpecllamaError, UsageError

Workloads = dict[str, list[Trace]]
CONFIDENCES = (0.3, 0.6, 0.9, 0.99, 0.999)


NO_LIMIT = 1e9
PARTS: dict[str, PolicyConfig] = {
    "look-ahead over further tokens": replace(DEFAULT, lookahead=1),
    "their risk counts for less": replace(DEFAULT, risk_share=1.0),
    "drafts longer than 16": replace(DEFAULT, max_model_draft=16, chunk_margin=-1),
    "when to ask the model is learnt": replace(DEFAULT, request_rate=0.0, pair_rate=0.0),
    "over requests too": replace(DEFAULT, pair_rate=0.0),
    "catching up waits for forgone gain": replace(DEFAULT, forgone_share=NO_LIMIT, min_tail=int(NO_LIMIT)),
    "gains kept apart by the copy on offer": replace(DEFAULT, gate_by_copy=False),
    "speculation budget": replace(DEFAULT, round_share=NO_LIMIT, allowance=NO_LIMIT),
    "a round loses a part of the credit": replace(DEFAULT, round_share=1.0),
    "plain rounds no more than needed": replace(DEFAULT, plain_every=25.0),
}


class Cell(NamedTuple):
    """One machine, draft cost and workload, and the rates of others' times to ours there."""

    machine: str
    step: float
    workload: str
    rates: dict[str, float]


class How(NamedTuple):
    """What is replayed: see the flags. copies: with the drafter that copies."""

    cold: bool = False
    mixed: bool = False
    unread: bool = False
    fixed: bool = False
    copies: bool = True
    config: PolicyConfig = DEFAULT


def known(seconds: Seconds, config: PolicyConfig = DEFAULT) -> CostCurve:
    """A curve whose widths were all measured."""
    found = CostCurve(config)
    for n in range(1, config.max_rows + 1):
        for _ in range(config.min_samples):
            found.observe(n, seconds(n))
    return found


def seconds_by_workload(session: Replay, traces: Workloads, mixed: bool) -> dict[str, float]:
    """What each workload takes; mixed: the texts of all come in a random order."""
    texts = [(workload, trace) for workload, some in traces.items() for trace in some]
    if mixed:
        random.Random(1).shuffle(texts)
    took = dict.fromkeys(traces, 0.0)
    for workload, trace in texts:
        took[workload] += session.replay([trace]).seconds
    return took


def cells(traces: Workloads, how: How) -> Iterator[Cell]:
    """Replay everything everywhere; what is learnt lasts over the workloads of a machine."""
    free: Callable[[], Drafter] | None = CopyDrafter if how.copies else None
    for machine, points in others.MACHINES.items():
        seconds = curve(points)
        for step in others.STEPS:

            def make(
                drafters: Sequence[Drafter], clock: Callable[[], float], t: Seconds = seconds
            ) -> Planner:
                costs = None if how.cold else known(t, how.config)
                return Planner(drafters, clock, costs, config=how.config)

            session = Replay(make, seconds, step, free, prefilled=not how.unread)
            ours = seconds_by_workload(session, traces, how.mixed)
            for workload, texts in traces.items():
                took = ours[workload]
                rates = {
                    "plain": others.plain(texts, seconds) / took,
                    "n_max 3": sum(others.llama_cpp_loop(t, seconds, step, 3) for t in texts) / took,
                    "best of grid": others.best_of_grid(texts, seconds, step) / took,
                    "perfect stop": sum(others.oracle_stop(t, seconds, step, free) for t in texts) / took,
                }
                if how.fixed:
                    rates["best fixed"] = others.best_fixed(texts, seconds, step, CopyDrafter)[1] / took
                yield Cell(machine, step, workload, rates)


def scrambled(traces: Workloads) -> Workloads:
    """The same texts with a draft model that knows nothing and is sure of it."""
    rng = random.Random(1)

    def lie(trace: Trace) -> Trace:
        n = len(trace.text)
        return Trace(
            trace.prompt, trace.text, rng.choices(range(5, 4000), k=n), rng.choices(CONFIDENCES, k=n)
        )

    return {workload: [lie(t) for t in texts] for workload, texts in traces.items()}


def mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def summary(label: str, found: Sequence[Cell], detail: bool) -> None:
    """Print geometric means and the worst cells."""
    if detail:
        for c in found:
            rates = ", ".join(f"{rate:.3f} x {name}" for name, rate in c.rates.items())
            print(f"  {c.machine:9s} c={c.step:.2f} {c.workload:10s} {rates}")
    means = ", ".join(f"{mean([c.rates[k] for c in found]):.3f} x {k}" for k in found[0].rates)
    print(f"{label}: {means} ({len(found)} cells)")
    for name in ("plain", "best fixed"):
        if name in found[0].rates:
            worst = min(found, key=lambda c: c.rates[name])
            where = f"{worst.machine}, draft cost {worst.step}, {worst.workload}"
            print(f"    worst against {name}: {worst.rates[name]:.3f} ({where})")


def parts(traces: Workloads, how: How) -> None:
    """Print the rate with everything over the rate without each part."""

    def rate(copies: bool = True, config: PolicyConfig = DEFAULT) -> float:
        varied = how._replace(fixed=False, copies=copies, config=config)
        return mean([c.rates["plain"] for c in cells(traces, varied)])

    whole = rate()
    print(f"    copying: {whole / rate(copies=False) - 1:+.1%}")
    for name, config in PARTS.items():
        print(f"    {name}: {whole / rate(config=config) - 1:+.1%}", flush=True)


class TimedPlanner(Planner):
    """rounds: real seconds that each took, what its drafters took left out."""

    def __init__(self, drafters: Sequence[Drafter], clock: Callable[[], float], costs: CostCurve) -> None:
        self.rounds: list[float] = []
        self._spent = self._outside = 0.0
        for drafter in drafters:
            for name in ("start", "step", "propose", "view", "restart_from_tail", "committed", "forget"):
                if hasattr(drafter, name):
                    setattr(drafter, name, self._drafters_own(getattr(drafter, name)))
        super().__init__(drafters, clock, costs)

    def _drafters_own(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any) -> Any:
            began = time.perf_counter()
            found = method(*given)
            self._outside += time.perf_counter() - began
            return found

        return timed

    def _timed(self, method: Callable[..., Any], *given: Any) -> Any:
        began, outside = time.perf_counter(), self._outside
        found = method(*given)
        self._spent += time.perf_counter() - began - (self._outside - outside)
        return found

    def draft(self, rooms: Mapping[int, int]) -> dict[int, Draft]:
        drafts: dict[int, Draft] = self._timed(super().draft, rooms)
        return drafts

    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:
        self._timed(super().committed, seq_id, tokens)

    def observe(self, done: Round) -> None:
        self._timed(super().observe, done)
        self.rounds.append(self._spent)
        self._spent = 0.0


def planner_time(traces: Workloads) -> None:
    """Print milliseconds of the planner's own for a round, over all curves and costs: mean, median, 99 %."""
    texts = [t for some in traces.values() for t in some]
    for n_slots in (1, 8):
        rounds: list[float] = []
        for points in others.MACHINES.values():
            seconds = curve(points)
            for step in others.STEPS:
                session = Replay(partial(TimedPlanner, costs=known(seconds)), seconds, step, CopyDrafter)
                session.replay(texts, n_slots)
                assert isinstance(session.policy, TimedPlanner)
                rounds += session.policy.rounds
        ms = sorted(1e3 * took for took in rounds)
        half, most = (ms[int(len(ms) * share)] for share in (0.5, 0.99))
        print(f"    {n_slots} at once: {statistics.mean(ms):.3f}, {half:.3f}, {most:.3f} ms a round")


def load(path: str) -> Workloads:
    data: Mapping[str, Any] = json.loads(Path(path).read_text())
    return {workload: [Trace.from_dict(t) for t in texts] for workload, texts in data.items()}


def temperatures(given: str) -> list[float]:
    """Of --temp, checked as a request's are."""
    try:
        return [SamplingParams(temperature=float(t)).temperature for t in given.split(",")]
    except (ValueError, UsageError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def record_traces(arguments: argparse.Namespace, asked: Mapping[str, Sequence[str]]) -> None:
    """Let the target write behind each prompt, at each temperature, and ask the draft model at every
    position.
    """
    from specllama.config.load import ModelSettings
    from specllama.llama.context import LlamaContext
    from specllama.llama.model import LlamaModel

    n_threads, n_ctx = 1, arguments.ctx
    target = LlamaModel(ModelSettings(path=arguments.model, n_threads=n_threads))
    draft = LlamaModel(ModelSettings(path=arguments.draft, n_threads=n_threads))
    writing, drafting = LlamaContext(target, n_ctx), LlamaContext(draft, n_ctx)
    found: dict[str, list[dict[str, Any]]] = {}
    for workload, prompts in asked.items():
        for prompt in prompts:
            ids = target.tokenize(prompt, target.adds_bos, True)
            room = n_ctx - len(ids)
            if room < 2:
                print(f"left out, longer than the context of {n_ctx} tokens: {prompt[:60]!r}")
                continue
            for temperature in arguments.temp:
                params = SamplingParams(temperature=temperature)
                n_most = min(arguments.n, room - 1)
                text = write_text(writing, ids, n_most, target.end_ids, params, arguments.seed)
                trace = record(ids, text, drafting, params, arguments.seed)
                name = f"{workload} T={temperature:g}" if len(arguments.temp) > 1 else workload
                found.setdefault(name, []).append(trace.to_dict())
    Path(arguments.record).write_text(json.dumps(found, separators=(",", ":")))
    print(f"{sum(map(len, found.values()))} traces in {arguments.record}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", nargs="*")
    for flag in ("cold", "mixed", "unread", "fixed", "detail", "parts", "time"):
        parser.add_argument(f"--{flag}", action="store_true")
    parser.add_argument("--record", metavar="OUT")
    parser.add_argument("--prompts")
    parser.add_argument("-m", "--model", default=str(EMBEDDED_TARGET))
    parser.add_argument("-md", "--draft", default=str(EMBEDDED_DRAFT))
    parser.add_argument("-n", type=int, default=256)
    parser.add_argument("--temp", type=temperatures, default=[0.0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ctx", type=int, default=2048)
    arguments = parser.parse_args()
    how = How(arguments.cold, arguments.mixed, arguments.unread, arguments.fixed)
    if arguments.record:
        if not arguments.prompts:
            parser.error("--record needs --prompts")
        try:
            asked = workloads.load_prompts(arguments.prompts)
        except SpecllamaError as error:
            parser.error(str(error))
        record_traces(arguments, asked)
    elif not arguments.traces:
        parser.error("which traces?")
    for path in arguments.traces:
        try:
            traces = load(path)
        except (OSError, ValueError, AttributeError) as error:
            parser.error(f"{path}: {error}")
        name = Path(path).stem
        if arguments.time:
            print(name)
            planner_time(traces)
            continue
        for label, texts in ((name, traces), (f"{name}, scrambled draft", scrambled(traces))):
            summary(label, list(cells(texts, how)), arguments.detail)
        if arguments.parts:
            parts(traces, how)


if __name__ == "__main__":
    main()
