"""Replays recorded texts with the planner, in simulated time, on nine cost curves and three draft costs.

usage: python -m scripts.replay TRACES.json ... [--cold] [--mixed] [--unread] [--heads] [--fixed] [--detail]
                                [--parts] [--real]
       python -m scripts.replay TRACES.json ... --devices CURVES.json [--real]
       python -m scripts.replay TRACES.json ... --time
       python -m scripts.replay --record OUT.json [-m TARGET -md DRAFT] --prompts FILE [-n TOKENS]
                                [--temp 0,0.8] [--seed S]

Prints the speed-up over plain decoding, over llama.cpp's default (three draft tokens) and over the best of
its settings in hindsight, as geometric means over curves, costs and workloads; then the same with a scrambled
draft model, whose tokens and confidences are random.

  --cold    start without measured costs
  --mixed   replay the texts of all workloads in random order
  --unread  count the time in which the draft model reads prompts (for the planner only)
  --heads   the traces are those of heads, which read little of a prompt; their time for it counts
  --fixed   compare with the best of our own fixed lengths too (with draft models)
  --detail  print every cell
  --parts   print the gain of each part of the policy, by leaving it out
  --devices replay on devices whose decodes depend on the widths of those before, as on a GPU: gain of the
            planner, which holds the width of a text where changes cost something, and of the best fixed
            length
  --real    leave the scrambled draft model out
  --time    print the planner's own time for a round of one and of eight sequences, without its drafters

DRAFT may be a head, or TARGET again for the head inside it, or a model of another vocabulary. A prompts file
is a JSON object, workload to list of prompts; a traces file is an object, workload to list of {prompt, text,
draft, conf, second, second_conf}, where conf are probabilities and the others ids. With several temperatures,
the name of a recorded workload includes its temperature.
"""

from __future__ import annotations

import argparse
import inspect
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scripts import cli
from scripts.replay import devices, hindsight
from specllama import wire
from specllama.bench import runner as workloads
from specllama.client.protocol import Notice
from specllama.core.interfaces import CachingDrafter, Drafter
from specllama.core.policy.base import CHAINS, Draft, Round, RoundLimits
from specllama.core.policy.config import DEFAULT, PolicyConfig
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.planner import Planner
from specllama.core.replay.forecast import record, record_steps, write_text
from specllama.core.replay.simulator import GREEDY, Replay, Seconds, Trace, TraceDrafter, TraceHead, curve
from specllama.core.sampling.params import SamplingParams
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.feature_drafter import KEPT_ROWS
from specllama.errors import SpecllamaError, UsageError

if TYPE_CHECKING:
    from specllama.worker.loader import Loaded

Workloads = dict[str, list[Trace]]
CONFIDENCES = (0.3, 0.6, 0.9, 0.99, 0.999)  # of a scrambled draft model
NO_LIMIT = 1e9
PARTS: dict[str, PolicyConfig] = {
    "look-ahead over several tokens": replace(DEFAULT, lookahead=1),
    "reduced weight of their risk": replace(DEFAULT, risk_share=1.0),
    "drafts longer than 16": replace(DEFAULT, max_model_draft=16, chunk_margin=-1),
    "what a request shows of a drafter": replace(DEFAULT, request_rate=0.0),
    "what all requests show of first tokens": replace(DEFAULT, pair_rate=0.0),
    "drafts that are tried": replace(DEFAULT, explore_allowance=0.0),
    "speculation budget": replace(DEFAULT, round_share=NO_LIMIT, allowance=NO_LIMIT),
    "limited loss of a round": replace(DEFAULT, round_share=1.0),
    "few plain rounds": replace(DEFAULT, plain_every=25.0),
}


class Cell(NamedTuple):
    """A machine, draft cost and workload. rates: speed-up of the planner over other ways of decoding."""

    machine: str
    step: float
    workload: str
    rates: dict[str, float]


class ReplaySettings(NamedTuple):
    """How to replay: see the flags. copies: with the copy drafter."""

    cold: bool = False
    mixed: bool = False
    unread: bool = False
    fixed: bool = False
    heads: bool = False
    copies: bool = True
    config: PolicyConfig = DEFAULT


