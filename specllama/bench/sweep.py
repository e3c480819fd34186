"""A sweep over concurrencies: which requests are sent, in which order, their answers, the figures of
`bench --server --json` from these, under its keys, and what they say in sentences.

A cell has a number of clients, each of which sends its next request once the last one is answered. All cells
send the same prompts. Answers are kept whatever ends the sweep.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice, zip_longest
from statistics import median
from typing import TYPE_CHECKING

from specllama.clock import running_time
from specllama.json_types import JsonObject
from specllama.wording import counted

if TYPE_CHECKING:  # it loads an HTTP client
    from specllama.bench.server_client import ServedAnswer, ServerClient

SCHEMA = "specllama.bench-server/1"
SPECULATIVE, PLAIN, SERVED = "speculative", "plain", "as served"
_CACHED = 0.25  # share of cached prompt tokens above which there is a note
MAX_MARK = 90_000  # numbers of five digits, which prompts begin with


@dataclass(frozen=True, slots=True)
class ServingCell:
    """A measurement: a series, a number of concurrent clients and a run, from 1."""

    series: str
    concurrency: int
    run: int


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """The requests of a sweep. prompts: of those of a cell; raw: prompts are texts to continue, not chat
    messages; number: of this measurement.
    """

    prompts: Sequence[str]
    concurrencies: Sequence[int]
    runs: int
    n_tokens: int
    temperature: float
    raw: bool = False
    ignore_eos: bool = False
    number: int = 0


def prompts(workloads: Mapping[str, Sequence[str]], least: int, n: int | None = None) -> list[str]:
    """n prompts, one of each workload in turn, repeated if too few; else all, up to a multiple of `least`."""
    mixed = [prompt for turn in zip_longest(*workloads.values()) for prompt in turn if prompt is not None]
    n = n or -(-len(mixed) // least) * least
    return list(islice(cycle(mixed), n))


def order(series: Sequence[str], settings: SweepSettings, seed: int = 0) -> Iterator[ServingCell]:
    """Every concurrency of every series, `runs` times. The series that are compared follow each other, in
    alternating order; concurrencies are shuffled, so that drift of the machine affects all alike.
    """
    rng = random.Random(seed)
    for run in range(1, settings.runs + 1):
        for i, concurrency in enumerate(rng.sample(settings.concurrencies, len(settings.concurrencies))):
            ordered = series if (run + i) % 2 else list(reversed(series))
            yield from (ServingCell(name, concurrency, run) for name in ordered)


def body(settings: SweepSettings, cell: ServingCell, number: int, model: str) -> JsonObject:
    """The JSON of the request `number` (from 0) of a cell.

    The prompt starts with a number that differs by concurrency and run, so that a series does not find its
    own prompts in the server's cache, and by measurement where the server's reuse of prompts cannot be
    switched off. Two series share it, so that they write the same texts, and switch the reuse off, so that
    both evaluate all of them.
    """
    first = settings.number if cell.series == SERVED else 0
    mark = 10_000 + (first + cell.run * 7919 + cell.concurrency * 613 + number * 31) % MAX_MARK
    text = f"({mark}) {settings.prompts[number]}"
    request: JsonObject = {"model": model} if model else {}
    request |= {"prompt": text} if settings.raw else {"messages": [{"role": "user", "content": text}]}
    request |= {"max_tokens": settings.n_tokens, "temperature": settings.temperature}
    request |= {"seed": 1000 * cell.run + number, "stream": True, "stream_options": {"include_usage": True}}
    if settings.ignore_eos:
        request["ignore_eos"] = True
    if cell.series != SERVED:  # with request history the second series would copy the texts of the first
        request["speculation"] = {"enabled": cell.series == SPECULATIVE, "memory": False}
        request["cache"] = {"reuse": False}
    return request


OnAnswer = Callable[[ServingCell, int], None]  # gets the cell and the number of answers so far


@dataclass(slots=True)
class ServingMeasurement:
    """A cell's answers. seconds: from the first request to the last answer; complete: none is missing."""

    cell: ServingCell
    answers: list[ServedAnswer] = field(default_factory=list)
    seconds: float = 0.0
    complete: bool = False

    @property
    def succeeded(self) -> list[ServedAnswer]:
        return [answer for answer in self.answers if answer.problem is None]


async def warm_up(
    server: ServerClient, series: Sequence[str], settings: SweepSettings, model: str
) -> list[ServedAnswer]:
    """One unmeasured answer of each series. Raises its problem, if it has one."""
    answers = []
    for name in series:
        answer = await server.complete(0, body(settings, ServingCell(name, 0, 0), 0, model))
        if answer.problem is not None:
            raise answer.problem
        answers.append(answer)
    return answers


