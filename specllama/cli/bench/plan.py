"""The plan of `bench`: numbers and lists of the command line, checked before anything is loaded."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specllama.bench import workloads
from specllama.bench.plan import BenchCase, ForcedText
from specllama.cli.bench.report_file import place
from specllama.config import build
from specllama.config.sources import Values
from specllama.core.sampling.params import UNTIL_STOP, SamplingParams
from specllama.errors import UsageError

LENGTHS, TEMPERATURES, N_TOKENS, RUNS = "1,2,3,5,7,11,15", "0,0.8", 64, 3
GREEDY = "0"  # for given texts: a temperature cannot change them
LONGEST_DRAFT, MOST_TOKENS, MOST_RUNS, MOST_TEMPERATURES = 64, 32_768, 1000, 16


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What is to be measured. text: the file of the texts that are given, None where the model writes its
    own. n_tokens: None for all of a given text. params: SamplingParams that all answers share.
    """

    workloads: Mapping[str, tuple[str | ForcedText, ...]]
    temperatures: tuple[float, ...]
    lengths: tuple[int, ...]
    runs: int
    text: str | None
    n_tokens: int | None
    params: Mapping[str, Any]
    report: Path | None

    @property
    def cases(self) -> list[BenchCase]:
        return workloads.cases(self.workloads, self.temperatures)


def make_plan(given: Mapping[str, Any], values: Values) -> BenchPlan:
    """given: the command line; values: with what files and environment say.

    Raises UsageError, NotFoundError.
    """
    lengths = [whole("--k", text, 1, LONGEST_DRAFT) for text in parts("--k", given.get("lengths", LENGTHS))]
    text = given.get("text")
    if text is not None and "prompts" in given:
        raise UsageError("--text and --prompts are both given")
    temperatures = temperatures_of(given.get("temperatures", TEMPERATURES if text is None else GREEDY))
    runs = whole("--runs", given.get("runs", RUNS), 1, MOST_RUNS)
    n_tokens = None
    if text is None or "n_tokens" in given:
        n_tokens = whole("-n", given.get("n_tokens", N_TOKENS), 2, MOST_TOKENS)
    report = place(given["report"]) if "report" in given else None
    found: Mapping[str, tuple[str | ForcedText, ...]] = (
        workloads.load_texts(text)
        if text is not None
        else workloads.load_prompts(given["prompts"])
        if "prompts" in given
        else workloads.WORKLOADS
    )
    shared = values.without("temperature", "seed", "max_tokens")
    return BenchPlan(
        workloads=workloads.select(found, given.get("workloads")),
        temperatures=temperatures,
        lengths=tuple(sorted(set(lengths))),
        runs=runs,
        text=text,
        n_tokens=n_tokens,
        params={**build.sampling(shared), "max_tokens": UNTIL_STOP if n_tokens is None else n_tokens},
        report=report,
    )


def parts(flag: str, text: str) -> list[str]:
    """The parts of a list with commas. Raises UsageError."""
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise UsageError(f"{flag} is an empty list")
    return found


def whole(flag: str, given: str | int, low: int, high: int) -> int:
    """A whole number in a range. Raises UsageError."""
    value = given if isinstance(given, int) else int(given) if re.fullmatch("[0-9]{1,9}", given) else -1
    if not low <= value <= high:
        raise UsageError(f"{flag} takes whole numbers from {low} to {high}, not {given!r}")
    return value


def temperatures_of(text: str) -> tuple[float, ...]:
    """Different temperatures of a list with commas. Raises UsageError."""
    found = []
    for part in parts("--temp", text):
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise UsageError(f"--temp takes numbers separated by commas, not {part!r}")
        SamplingParams.merge({"temperature": value})
        found.append(abs(value))  # -0.0 is 0
    unique = tuple(dict.fromkeys(found))
    if len(unique) > MOST_TEMPERATURES:
        raise UsageError(f"--temp has {len(unique)} temperatures, {MOST_TEMPERATURES} are allowed")
    return unique
