"""`specllama bench`: plain against speculative decoding on this machine with this pair."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from specllama.bench.report import report
from specllama.bench.runner import BenchConfig, BenchRunner, BenchSample, configs, order, row_times
from specllama.bench.summary import SCHEMA, sample_figures, summarise
from specllama.bench.words import advice, draft_answer, verdict
from specllama.cli import console, readout
from specllama.cli.answer import engine_log, load, log_file
from specllama.cli.bench.plan import BenchPlan, PartialResults, make_plan, provenance, warn_if_busy
from specllama.cli.bench.text import lines, write_report
from specllama.cli.formatting import rough_duration
from specllama.cli.options import resolved
from specllama.cli.progress import Progress, prepared
from specllama.client.client import EngineClient
from specllama.client.model_info import LoadInfo
from specllama.clock import running_time
from specllama.config import build
from specllama.config.options import ASKING
from specllama.core.gain import was_busy
from specllama.errors import UsageError
from specllama.json_types import JsonObject
from specllama.other_work import OtherWork, is_disturbed, usage
from specllama.text.prompt_parts import reasoning_variables
from specllama.wording import counted


@dataclass(slots=True)
class BenchResults(PartialResults):
    info: LoadInfo | None = None
    samples: list[BenchSample] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    planned: int = 0
    seconds: float = 0.0
    disturbed: bool = False  # by other programs

    @property
    def are_off(self) -> bool:
        """Whether other programs changed the times, by the rule of `tune`, or rounds stalled."""
        stalled = was_busy(sample.stats for sample in self.samples)
        return self.disturbed or stalled or is_disturbed(row_times(self.samples))


def bench(given: Mapping[str, Any]) -> int:
    """Measure, print the tables, write the report; returns the exit code. With --server, measure a server.

    Raises the SpecllamaError that ended the measurement, after the results before it are shown.
    """
    if "server" in given:
        from specllama.cli.bench.server import bench_server

        return bench_server(given)
    given = _without_server(given)
    # bench sets the draft lengths itself. Request history would know the answers, as prompts are repeated.
    # All prompts are evaluated. Stored calibration and acceptance are used, but not updated from these.
    values = resolved(given).without("draft_max", "draft_min", "draft_p_min")
    values = values.overlaid({"no_memory": True, "no_calibrate": True, "cache_ram": "0"})
    plan = make_plan(given, values)
    settings = prepared(build.load_settings(values), values)
    variables, log = reasoning_variables(values.get("reasoning", "auto")), log_file(values)
    results = BenchResults()
    with log or contextlib.nullcontext():
        client = EngineClient(engine_log(log, values.get("verbose", False)))
        own = EngineClient(engine_log(log, False), kernels=False) if plan.without_kernels else None
        with results.collecting(), client, own or contextlib.nullcontext():
            if own is not None:
                own.load(settings)
            results.info = load(
                client, values, settings, lambda one: readout.start_line(one).removesuffix(", length auto")
            )
            _measure(client, own, plan, variables, results)
    if results.samples:
        _show(given, plan, results, settings.exact)
    else:
        results.say_nothing_measured()
    return results.exit_code()


def _without_server(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The command line of a bench without --server. Raises UsageError for options that need it."""
    for option in ASKING:
        if option.name in given:
            raise UsageError(f"{option.flags[0]} needs --server URL")
    if "model_name" not in given:
        return given
    if "model" in given:
        raise UsageError("-m and --model are both given")
    return {"model": given["model_name"]} | {k: v for k, v in given.items() if k != "model_name"}


