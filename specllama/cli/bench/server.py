"""`specllama bench --server`: a server under more and more requests at once, whoever's it is."""

from __future__ import annotations

import asyncio
import datetime
import json
import shutil
import time
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
from specllama.cli.answer import INTERRUPTED
from specllama.cli.bench import server_text as bench_server_text
from specllama.cli.bench import text as bench_text
from specllama.cli.bench.server_plan import ServerPlan, server_plan
from specllama.cli.progress import Progress
from specllama.cli.report_file import replaced
from specllama.config import build
from specllama.errors import SpecllamaError

_LONG = 60.0  # seconds of measuring that are announced before


@dataclass(slots=True)
class _Found:
    """What a bench has got so far. why_one: why there is one series alone."""

    about: ServerInfo | None = None
    series: Sequence[str] = ()
    why_one: str = ""
    cells: list[ServingMeasurement] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False
    failure: SpecllamaError | None = None

    @property
    def answers(self) -> int:
        return sum(len(m.succeeded) for m in self.cells)


def bench_server(given: Mapping[str, Any]) -> int:
    """Measure, print the table, write the report; the exit code. Raises SpecllamaError, once what was
    measured before it has been shown.
    """
    plan = server_plan(given, build.resolved(given))
    found = _Found()
    try:
        asyncio.run(_measure(plan, found))
    except KeyboardInterrupt:
        found.interrupted = True
    except SpecllamaError as error:
        found.failure = error
    if found.answers:
        _show(plan, found, given.get("json", False))
    elif found.interrupted:
        console.note("nothing was measured yet")
    if found.failure is not None:
        raise found.failure
    return INTERRUPTED if found.interrupted else 0


async def _measure(plan: ServerPlan, into: _Found) -> None:
    agent = f"specllama/{specllama.__version__}"
    progress = Progress(delay=1.0, every=15.0)
    async with ServerClient(plan.address, plan.key, agent, plan.seconds) as server:
        into.about = await server.info(plan.model, plan.wanted.raw)
        into.series, into.why_one = _series(into.about)
        console.note(_start_line(into.about))
        if into.why_one:
            console.note(f"note: one series: {into.why_one}")
        first = await warm_up(server, into.series, plan.wanted, into.about.model)
        if not any(answer.n_tokens for answer in first):
            console.warning("the first answer has no text; the model or --prompts may not suit chats")
        planned = _planned(plan, into)
        _announce(planned, planned * max(answer.seconds for answer in first))
        began = time.monotonic()

        def watch(cell: ServingCell, n: int) -> None:
            into.seconds = time.monotonic() - began
            left = bench_text.duration(into.seconds / n * (planned - n))
            clients = f"{cell.concurrency} client{'s' if cell.concurrency > 1 else ''}"
            progress.show("measuring", n / planned, f"of {planned} answers, {clients} now, {left} left")

        try:
            await sweep(server, into.series, plan.wanted, into.about.model, into.cells, watch)
        finally:
            progress.clear()


def _series(about: ServerInfo) -> tuple[Sequence[str], str]:
    """The series that can be compared, and why there is one alone. A request switches speculation off by a
    field of specllama's; nobody else is sent it.
    """
    if about.owner != "specllama":
        said = f", its models are owned by {about.owner[:40]!r}" if about.owner else ""
        return [SERVED], f"only specllama serve lets a request switch speculation off, and this is none{said}"
    if about.speculation.get("speculation") == "off":
        why = str(about.speculation.get("reason") or "it was switched off there")[:200]
        return [SERVED], f"the server does not speculate: {why}"
    return [SPECULATIVE, PLAIN], ""


def _start_line(about: ServerInfo) -> str:
    parts = [about.model or "no model named", about.build or about.owner]
    parts += [f"{about.n_slots} slots"] if about.n_slots else []
    return bench_text.printable(f"measuring {about.base}: {', '.join(filter(None, parts))}")


def _planned(plan: ServerPlan, found: _Found) -> int:
    wanted = plan.wanted
    return len(found.series) * len(wanted.concurrencies) * wanted.runs * len(wanted.prompts)


def _announce(planned: int, seconds: float) -> None:
    if seconds > _LONG:
        console.note(
            f"{planned} answers, {bench_text.duration(seconds)} were they one by one; Ctrl-C shows what "
            "there is by then, --runs, -n, --requests, --concurrency and --workloads make it shorter"
        )


def _show(plan: ServerPlan, found: _Found, as_json: bool) -> None:
    summary: ServingSummary = summarise(found.cells, found.series)
    about, text = _about(plan, found), verdict(summary, found.why_one)
    if as_json:
        console.data(json.dumps(record(summary, found.cells, about, text)) + "\n")
    else:
        width = max(40, shutil.get_terminal_size((80, 24)).columns)
        shown = bench_server_text.lines(summary, about, text, width)
        console.data("".join(f"{line}\n" for line in shown))
    if plan.report is not None:
        with replaced(plan.report) as file:
            file.write(report(summary, about, text))
        console.note(f"report: {plan.report}")


def _about(plan: ServerPlan, found: _Found) -> dict[str, Any]:
    """Server and settings of the bench."""
    about, wanted = found.about, plan.wanted
    assert about is not None
    problems = [a.problem.message for m in found.cells for a in m.answers if a.problem is not None]
    return {
        "version": specllama.__version__,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "server": {
            "url": about.base,
            "model": about.model,
            "owner": about.owner,
            "build": about.build,
            "n_slots": about.n_slots,
        },
        "series": list(found.series),
        "one_series": found.why_one or None,
        "settings": {
            "requests": len(wanted.prompts),
            "concurrency": list(wanted.concurrencies),
            "runs": wanted.runs,
            "n_tokens": wanted.n_tokens,
            "temperature": wanted.temperature,
            "raw": wanted.raw,
            "ignore_eos": wanted.ignore_eos,
            "timeout": plan.seconds,
            "workloads": dict(plan.workloads),
        },
        "answers": found.answers,
        "planned": _planned(plan, found),
        "seconds": found.seconds,
        "interrupted": found.interrupted or found.failure is not None,
        "failure": found.failure.message if found.failure is not None else None,
        "problems": list(dict.fromkeys(problems))[:10],
    }