def seconds_by_workload(session: Replay, traces: Workloads, mixed: bool) -> dict[str, float]:
    """The time of each workload. mixed: replay the texts of all workloads in random order."""
    texts = [(workload, trace) for workload, some in traces.items() for trace in some]
    if mixed:
        random.Random(1).shuffle(texts)
    took = dict.fromkeys(traces, 0.0)
    for workload, trace in texts:
        took[workload] += session.replay([trace]).seconds
    return took


def cells(traces: Workloads, how: ReplaySettings) -> Iterator[Cell]:
    """Replay all workloads on every cost curve at every draft cost, each time with one planner."""
    free: Callable[[], Drafter] | None = CopyDrafter if how.copies else None
    draft = partial(TraceHead, n_kept=KEPT_ROWS) if how.heads else TraceDrafter
    prefilled = not (how.unread or how.heads)
    copies, decodes = dict[int, list[int]](), dict[str, list[list[hindsight.Decodes]]]()
    for workload, texts in traces.items():
        if how.copies:
            copies |= {id(text): hindsight.right_copies(text, CopyDrafter()) for text in texts}
        if how.fixed:
            lengths = hindsight.LENGTHS
            decodes[workload] = [[hindsight.fixed_decodes(t, n) for t in texts] for n in lengths]
    for machine, points in hindsight.MACHINES.items():
        seconds = curve(points)
        for step in hindsight.STEPS:

            def make(
                drafters: Sequence[Drafter], clock: Callable[[], float], t: Seconds = seconds
            ) -> Planner:
                costs = None if how.cold else hindsight.measured_curve(t, how.config)
                return Planner(drafters, clock, costs, config=how.config)

            session = Replay(make, seconds, step, free, prefilled=prefilled, draft=draft)
            ours = seconds_by_workload(session, traces, how.mixed)
            for workload, texts in traces.items():
                took = ours[workload]
                rates = {
                    "plain": hindsight.plain(texts, seconds) / took,
                    "n_max 3": sum(hindsight.llama_cpp_loop(t, seconds, step, 3) for t in texts) / took,
                    "best of grid": hindsight.best_of_grid(texts, seconds, step) / took,
                    "oracle stop": sum(
                        hindsight.oracle_stop(t, seconds, step, copies.get(id(t))) for t in texts
                    )
                    / took,
                }
                if how.fixed:
                    rates["best fixed"] = hindsight.best_fixed(decodes[workload], seconds, step) / took
                yield Cell(machine, step, workload, rates)


def scrambled(traces: Workloads) -> Workloads:
    """The same texts with a draft model whose tokens and confidences are random."""
    rng = random.Random(1)

    def scramble(trace: Trace) -> Trace:
        n = len(trace.text)
        return Trace(
            trace.prompt, trace.text, rng.choices(range(5, 4000), k=n), rng.choices(CONFIDENCES, k=n)
        )

    return {workload: [scramble(t) for t in texts] for workload, texts in traces.items()}


def summary(label: str, found: Sequence[Cell], detail: bool) -> None:
    """Print geometric means and the worst cells."""
    if detail:
        for c in found:
            rates = ", ".join(f"{rate:.3f} x {name}" for name, rate in c.rates.items())
            print(f"  {c.machine:9s} c={c.step:.2f} {c.workload:10s} {rates}")
    of_all = {k: statistics.geometric_mean(c.rates[k] for c in found) for k in found[0].rates}
    means = ", ".join(f"{rate:.3f} x {k}" for k, rate in of_all.items())
    print(f"{label}: {means} ({len(found)} cells)")
    for name in ("plain", "best fixed"):
        if name in found[0].rates:
            worst = min(found, key=lambda c: c.rates[name])
            where = f"{worst.machine}, draft cost {worst.step}, {worst.workload}"
            print(f"    worst against {name}: {worst.rates[name]:.3f} ({where})")