def _measure(
    client: EngineClient, own: EngineClient | None, plan: BenchPlan, variables: JsonObject, into: BenchResults
) -> None:
    info = into.info
    assert info is not None
    if raw := not info.template_works:
        console.note("note: the model has no chat template, prompts go in as they are")
    warn_if_busy()
    runner = BenchRunner(client, plan.params, variables, raw, without_kernels=own)
    ways = _ways(plan, info)
    into.planned = len(plan.cases) * len(ways) * plan.runs
    most = "" if plan.n_tokens is None else f" of up to {counted(plan.n_tokens, 'token')}"
    console.note(
        f"measuring takes {counted(into.planned, 'answer')}{most}, after {len(ways)} to warm up; "
        "Ctrl-C shows the results by then, --runs, -n, --k, --temp and --workloads make it shorter"
    )
    began = running_time()
    with Progress(delay=1.0) as progress:
        for n, config in enumerate(runner.warm_up(ways, plan.cases), 1):
            if n == 1:  # plain decoding
                progress.clear()
                seconds = (running_time() - began) * (len(ways) + into.planned)
                console.note(f"that takes about {rough_duration(seconds)} by the first of them")
            progress.show("warming up", n / len(ways), config.name)
    began = running_time()
    processes = [one.pid for one in (client, own) if one is not None]
    others = OtherWork(info.n_threads, read=partial(usage, processes=processes))
    with Progress(delay=1.0) as progress:
        for n, sample in enumerate(map(runner.answer, order(plan.cases, ways, plan.runs)), 1):
            if sample is not None:
                into.samples.append(sample)
            into.skipped = {f"{case.workload} {case.number}": why for case, why in runner.skipped.items()}
            into.seconds, into.disturbed = running_time() - began, others.disturbs
            left = rough_duration(into.seconds / n * (into.planned - n))
            planned = counted(into.planned, "answer")
            progress.show("measuring", n / into.planned, f"of {planned}, about {left} left")
            while client.notices:
                progress.clear()
                console.note(f"note: {client.notices.pop(0)}")


def _ways(plan: BenchPlan, info: LoadInfo) -> list[BenchConfig]:
    """The configurations to measure; copying alone too where a draft model or head drafts besides it."""
    names = _drafters(info)
    n_models = sum(name in info.model_based for name in names)
    return configs(plan.lengths, bool(names), plan.without_kernels, 0 < n_models < len(names))


def _drafters(info: LoadInfo) -> list[str]:
    """The drafters that need no grammar."""
    return [name for name in info.drafters if name not in info.forced] if not info.off_reason else []


def _show(given: Mapping[str, Any], plan: BenchPlan, results: BenchResults, exact: bool) -> None:
    info = results.info
    assert info is not None
    off = "" if _drafters(info) else info.off_reason or "the only drafter needs a grammar"
    summary = summarise(results.samples, [c.name for c in _ways(plan, info)])
    record = {"schema": SCHEMA, **_about(plan, results, info, exact), **summary}
    busy, samples = results.are_off, [sample_figures(s) for s in results.samples]
    record |= {"verdict": verdict(summary, off, busy), "samples": samples}
    helps = "" if busy else draft_answer(summary, "head" if info.head else "draft model")
    answers = [*([helps] if helps else []), advice(summary, off, busy)]
    console.report(given, record, lines(record, answers, console.width()))
    write_report(plan.report, report, record)


def _about(plan: BenchPlan, results: BenchResults, info: LoadInfo, exact: bool) -> JsonObject:
    return {
        **provenance(info.n_threads),
        "target": asdict(info.target),
        "draft": asdict(info.draft) if info.draft else None,
        "head": info.head,
        "head_in_target": info.head_in_target,
        "drafters": _drafters(info),
        "n_ctx": info.n_ctx,
        "load_ms": 1000 * info.load_seconds,
        "settings": {
            "text": plan.text,
            "n_tokens": plan.n_tokens,
            "runs": plan.runs,
            "k": list(plan.lengths),
            "temperatures": list(plan.temperatures),
            "workloads": {name: len(prompts) for name, prompts in plan.workloads.items()},
        },
        "exact": exact,
        "planned": results.planned,
        "seconds": results.seconds,
        "interrupted": results.is_partial,
        "skipped": results.skipped,
    }
