"""The sweep: cell after cell, in each so many clients that ask one after the other. Keeps what it has got,
whatever ends it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specllama.bench.serving.answers import ServedAnswer
from specllama.bench.serving.asks import Cell, ServingRequest, body, order
from specllama.bench.serving.client import Server

Watch = Callable[[Cell, int], None]  # called with each answer: its cell, and how many there are by then


@dataclass(slots=True)
class ServingMeasurement:
    """A cell's answers. seconds: from the first request to the last answer; complete: all are there."""

    cell: Cell
    answers: list[ServedAnswer] = field(default_factory=list)
    seconds: float = 0.0
    complete: bool = False

    @property
    def whole(self) -> list[ServedAnswer]:
        """The answers that nothing went wrong with."""
        return [answer for answer in self.answers if answer.problem is None]


async def warm_up(
    server: Server, series: Sequence[str], wanted: ServingRequest, model: str
) -> list[ServedAnswer]:
    """One answer of each series that does not count; raises what goes wrong with it."""
    found = []
    for name in series:
        answer = await server.ask(0, body(wanted, Cell(name, 0, 0), 0, model))
        if answer.problem is not None:
            raise answer.problem
        found.append(answer)
    return found


async def sweep(
    server: Server,
    series: Sequence[str],
    wanted: ServingRequest,
    model: str,
    into: list[ServingMeasurement],
    watch: Watch,
) -> None:
    """Measure all cells, each added to `into` before it begins.

    Raises the problem that ends the sweep: a server that is gone or hangs, answers none of a cell's requests,
    or wants another key by now.
    """
    n = 0
    for cell in order(series, wanted):
        measured = ServingMeasurement(cell)
        into.append(measured)

        def tell(answer: ServedAnswer, measured: ServingMeasurement = measured) -> None:
            nonlocal n
            n += 1
            measured.answers.append(answer)
            watch(measured.cell, n)

        await _measure(server, wanted, model, measured, tell)
        problems = [answer for answer in measured.answers if answer.problem is not None]
        ending = next((a for a in problems if a.fatal), None if measured.whole else problems[0])
        if ending is not None:
            assert ending.problem is not None
            raise ending.problem


async def _measure(
    server: Server,
    wanted: ServingRequest,
    model: str,
    into: ServingMeasurement,
    tell: Callable[[ServedAnswer], None],
) -> None:
    numbers = iter(range(len(wanted.prompts)))
    began, fatal = time.perf_counter(), False

    async def client() -> None:
        nonlocal fatal
        for number in numbers:  # shared: each takes the next one
            answer = await server.ask(number, body(wanted, into.cell, number, model))
            into.seconds = time.perf_counter() - began
            fatal |= answer.fatal
            tell(answer)
            if fatal:
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(into.cell.concurrency):
            group.create_task(client())
    into.complete = not fatal
