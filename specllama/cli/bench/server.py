"""`specllama bench --server`: any OpenAI-compatible server at increasing numbers of concurrent requests."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import specllama
from specllama.bench import runner, sweep
from specllama.bench.report import sweep_report
from specllama.bench.server_client import ServerAddress, ServerClient, ServerInfo, parse_address
from specllama.bench.sweep import MAX_MARK, PLAIN, SERVED, SPECULATIVE, SweepSettings
from specllama.cli import console
from specllama.cli.bench import plan as flags
from specllama.cli.bench.text import checked_path, sweep_lines, write_report
from specllama.cli.formatting import rough_duration
from specllama.cli.options import resolved
from specllama.cli.progress import Progress
from specllama.cli.serve import keys
from specllama.clock import run, running_time
from specllama.config.options import ASKING, BENCH
from specllama.errors import UsageError
from specllama.json_types import JsonObject
from specllama.text.terminal import printable
from specllama.wording import counted

CONCURRENCY, SECONDS = "1,2,4,8,16", 600.0
MAX_CLIENTS, MAX_REQUESTS = 256, 10_000
_SHARED = (
    "prompts", "workloads", "n_tokens", "runs", "temperatures", "model_name", "report", "json", "debug",
)  # fmt: skip
_SETTINGS = ("runs", "n_tokens", "temperature", "raw", "ignore_eos")
_ALLOWED = {*_SHARED, *(option.name for option in ASKING)}


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """The server and its requests. key: "" for none; model: by the server's name, "" for the first;
    seconds: the limit of an answer; workloads: numbers of prompts.
    """

    address: ServerAddress
    key: str = field(repr=False)
    model: str
    seconds: float
    sweep: SweepSettings
    workloads: Mapping[str, int]
    report: Path | None


def server_plan(given: Mapping[str, Any], values: Mapping[str, Any]) -> ServerPlan:
    """The plan. given: the command line; values: the same with configuration files and environment.

    Raises UsageError, NotFoundError.
    """
    where = parse_address(given["server"])
    for option in BENCH:
        if option.name in given and option.name not in _ALLOWED:
            hint = "its models and how they draft are the server's own; --model names one of them"
            raise UsageError(f"{option.flags[0]} has no meaning with --server", hint)
    clients = [
        flags.whole_number("--concurrency", text, 1, MAX_CLIENTS)
        for text in flags.list_items("--concurrency", given.get("concurrency", CONCURRENCY))
    ]
    chosen = runner.select(runner.load_prompts(given.get("prompts")), given.get("workloads"))
    n = flags.whole_number("--requests", given["requests"], 1, MAX_REQUESTS) if "requests" in given else None
    if n is not None and n < max(clients):
        raise UsageError(f"--requests {n} are fewer than the {max(clients)} clients of --concurrency")
    temperatures = flags.temperature_list(given.get("temperatures", "0"))
    if len(temperatures) > 1:
        raise UsageError("--temp takes one temperature with --server")
    seconds = given.get("timeout", SECONDS)
    if not (math.isfinite(seconds) and 0 < seconds <= 1e6):
        raise UsageError(f"--timeout takes seconds above 0, not {seconds:g}")
    model = given.get("model_name", "")
    if not model.isprintable() or len(model) > 512:
        raise UsageError("--model needs a name of up to 512 printable characters")
    known = keys(values)
    return ServerPlan(
        address=where,
        key=known[0] if known else "",
        model=model,
        seconds=seconds,
        sweep=SweepSettings(
            prompts=sweep.prompts(chosen, max(clients), n),
            concurrencies=sorted(set(clients)),
            runs=flags.whole_number("--runs", given.get("runs", flags.RUNS), 1, flags.MAX_RUNS),
            n_tokens=flags.whole_number("-n", given.get("n_tokens", flags.N_TOKENS), 2, flags.MAX_TOKENS),
            temperature=temperatures[0],
            raw=given.get("raw", False),
            ignore_eos=given.get("ignore_eos", False),
            number=secrets.randbelow(MAX_MARK),
        ),
        workloads={name: len(texts) for name, texts in chosen.items()},
        report=checked_path(given["report"]) if "report" in given else None,
    )


@dataclass(slots=True)
class ServerBenchResults(flags.PartialResults):
    """The results of a bench so far. why_one: why there is only one series."""

    about: ServerInfo | None = None
    series: Sequence[str] = ()
    why_one: str = ""
    cells: list[sweep.ServingMeasurement] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def answers(self) -> int:
        return sum(len(m.succeeded) for m in self.cells)


def bench_server(given: Mapping[str, Any]) -> int:
    """Measure, print the table, write the report; returns the exit code.

    Raises the SpecllamaError that ended the measurement, after the results before it are shown.
    """
    plan = server_plan(given, resolved(given))
    results = ServerBenchResults()
    with results.collecting():
        run(_measure(plan, results))
    if results.answers:
        _show(given, plan, results)
    else:
        results.say_nothing_measured()
    return results.exit_code()


async def _measure(plan: ServerPlan, into: ServerBenchResults) -> None:
    agent = f"specllama/{specllama.__version__}"
    progress = Progress(delay=1.0)
    async with ServerClient(plan.address, plan.key, agent, plan.seconds) as server:
        into.about = await server.info(plan.model, plan.sweep.raw)
        into.series, into.why_one = _series(into.about)
        parts = [into.about.model or "no model named", into.about.build or into.about.owner]
        parts += [counted(into.about.n_slots, "slot")] if into.about.n_slots else []
        console.note(printable(f"measuring {into.about.url}: {', '.join(filter(None, parts))}"))
        if into.why_one:
            console.note(f"note: one series: {into.why_one}")
        first = await sweep.warm_up(server, into.series, plan.sweep, into.about.model)
        if not any(answer.n_tokens for answer in first):
            console.warning("the first answer has no text; the model or --prompts may not suit chats")
        planned = _planned(plan, into)
        longest = rough_duration(planned * max(answer.seconds for answer in first))
        console.note(
            f"measuring takes {counted(planned, 'answer')}, about {longest} if sent one by one; "
            "Ctrl-C shows the results by then, --runs, -n, --requests, --concurrency and --workloads "
            "make it shorter"
        )
        began = running_time()

        def on_answer(cell: sweep.ServingCell, n: int) -> None:
            into.seconds = running_time() - began
            left = rough_duration(into.seconds / n * (planned - n))
            answers, clients = counted(planned, "answer"), counted(cell.concurrency, "client")
            progress.show("measuring", n / planned, f"of {answers}, {clients} now, about {left} left")

        with progress:
            await sweep.sweep(server, into.series, plan.sweep, into.about.model, into.cells, on_answer)


def _series(about: ServerInfo) -> tuple[Sequence[str], str]:
    """The series, and why there is only one. The field that switches drafts off is only specllama's."""
    if about.owner != "specllama":
        owner = f", its models are owned by {about.owner[:40]!r}" if about.owner else ""
        why = f"only specllama serve lets a request switch speculation off, and this is none{owner}"
        return [SERVED], why
    if about.speculation.get("speculation") == "off":
        why = str(about.speculation.get("reason") or "it was switched off there")[:200]
        return [SERVED], f"the server does not speculate: {why}"
    return [SPECULATIVE, PLAIN], ""