async def sweep(
    server: ServerClient,
    series: Sequence[str],
    settings: SweepSettings,
    model: str,
    into: list[ServingMeasurement],
    on_answer: OnAnswer,
) -> None:
    """Measures all cells; each is added to `into` before it begins.

    Raises the problem that ends the sweep: the server is gone, hangs or rejects the key, or it answers none
    of a cell's requests.
    """
    n = 0
    for cell in order(series, settings):
        measured = ServingMeasurement(cell)
        into.append(measured)

        def add(answer: ServedAnswer, measured: ServingMeasurement = measured) -> None:
            nonlocal n
            n += 1
            measured.answers.append(answer)
            on_answer(measured.cell, n)

        await _measure(server, settings, model, measured, add)
        problems = [answer for answer in measured.answers if answer.problem is not None]
        ending = next((a for a in problems if a.fatal), None if measured.succeeded else problems[0])
        if ending is not None:
            assert ending.problem is not None
            raise ending.problem


async def _measure(
    server: ServerClient,
    settings: SweepSettings,
    model: str,
    into: ServingMeasurement,
    add: Callable[[ServedAnswer], None],
) -> None:
    numbers = iter(range(len(settings.prompts)))
    began, fatal = running_time(), False

    async def client() -> None:
        nonlocal fatal
        for number in numbers:  # shared by the clients
            answer = await server.complete(number, body(settings, into.cell, number, model))
            into.seconds = running_time() - began
            fatal |= answer.fatal
            add(answer)
            if fatal:
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(into.cell.concurrency):
            group.create_task(client())
    into.complete = not fatal


# The figures of a sweep. Times are in seconds unless a key ends in ms; None means unknown.


def summarise(measured: Sequence[ServingMeasurement], series: Sequence[str]) -> JsonObject:
    """The figures of a sweep that may have been interrupted: rows by series, then concurrency; tokens per
    second of the speculative series over the plain one's, those of the rows; texts_compared: requests that
    both series answered; texts_different: how many of those got different texts.
    """
    concurrencies = sorted({m.cell.concurrency for m in measured})
    rows = [
        _row(name, c, cells)
        for name in series
        for c in concurrencies
        if (cells := [m for m in measured if (m.cell.series, m.cell.concurrency) == (name, c) and m.answers])
    ]
    rates = {(row["series"], row["concurrency"]): row["tps"] for row in rows}
    digests: dict[tuple[int, int, int], list[str]] = {}
    for m in measured:
        for answer in m.succeeded:
            key = (m.cell.concurrency, m.cell.run, answer.number)
            digests.setdefault(key, []).append(answer.digest)
    both = [texts for texts in digests.values() if len(texts) == 2]
    counts = all(answer.n_predict is not None for m in measured for answer in m.succeeded)
    return {
        "tokens_counted_by": "server" if counts else "chunks",
        "rows": rows,
        "speculative_against_plain": [
            {"concurrency": c, "tps": rate / plain}
            for c in concurrencies
            if (rate := rates.get((SPECULATIVE, c))) and (plain := rates.get((PLAIN, c)))
        ],
        "texts_compared": len(both),
        "texts_different": sum(one != other for one, other in both),
    }


def cell_figures(m: ServingMeasurement) -> JsonObject:
    """The figures of a cell. tps: tokens per second of all clients together, None if it was interrupted;
    ttft_ms: to the first text of an answer; inter_token_ms: between tokens, see ServedAnswer.gaps;
    answer_seconds: to the end of an answer.
    """
    answers = m.succeeded
    n = sum(answer.n_tokens for answer in answers)
    return {
        "series": m.cell.series,
        "concurrency": m.cell.concurrency,
        "run": m.cell.run,
        "complete": m.complete,
        "seconds": m.seconds,
        "tps": n / m.seconds if m.complete and n and m.seconds > 0 else None,
        "ttft_ms": _percentiles((1000 * a.pieces[0].at, 1.0) for a in answers if a.pieces),
        "inter_token_ms": _percentiles((1000 * gap, weight) for a in answers for gap, weight in a.gaps()),
        "answer_seconds": _percentiles((a.seconds, 1.0) for a in answers),
        "answers": len(answers),
        "n_predict": n,
        "problems": [a.problem.message for a in m.answers if a.problem is not None],
    }


def percentile(values: Iterable[tuple[float, float]], share: float) -> float | None:
    """The smallest value that covers this share of the weight. values: (value, weight); None without any."""
    ordered = sorted(values)
    rest = share * sum(weight for _, weight in ordered)
    for value, weight in ordered:
        rest -= weight
        if rest <= 1e-9:
            return value
    return ordered[-1][0] if ordered else None


