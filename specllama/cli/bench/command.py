"""`specllama bench`: plain against speculative decoding on this machine with this pair."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from specllama.bench.plan import BenchSample, configs, order
from specllama.bench.record import record
from specllama.bench.report import report
from specllama.bench.runner import BenchRunner
from specllama.bench.summary import summarise
from specllama.bench.verdict import verdict
from specllama.cli import console, readout
from specllama.cli.answer import INTERRUPTED, log_file, template_variables
from specllama.cli.bench import text as bench_text
from specllama.cli.bench.plan import BenchPlan, plan
from specllama.cli.download import prepared
from specllama.cli.progress import Progress
from specllama.cli.provenance import provenance
from specllama.cli.report_file import replaced
from specllama.client import protocol as m
from specllama.client.client import EngineClient
from specllama.config import build
from specllama.config.load import LoadSettings
from specllama.config.options_measuring import ASKING
from specllama.errors import SpecllamaError, UsageError

EXAMPLES = """
Examples:
  specllama bench --runs 1
  specllama bench -m main.gguf -md draft.gguf --workloads edit,json --report bench.html
  specllama bench -m main.gguf -md draft.gguf --prompts mine.json -n 128 --json > bench.json
  specllama bench -m main.gguf -md none --text edited.py -n 500
  specllama bench --server http://127.0.0.1:8080 --concurrency 1,4,8 --report serving.html

Ctrl-C shows what has been measured by then.
"""
_LONG = 60.0  # seconds of measuring that are announced before


@dataclass(slots=True)
class _Measured:
    """What a bench has got so far."""

    info: m.LoadInfo | None = None
    samples: list[BenchSample] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    planned: int = 0
    seconds: float = 0.0
    interrupted: bool = False
    failure: SpecllamaError | None = None


def bench(given: Mapping[str, Any]) -> int:
    """Measure, print the tables, write the report; the exit code. Raises SpecllamaError, once what was
    measured before it has been shown. With --server it is a server that is measured.
    """
    if "server" in given:
        from specllama.cli.bench.server import bench_server

        return bench_server(given)
    given = _without_server(given)
    # bench drafts as it wants to, and what earlier answers said must not help: the same are asked for again.
    # What was measured and learnt before it, the default begins with, as in a run; what the same few prompts
    # teach is not stored.
    decided = {"draft_max", "draft_min", "draft_p_min"}
    values = build.resolved(given).without(*decided).overlaid({"no_memory": True, "no_calibrate": True})
    wanted = plan(given, values)
    settings = prepared(build.load_settings(values), values.get("force", False))
    variables, log = template_variables(values), log_file(values)
    measured = _Measured()
    with log or contextlib.nullcontext():
        verbose = values.get("verbose", False) or log is not None
        try:
            with EngineClient(log or (sys.stderr if verbose else None)) as client:
                _measure(client, settings, wanted, variables, verbose, measured)
        except KeyboardInterrupt:
            measured.interrupted = True
        except SpecllamaError as error:
            measured.failure = error
    if measured.samples:
        _show(wanted, measured, settings.exact, values.get("json", False))
    if measured.failure is not None:
        raise measured.failure
    return INTERRUPTED if measured.interrupted else 0


def _without_server(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The command line where no server is asked. Raises UsageError."""
    for option in ASKING:
        if option.name in given:
            raise UsageError(f"{option.flags[0]} needs --server URL, without it nobody is asked")
    if "model_name" not in given:
        return given
    if "model" in given:
        raise UsageError("-m and --model are both given")
    return {"model": given["model_name"]} | {k: v for k, v in given.items() if k != "model_name"}


def _measure(
    client: EngineClient,
    settings: LoadSettings,
    wanted: BenchPlan,
    variables: dict[str, Any],
    verbose: bool,
    into: _Measured,
) -> None:
    progress = Progress(delay=1.0)
    try:
        info = client.load(settings, lambda name, share: progress.show(f"loading the {name}", share), verbose)
    finally:
        progress.clear()
    into.info = info
    console.note(readout.start_line(info).removesuffix(", length auto"))
    for note in info.notes:
        console.show(note)
    raw = not info.template_works
    if raw:
        console.note("note: the model has no chat template, prompts go in as they are")
    runner = BenchRunner(client, wanted.params, variables, raw)
    ways = configs(wanted.lengths, bool(_drafters(info)))
    into.planned = len(wanted.cases) * len(ways) * wanted.runs
    began = time.monotonic()
    for n, config in enumerate(runner.warm_up(ways, wanted.cases), 1):
        progress.show("warming up", n / len(ways), config.name)
    progress.clear()
    _announce(into.planned, (time.monotonic() - began) / len(ways) * into.planned)
    began = time.monotonic()
    progress = Progress(delay=1.0, every=15.0)
    try:
        steps = order(wanted.cases, ways, wanted.runs)
        for n, sample in enumerate(runner.measure(steps), 1):
            if sample is not None:
                into.samples.append(sample)
            into.seconds = time.monotonic() - began
            left = bench_text.duration(into.seconds / n * (into.planned - n))
            progress.show("measuring", n / into.planned, f"of {into.planned} answers, {left} left")
            while client.notices:
                progress.clear()
                console.note(f"note: {client.notices.pop(0)}")
    finally:
        progress.clear()
        into.skipped = {f"{case.workload} {case.number}": why for case, why in runner.skipped.items()}


def _drafters(info: m.LoadInfo) -> list[str]:
    """Who drafts without a grammar."""
    return [name for name in info.drafters if name != "grammar"] if not info.off_reason else []


def _announce(planned: int, seconds: float) -> None:
    if seconds > _LONG:
        console.note(
            f"{planned} answers, {bench_text.duration(seconds)}; Ctrl-C shows what there is by then, "
            "--runs, -n, --k, --temp and --workloads make it shorter"
        )


def _show(wanted: BenchPlan, measured: _Measured, exact: bool, as_json: bool) -> None:
    info = measured.info
    assert info is not None
    ways = configs(wanted.lengths, bool(_drafters(info)))
    summary = summarise(measured.samples, [c.name for c in ways])
    off = "" if _drafters(info) else info.off_reason or "no drafter has anything to do without a grammar"
    found, about = verdict(summary, off), _about(wanted, measured, exact)
    if as_json:
        console.data(json.dumps(record(summary, measured.samples, about, found)) + "\n")
    else:
        width = shutil.get_terminal_size((80, 24)).columns
        lines = bench_text.lines(summary, about, found, max(40, width))
        console.data("".join(f"{line}\n" for line in lines))
    if wanted.report is not None:
        with replaced(wanted.report) as file:
            file.write(report(summary, about, found))
        console.note(f"report: {wanted.report}")


def _about(wanted: BenchPlan, measured: _Measured, exact: bool) -> dict[str, Any]:
    """Models, machine and settings of the bench."""
    info = measured.info
    assert info is not None
    return {
        **provenance(info.n_threads),
        "target": asdict(info.target),
        "draft": asdict(info.draft) if info.draft else None,
        "drafters": _drafters(info),
        "n_ctx": info.n_ctx,
        "load_ms": 1000 * info.load_seconds,
        "settings": {
            "text": wanted.text,
            "n_tokens": wanted.n_tokens,
            "runs": wanted.runs,
            "k": list(wanted.lengths),
            "temperatures": list(wanted.temperatures),
            "workloads": {name: len(prompts) for name, prompts in wanted.workloads.items()},
        },
        "exact": exact,
        "planned": measured.planned,
        "seconds": measured.seconds,
        "interrupted": measured.interrupted or measured.failure is not None,
        "skipped": measured.skipped,
    }