def _planned(plan: ServerPlan, results: ServerBenchResults) -> int:
    settings = plan.sweep
    return len(results.series) * len(settings.concurrencies) * settings.runs * len(settings.prompts)


def _show(given: Mapping[str, Any], plan: ServerPlan, results: ServerBenchResults) -> None:
    summary = sweep.summarise(results.cells, results.series)
    record = {"schema": sweep.SCHEMA, **_about(plan, results), **summary}
    record |= {
        "verdict": sweep.verdict(summary, results.why_one),
        "cells": [sweep.cell_figures(m) for m in results.cells if m.answers],
    }
    console.report(given, record, sweep_lines(record, console.width()))
    write_report(plan.report, sweep_report, record)


def _about(plan: ServerPlan, results: ServerBenchResults) -> JsonObject:
    about, settings = results.about, plan.sweep
    assert about is not None
    problems = [a.problem.message for m in results.cells for a in m.answers if a.problem is not None]
    return {
        "version": specllama.__version__,
        "date": flags.now(),
        "server": {name: getattr(about, name) for name in ("url", "model", "owner", "build", "n_slots")},
        "series": list(results.series),
        "one_series": results.why_one or None,
        "settings": {
            "requests": len(settings.prompts),
            "concurrency": list(settings.concurrencies),
            **{name: getattr(settings, name) for name in _SETTINGS},
            "timeout": plan.seconds,
            "workloads": dict(plan.workloads),
        },
        "answers": results.answers,
        "planned": _planned(plan, results),
        "seconds": results.seconds,
        "interrupted": results.is_partial,
        "failure": results.failure.message if results.failure is not None else None,
        "problems": list(dict.fromkeys(problems))[:10],
    }
