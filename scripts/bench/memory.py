"""The gain of request history over copying from the request alone, without a draft model.

usage: python -m scripts.bench.memory replay [-m TARGET] [--requests N]
       python -m scripts.bench.memory engine [-m TARGET] [--requests N] [--runs N] [-t N]

Two workloads: records of one form to extract as JSON, and unrelated excerpts of the standard library's
sources. Texts are teacher-forced, so that any target writes them. replay: in simulated time on nine measured
machines, exact. engine: two engine processes, with request history and without, in turn; medians of the
decode tokens/s of the requests, and the ratio with its 95 % interval. Run nothing else on the machine.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from scripts import cli
from scripts.bench.measuring import CHATML
from scripts.bench.measuring.engine import Vocab
from scripts.bench.measuring.extraction import WORKLOADS, Exchange
from scripts.figures import mean, median_interval
from scripts.replay import hindsight
from specllama.client import protocol
from specllama.client.client import EngineClient
from specllama.config.load import LoadSettings, ModelSettings
from specllama.core.policy.planner import Planner
from specllama.core.replay.curves import curve
from specllama.core.replay.simulator import Replay, Replayed, Seconds, Trace
from specllama.core.stats import RunStats
from specllama.data import EMBEDDED_TARGET
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.request_history import MemoryDrafter
from specllama.drafters.ring import RequestHistory
from specllama.errors import SpecllamaError


def replayed(traces: Sequence[Trace], seconds: Seconds, with_history: bool) -> Replayed:
    """The traces in simulated time, with request history or without."""
    memory = RequestHistory()
    session = Replay(
        lambda drafters, clock: Planner(drafters, clock, hindsight.measured_curve(seconds)),
        seconds,
        None,
        CopyDrafter,
        others=[MemoryDrafter(memory)] if with_history else [],
        ended=lambda trace: memory.keep("", [*trace.prompt, *trace.text], len(trace.prompt)),
    )
    return session.replay(traces)


def replay(args: argparse.Namespace, vocab: Vocab) -> None:
    for name, make in WORKLOADS.items():
        texts = [(vocab.prompt(CHATML.format(a.prompt)), vocab.ids(a.text)) for a in make(args.requests, 1)]
        traces = [Trace(prompt, text, [0] * len(text), [0.0] * len(text)) for prompt, text in texts]
        gains = []
        print(f"{name}: {len(traces)} requests, {sum(len(t.text) for t in traces)} tokens")
        for machine, points in hindsight.MACHINES.items():
            seconds = curve(points)
            without, both = (replayed(traces, seconds, with_history) for with_history in (False, True))
            plain = hindsight.plain(traces, seconds)
            gains.append(without.seconds / both.seconds)
            rates = (
                f"{plain / without.seconds:.2f} x plain without, {plain / both.seconds:.2f} x with history"
            )
            print(f"  {machine:9s} {rates}: {gains[-1]:.3f}")
        print(f"  geometric mean {mean(gains):.3f}, worst {min(gains):.3f}")


def engine(args: argparse.Namespace, vocab: Vocab) -> None:
    """Measure in two new processes for every run: the history of an earlier run would hold the same texts."""
    for name, make in WORKLOADS.items():
        ratios, rates = [], {True: list[float](), False: list[float]()}
        drafted = accepted = 0
        for run in range(args.runs):
            exchanges = make(args.requests, run + 1)
            rng = random.Random(run)
            with ExitStack() as stack:
                clients = {with_history: loaded(stack, args, with_history) for with_history in (False, True)}
                for one in exchanges:
                    found = {way: written(clients[way], vocab, one) for way in rng.sample((False, True), 2)}
                    for way, stats in found.items():
                        rates[way].append(stats.decode_tps or 0.0)
                    ratios.append(found[False].decode_seconds / found[True].decode_seconds)
                    drafted += found[True].drafted_by["memory"]
                    accepted += found[True].n_accept - found[False].n_accept
        without, both = (statistics.median(rates[way]) for way in (False, True))
        total = mean(ratios)
        e = median_interval(ratios)
        print(
            f"{name}: {len(ratios)} requests; medians {without:.1f} t/s without, {both:.1f} t/s with history"
        )
        print(f"  ratio {statistics.median(ratios):.3f} (95 % {e.low:.3f} - {e.high:.3f}), mean {total:.3f}")
        print(f"  {drafted} tokens drafted from history, {accepted} more accepted than without", flush=True)


def loaded(stack: ExitStack, args: argparse.Namespace, with_history: bool) -> EngineClient:
    os.environ["SPECLLAMA_CACHE"] = stack.enter_context(tempfile.TemporaryDirectory())
    client = stack.enter_context(EngineClient())
    target = ModelSettings(path=str(args.model), n_ctx=2048, n_threads=args.threads)
    client.load(LoadSettings(target=target, memory=with_history, drafters=("copy",)))
    return client


def written(client: EngineClient, vocab: Vocab, exchange: Exchange) -> RunStats:
    """The statistics of writing the text after its prompt; decodes are measured after the first request."""
    prompt, forced = vocab.prompt(CHATML.format(exchange.prompt)), vocab.ids(exchange.text)
    request = protocol.Generate(
        client.next_id(), protocol.TokenInput(prompt), {"temperature": 0}, forced=forced
    )
    (done,) = (event for event in client.generate(request) if isinstance(event, protocol.Done))
    if done.unmeasured:
        client.calibrate(1.0)
    return done.stats


def main() -> None:
    parser = cli.parser(__doc__)
    parser.add_argument("command", choices=["replay", "engine"])
    parser.add_argument("-m", "--model", type=Path, default=EMBEDDED_TARGET)
    parser.add_argument("--requests", type=int, default=50, help="of a workload")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("-t", "--threads", type=int, default=2)
    args = parser.parse_args()
    if args.requests < 1 or args.runs < 1:
        parser.error("--requests and --runs must be 1 or more")
    try:
        vocab = Vocab(args.model)
    except SpecllamaError as error:
        parser.error(error.message)
    {"replay": replay, "engine": engine}[args.command](args, vocab)
    vocab.close()


if __name__ == "__main__":
    main()