def parts(traces: Workloads, how: ReplaySettings) -> None:
    """Print the gain of each part: the rate with all parts over the rate without this one."""

    def rate(copies: bool = True, config: PolicyConfig = DEFAULT) -> float:
        varied = how._replace(fixed=False, copies=copies, config=config)
        return statistics.geometric_mean([c.rates["plain"] for c in cells(traces, varied)])

    whole = rate()
    print(f"    copying: {whole / rate(copies=False) - 1:+.1%}")
    for name, config in PARTS.items():
        print(f"    {name}: {whole / rate(config=config) - 1:+.1%}", flush=True)


DRAFTER_METHODS = {  # of the interfaces of drafters
    name
    for name, member in inspect.getmembers(CachingDrafter, inspect.isfunction)
    if not name.startswith("_")
}


class TimedPlanner(Planner):
    """A planner that measures itself. rounds: real seconds of each round, without those of its drafters."""

    def __init__(self, drafters: Sequence[Drafter], clock: Callable[[], float], costs: CostCurve) -> None:
        self.rounds: list[float] = []
        self._own = self._outside = 0.0
        for drafter in drafters:
            for name in DRAFTER_METHODS:
                if hasattr(drafter, name):
                    setattr(drafter, name, self._counted_outside(getattr(drafter, name)))
        super().__init__(drafters, clock, costs)

    def _counted_outside(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any) -> Any:
            began = time.perf_counter()
            result = method(*given)
            self._outside += time.perf_counter() - began
            return result

        return timed

    def _timed(self, method: Callable[..., Any], *given: Any) -> Any:
        began, outside = time.perf_counter(), self._outside
        found = method(*given)
        self._own += time.perf_counter() - began - (self._outside - outside)
        return found

    def draft(
        self, max_draft_len: Mapping[int, int], seconds: float = math.inf, limits: RoundLimits = CHAINS
    ) -> dict[int, Draft]:
        drafts: dict[int, Draft] = self._timed(super().draft, max_draft_len, seconds, limits)
        return drafts

    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:
        self._timed(super().committed, seq_id, tokens)

    def observe(self, done: Round) -> None:
        self._timed(super().observe, done)
        self.rounds.append(self._own)
        self._own = 0.0


def planner_time(traces: Workloads) -> None:
    """Print the planner's own milliseconds per round, over all curves and costs: mean, median, 99 %."""
    texts = [t for some in traces.values() for t in some]
    for n_slots in (1, 8):
        rounds: list[float] = []
        for points in hindsight.MACHINES.values():
            seconds = curve(points)
            for step in hindsight.STEPS:
                session = Replay(
                    partial(TimedPlanner, costs=hindsight.measured_curve(seconds)), seconds, step, CopyDrafter
                )
                session.replay(texts, n_slots)
                assert isinstance(session.policy, TimedPlanner)
                rounds += session.policy.rounds
        ms = sorted(1e3 * took for took in rounds)
        half, most = (ms[int(len(ms) * share)] for share in (0.5, 0.99))
        print(f"    {n_slots} at once: {statistics.mean(ms):.3f}, {half:.3f}, {most:.3f} ms a round")


def load(path: str) -> Workloads:
    return wire.from_text(dict[str, list[Trace]], Path(path).read_text())


