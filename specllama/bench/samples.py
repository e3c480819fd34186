"""What is measured: configurations, units (a prompt at a temperature), samples (one answer). Plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from specllama.core.stats import RunStats

PLAIN, AUTO = "plain", "auto"


@dataclass(frozen=True, slots=True)
class Config:
    """A way of drafting. draft_max: as LoadSettings has it: 0 plain, None auto, else so many tokens."""

    draft_max: int | None

    @property
    def name(self) -> str:
        if self.draft_max is None:
            return AUTO
        return str(self.draft_max) if self.draft_max else PLAIN


class Given(NamedTuple):
    """A text that is written whatever the model would write behind the prompt. raw: without chat template."""

    prompt: str
    text: str
    raw: bool = False


@dataclass(frozen=True, slots=True)
class Unit:
    """A prompt at a temperature. number: of the prompt in its workload, from 1. given: the prompt's answer,
    where that is not the model's.
    """

    workload: str
    number: int
    prompt: str = field(repr=False)
    temperature: float
    given: Given | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Step:
    """One answer that is to be measured. run: from 1; answers of the same unit and run share a seed."""

    run: int
    unit: Unit
    config: Config


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured answer. tokens: its ids. round_seconds: rows of a decode → (rounds, seconds of their
    decodes), empty where the engine does not tell. ties_known: whether near-ties were looked for.
    """

    step: Step
    tokens: tuple[int, ...]
    stats: RunStats
    round_seconds: Mapping[int, tuple[int, float]] = field(default_factory=dict)
    ties_known: bool = False

    @property
    def config(self) -> str:
        return self.step.config.name


def configs(lengths: Iterable[int], speculation: bool = True) -> list[Config]:
    """Plain, each fixed length, auto; plain alone where nothing can be drafted."""
    if not speculation:
        return [Config(0)]
    return [Config(0), *(Config(k) for k in sorted(set(lengths))), Config(None)]
