"""The plan of `bench`: the command line, checked before anything is loaded; and what `tune` has too: results
that survive an early end, and where and when they were measured.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import specllama
from specllama.bench import runner
from specllama.bench.runner import BenchCase, ForcedText
from specllama.cli import console
from specllama.cli.answer import INTERRUPTED
from specllama.cli.bench.text import checked_path
from specllama.config import build
from specllama.config.sources import Values
from specllama.core.sampling.params import UNTIL_STOP, SamplingParams
from specllama.errors import SpecllamaError, UsageError
from specllama.json_types import JsonObject
from specllama.models.memory.available import physical_cores

LENGTHS, TEMPERATURES, N_TOKENS, RUNS = "1,2,3,5,7,11,15", "0,0.8", 64, 3
GREEDY = "0"  # for given texts, which no temperature changes
MAX_DRAFT, MAX_TOKENS, MAX_RUNS, MAX_TEMPERATURES = 64, 32_768, 1000, 16


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """The texts and ways to measure. text: the file of the given texts, None where the model writes its own.
    n_tokens: None for all of a given text. params: sampling parameters that all answers share.
    """

    workloads: Mapping[str, tuple[str | ForcedText, ...]]
    temperatures: tuple[float, ...]
    lengths: tuple[int, ...]
    runs: int
    text: str | None
    n_tokens: int | None
    params: Mapping[str, Any]
    report: Path | None
    without_kernels: bool = False

    @property
    def cases(self) -> list[BenchCase]:
        return runner.cases(self.workloads, self.temperatures)


def make_plan(given: Mapping[str, Any], values: Values) -> BenchPlan:
    """The plan. given: the command line; values: the same with configuration files and environment.

    Raises UsageError, NotFoundError.
    """
    items = list_items("--k", given.get("lengths", LENGTHS))
    lengths = [whole_number("--k", item, 1, MAX_DRAFT) for item in items]
    text = given.get("text")
    if text is not None and "prompts" in given:
        raise UsageError("--text and --prompts are both given")
    temperatures = temperature_list(given.get("temperatures", TEMPERATURES if text is None else GREEDY))
    runs = whole_number("--runs", given.get("runs", RUNS), 1, MAX_RUNS)
    n_tokens = None
    if text is None or "n_tokens" in given:
        n_tokens = whole_number("-n", given.get("n_tokens", N_TOKENS), 2, MAX_TOKENS)
    report = checked_path(given["report"]) if "report" in given else None
    available: Mapping[str, tuple[str | ForcedText, ...]] = (
        runner.load_prompts(given.get("prompts")) if text is None else runner.load_texts(text)
    )
    shared = values.without("temperature", "seed", "max_tokens")
    return BenchPlan(
        workloads=runner.select(available, given.get("workloads")),
        temperatures=temperatures,
        lengths=tuple(sorted(set(lengths))),
        runs=runs,
        text=text,
        n_tokens=n_tokens,
        params={**build.sampling(shared), "max_tokens": UNTIL_STOP if n_tokens is None else n_tokens},
        report=report,
        without_kernels=given.get("without_kernels", False),
    )


def list_items(flag: str, text: str) -> list[str]:
    """The items of a comma-separated list. Raises UsageError."""
    items = [part.strip() for part in text.split(",") if part.strip()]
    if not items:
        raise UsageError(f"{flag} is an empty list")
    return items


def whole_number(flag: str, given: str | int, low: int, high: int) -> int:
    """A whole number in a range. Raises UsageError."""
    value = given if isinstance(given, int) else int(given) if re.fullmatch("[0-9]{1,9}", given) else -1
    if not low <= value <= high:
        raise UsageError(f"{flag} takes whole numbers from {low} to {high}, not {given!r}")
    return value


def temperature_list(text: str) -> tuple[float, ...]:
    """The different temperatures in a comma-separated list. Raises UsageError."""
    temperatures = []
    for part in list_items("--temp", text):
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise UsageError(f"--temp takes numbers separated by commas, not {part!r}")
        SamplingParams.merge({"temperature": value})
        temperatures.append(abs(value))  # -0.0 is 0
    unique = tuple(dict.fromkeys(temperatures))
    if len(unique) > MAX_TEMPERATURES:
        raise UsageError(f"--temp has {len(unique)} temperatures, {MAX_TEMPERATURES} are allowed")
    return unique


@dataclass(slots=True)
class PartialResults:
    """Results of a measurement that Ctrl-C or an error may end early."""

    interrupted: bool = False
    failure: SpecllamaError | None = None

    @property
    def is_partial(self) -> bool:
        return self.interrupted or self.failure is not None

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Keep what was measured before an early end; the reason is kept too, not raised."""
        try:
            yield
        except KeyboardInterrupt:
            self.interrupted = True
        except SpecllamaError as error:
            self.failure = error

    def say_nothing_measured(self) -> None:
        """The line for Ctrl-C before the first result."""
        if self.interrupted:
            console.note("nothing was measured yet")

    def exit_code(self) -> int:
        """0, or 130 after Ctrl-C. Raises the error that ended the measurement."""
        if self.failure is not None:
            raise self.failure
        return INTERRUPTED if self.interrupted else 0


def warn_if_busy() -> None:
    """Warn where other programs use all processors, by the processes that waited in the last minute."""
    with contextlib.suppress(AttributeError, OSError):
        if (load := os.getloadavg()[0]) >= (os.cpu_count() or 1):
            console.warning(f"other programs keep the machine busy (load {load:.1f}): figures may be off")


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def provenance(n_threads: int) -> JsonObject:
    """Version, time and machine, for the head of a report. n_threads: used for decoding."""
    return {
        "version": specllama.__version__,
        "date": now(),
        "machine": {
            "system": platform.system(),
            "machine": platform.machine(),
            "cores": physical_cores(),
            "n_threads": n_threads,
        },
    }
