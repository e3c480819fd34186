"""`specllama bench --server`: any OpenAI-compatible server at increasing numbers of concurrent requests."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import specllama
from specllama.bench.serving.client import ServerClient, ServerInfo
from specllama.bench.serving.record import record
from specllama.bench.serving.report import report
from specllama.bench.serving.summary import ServingSummary, summarise
from specllama.bench.serving.sweep import (
    PLAIN,
    SERVED,
    SPECULATIVE,
    ServingCell,
    ServingMeasurement,
    sweep,
    warm_up,
)
from specllama.bench.serving.verdict import verdict
from specllama.cli import console
from specllama.cli.bench.report_file import write_report
from specllama.cli.bench.server_plan import ServerPlan, server_plan
from specllama.cli.bench.server_text import lines
from specllama.cli.files import resolved
from specllama.cli.formatting import columns, rough_duration
from specllama.cli.measuring import PartialResults, now
from specllama.cli.progress import Progress
from specllama.client.event_loop import run
from specllama.clock import running_time
from specllama.json_types import JsonObject
from specllama.text.terminal import printable
from specllama.wording import counted


@dataclass(slots=True)
class ServerBenchResults(PartialResults):
    """What a bench has measured so far. why_one: why there is only one series."""

    about: ServerInfo | None = None
    series: Sequence[str] = ()
    why_one: str = ""
    cells: list[ServingMeasurement] = field(default_factory=list)
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
        _show(plan, results, given.get("json", False))
    else:
        results.say_nothing_measured()
    return results.exit_code()


async def _measure(plan: ServerPlan, into: ServerBenchResults) -> None:
    agent = f"specllama/{specllama.__version__}"
    progress = Progress(delay=1.0)
    async with ServerClient(plan.address, plan.key, agent, plan.seconds) as server:
        into.about = await server.info(plan.model, plan.sweep.raw)
        into.series, into.why_one = _series(into.about)
        console.note(_start_line(into.about))
        if into.why_one:
            console.note(f"note: one series: {into.why_one}")
        first = await warm_up(server, into.series, plan.sweep, into.about.model)
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

        def on_answer(cell: ServingCell, n: int) -> None:
            into.seconds = running_time() - began
            left = rough_duration(into.seconds / n * (planned - n))
            answers, clients = counted(planned, "answer"), counted(cell.concurrency, "client")
            progress.show("measuring", n / planned, f"of {answers}, {clients} now, about {left} left")

        with progress:
            await sweep(server, into.series, plan.sweep, into.about.model, into.cells, on_answer)


def _series(about: ServerInfo) -> tuple[Sequence[str], str]:
    """The series to measure, and why there is only one. Requests switch speculation off by a field that only
    specllama knows; it is sent to no other server.
    """
    if about.owner != "specllama":
        owner = f", its models are owned by {about.owner[:40]!r}" if about.owner else ""
        why = f"only specllama serve lets a request switch speculation off, and this is none{owner}"
        return [SERVED], why
    if about.speculation.get("speculation") == "off":
        why = str(about.speculation.get("reason") or "it was switched off there")[:200]
        return [SERVED], f"the server does not speculate: {why}"
    return [SPECULATIVE, PLAIN], ""


def _start_line(about: ServerInfo) -> str:
    parts = [about.model or "no model named", about.build or about.owner]
    parts += [counted(about.n_slots, "slot")] if about.n_slots else []
    return printable(f"measuring {about.base}: {', '.join(filter(None, parts))}")


def _planned(plan: ServerPlan, results: ServerBenchResults) -> int:
    settings = plan.sweep
    return len(results.series) * len(settings.concurrencies) * settings.runs * len(settings.prompts)


def _show(plan: ServerPlan, results: ServerBenchResults, as_json: bool) -> None:
    summary: ServingSummary = summarise(results.cells, results.series)
    about, text = _about(plan, results), verdict(summary, results.why_one)
    if as_json:
        console.data(json.dumps(record(summary, results.cells, about, text)) + "\n")
    else:
        report_lines = lines(summary, about, text, columns(sys.stdout))
        console.data("".join(f"{line}\n" for line in report_lines))
    if plan.report is not None:
        write_report(plan.report, report(summary, about, text))
        console.note(f"report: {plan.report}")


def _about(plan: ServerPlan, results: ServerBenchResults) -> JsonObject:
    """Server and settings of the bench, for its record."""
    about, settings = results.about, plan.sweep
    assert about is not None
    problems = [a.problem.message for m in results.cells for a in m.answers if a.problem is not None]
    return {
        "version": specllama.__version__,
        "date": now(),
        "server": {
            "url": about.base,
            "model": about.model,
            "owner": about.owner,
            "build": about.build,
            "n_slots": about.n_slots,
        },
        "series": list(results.series),
        "one_series": results.why_one or None,
        "settings": {
            "requests": len(settings.prompts),
            "concurrency": list(settings.concurrencies),
            "runs": settings.runs,
            "n_tokens": settings.n_tokens,
            "temperature": settings.temperature,
            "raw": settings.raw,
            "ignore_eos": settings.ignore_eos,
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