def temperatures(given: str) -> list[float]:
    """The temperatures of --temp, checked as those of requests."""
    try:
        return [SamplingParams(temperature=float(t)).temperature for t in given.split(",")]
    except (ValueError, UsageError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def record_traces(arguments: argparse.Namespace, workload_prompts: Mapping[str, Sequence[str]]) -> None:
    """Write a text with the target after each prompt at each temperature, and record the prediction of the
    draft, a model or a head, at every position. Raises SpecllamaError.
    """
    pair, n_ctx = loaded_pair(arguments), arguments.ctx
    found: Workloads = {}
    for workload, prompts in workload_prompts.items():
        for prompt in prompts:
            ids = pair.model.tokenize(prompt, pair.model.adds_bos, True)
            room = n_ctx - len(ids)
            if room < 2:
                print(f"left out, longer than the context of {n_ctx} tokens: {prompt[:60]!r}")
                continue
            for temperature in arguments.temp:
                params = SamplingParams(temperature=temperature)
                n_max = min(arguments.n, room - 1)
                text = write_text(pair.context, ids, n_max, pair.model.end_ids, params, arguments.seed)
                trace = recorded(pair, ids, text, params, arguments.seed)
                name = f"{workload} T={temperature:g}" if len(arguments.temp) > 1 else workload
                found.setdefault(name, []).append(trace)
    cli.write(arguments.record, wire.to_json(found))
    print(f"{sum(map(len, found.values()))} traces in {arguments.record}")


def loaded_pair(arguments: argparse.Namespace) -> Loaded:
    """Target and draft. Raises SpecllamaError."""
    from specllama.config.load import LoadSettings, ModelSettings
    from specllama.config.store import Store
    from specllama.worker.loader import Loaded

    n_ctx = arguments.ctx
    target, draft = (
        ModelSettings(path=path, n_threads=1, n_ctx=n_ctx) for path in (arguments.model, arguments.draft)
    )
    settings = LoadSettings(
        target=target, draft=draft, draft_vocab="auto", drafters=("model",), calibrate=False
    )
    with tempfile.TemporaryDirectory() as folder:
        notices: list[str] = []
        pair = Loaded(settings, partial(_add_notice, notices), Store(Path(folder)))
    if pair.draft is None and (pair.head is None or pair.head.settings.path != draft.path):
        raise UsageError("; ".join(notices) or pair.off_reason)
    return pair


def recorded(
    pair: Loaded, ids: Sequence[int], text: Sequence[int], params: SamplingParams = GREEDY, seed: int = 0
) -> Trace:
    """The trace of a text after a prompt."""
    if pair.draft is not None and pair.draft.translation is None:
        return record(ids, text, pair.draft.context, params, seed)
    (drafter,) = pair.drafters
    target = pair.context if pair.draft is None else None
    return record_steps(ids, text, drafter, pair.model.n_vocab, params, seed, target)


def _add_notice(notices: list[str], message: object) -> None:
    if isinstance(message, Notice):
        notices.append(message.text)


def main() -> None:
    parser = cli.parser(__doc__)
    parser.add_argument("traces", nargs="*")
    for flag in ("cold", "mixed", "unread", "heads", "fixed", "detail", "parts", "time", "real"):
        parser.add_argument(f"--{flag}", action="store_true")
    parser.add_argument("--devices", metavar="CURVES")
    parser.add_argument("--record", type=cli.output, metavar="OUT")
    parser.add_argument("--prompts")
    parser.add_argument("-m", "--model", default=str(EMBEDDED_TARGET))
    parser.add_argument("-md", "--draft", default=str(EMBEDDED_DRAFT))
    parser.add_argument("-n", type=int, default=256)
    parser.add_argument("--temp", type=temperatures, default=[0.0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ctx", type=int, default=2048)
    arguments = parser.parse_args()
    flags = ("cold", "mixed", "unread", "fixed", "heads")
    how = ReplaySettings(*(getattr(arguments, flag) for flag in flags))
    if arguments.record:
        if not arguments.prompts:
            parser.error("--record needs --prompts")
        try:
            record_traces(arguments, workloads.load_prompts(arguments.prompts))
        except SpecllamaError as error:
            parser.error(str(error))
    elif not arguments.traces:
        parser.error("no traces are given")
    for path in arguments.traces:
        try:
            traces = load(path)
        except (OSError, ValueError, AttributeError) as error:
            parser.error(f"{path}: {error}")
        name, found = Path(path).stem, dict[str, Mapping[str, Any]]()
        if arguments.devices:
            try:
                found = devices.load_devices(arguments.devices)
            except (OSError, ValueError, AttributeError) as error:
                parser.error(f"{arguments.devices}: {error}")
        labelled = [(name, traces)]
        if not arguments.real:
            labelled.append((f"{name}, scrambled draft", scrambled(traces)))
        if found:
            for label, some in labelled:
                texts = [text for texts in some.values() for text in texts]
                devices.show(label, devices.device_cells(found, texts))
            continue
        if arguments.time:
            print(name)
            planner_time(traces)
            continue
        for label, texts in labelled:
            summary(label, list(cells(texts, how)), arguments.detail)
        if arguments.parts:
            parts(traces, how)


if __name__ == "__main__":
    main()