def _row(series: str, concurrency: int, measured: Sequence[ServingMeasurement]) -> JsonObject:
    """The cells of a series at a concurrency together, their times as medians. answers: completed ones;
    failed: incomplete ones; refused: 429s, also of requests that were answered later; prompt_cached: the
    share of prompt tokens that the server had cached.
    """
    cells = [cell_figures(m) for m in measured]
    answers = [answer for m in measured for answer in m.succeeded]

    def middle(key: str) -> JsonObject | None:
        known = [cell[key] for cell in cells if cell[key] is not None]
        return {name: median(one[name] for one in known) for name in ("p50", "p99")} if known else None

    def total(counts: Iterable[int | None]) -> int | None:
        known = [n for n in counts if n is not None]
        return sum(known) if known else None

    rates = [cell["tps"] for cell in cells if cell["tps"] is not None]
    drafted, accept = total(a.n_drafted for a in answers), total(a.n_accept for a in answers)
    cached = total(a.n_cached for a in answers)
    prompt = total(a.n_prompt for a in answers if a.n_cached is not None)
    return {
        "series": series,
        "concurrency": concurrency,
        "runs": len(cells),
        "tps": median(rates) if rates else None,
        "ttft_ms": middle("ttft_ms"),
        "inter_token_ms": middle("inter_token_ms"),
        "seconds": middle("answer_seconds"),
        "answers": len(answers),
        "failed": sum(len(cell["problems"]) for cell in cells),
        "refused": sum(a.refused for m in measured for a in m.answers),
        "n_predict": sum(a.n_tokens for a in answers),
        "n_drafted": drafted,
        "n_accept": accept,
        "acceptance": accept / drafted if accept is not None and drafted else None,
        "prompt_cached": cached / prompt if cached is not None and prompt else None,
    }


def _percentiles(values: Iterable[tuple[float, float]]) -> JsonObject | None:
    known = list(values)
    return {"p50": percentile(known, 0.5), "p99": percentile(known, 0.99)} if known else None


# The figures in sentences, and notes on how to read them. `s`: the object of `bench --server --json`.


def name(s: JsonObject) -> str:
    """Model and address, for a headline."""
    server = s["server"]
    return f"{server['model'] or 'no model named'} at {server['url']}"


def extent(s: JsonObject) -> str:
    """How much was measured, with which settings."""
    settings = s["settings"]
    tokens = f"{'' if settings['ignore_eos'] else 'up to '}{counted(settings['n_tokens'], 'token')} each"
    return (
        f"{s['answers']} of {counted(s['planned'], 'answer')}, {counted(settings['requests'], 'request')} "
        f"at every concurrency, {tokens}, temperature {settings['temperature']:g}, "
        f"{counted(settings['runs'], 'run')}, medians of the runs"
    )


def verdict(s: JsonObject, one_series: str) -> str:
    """One to three sentences. s: of `summarise`. one_series: why there is only one, "" for two."""
    rated = [row for row in s["rows"] if row["tps"]]
    if not rated:
        return "Too little was measured to say anything."
    parts = []
    if ratios := s["speculative_against_plain"]:
        each = ", ".join(f"{one['tps']:.2f} x at {one['concurrency']}" for one in ratios)
        parts.append(f"Tokens per second with speculation over without it, by concurrency: {each}.")
    main = [row for row in rated if row["series"] != PLAIN] or rated
    best = max(main, key=lambda row: row["tps"])
    text = f"Most tokens per second: {best['tps']:.1f} at a concurrency of {best['concurrency']}"
    single = next((row for row in main if row["concurrency"] == 1), None)
    if single and best["concurrency"] > 1:
        text += f", {best['tps'] / single['tps']:.2f} x that of a single client"
    parts.append(f"{text}.")
    if one_series:
        parts.append(f"One series: {one_series}.")
    return " ".join(parts)


def notes(s: JsonObject) -> list[str]:
    """Sentences on missing answers, on what the times include and on texts that drafts changed."""
    rows, lines = s["rows"], []
    if s["interrupted"]:
        lines.append(f"Interrupted: {s['answers']} of {counted(s['planned'], 'answer')} were measured.")
    if s["failure"]:
        lines.append(f"Ended by: {s['failure']}.")
    if failed := sum(row["failed"] for row in rows):
        first = f", the first one: {s['problems'][0]}" if s["problems"] else ""
        lines.append(f"{counted(failed, 'request')} failed{first}.")
    if refused := sum(row["refused"] for row in rows):
        lines.append(f"{counted(refused, 'time')} the server was busy (429); the times include the waits.")
    if s["tokens_counted_by"] != "server" and any(row["answers"] for row in rows):
        lines.append("The server does not count tokens: each chunk of its streams counts as one.")
    slots, most = s["server"]["n_slots"], max((row["concurrency"] for row in rows), default=0)
    if slots is not None and slots < most:
        lines.append(f"The server answers {counted(slots, 'request')} at once; more than that wait.")
    cached = max((row["prompt_cached"] or 0.0 for row in rows), default=0.0)
    if cached > _CACHED:
        lines.append(f"The server had up to {100 * cached:.0f} % of the prompt tokens cached.")
    if s["texts_compared"]:
        lines.append(_text_note(s))
    return lines


def _text_note(s: JsonObject) -> str:
    different, compared = s["texts_different"], s["texts_compared"]
    if not different:
        return f"Texts: all {compared} are the same with speculation and without it."
    return (
        f"Texts: {different} of {compared} are not the same with speculation and without it"
        f"{', at the same seed' if s['settings']['temperature'] else ''}. Requests that run together are "
        "rounded differently, and a near-tie can fall the other way; `serve -np 1` answers them one by one."
    )
