"""Measuring: sends the requests of a plan to a loaded engine and hands out what came back. Prints nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specllama.bench.samples import Config, Given, Sample, Step, Unit
from specllama.client import protocol as m
from specllama.client.client import EngineClient
from specllama.core.stats import RunStats
from specllama.errors import ContextLengthError

_BETWEEN = "Hello"  # asked where a prompt would follow on itself and find its own cache


@dataclass(slots=True)
class Runner:
    """A loaded engine with one slot. params: SamplingParams that all answers share. raw: no chat template.

    skipped: units whose prompt does not fit the context, and why.
    """

    client: EngineClient
    params: Mapping[str, Any]
    variables: Mapping[str, Any] = field(default_factory=dict)
    raw: bool = False
    skipped: dict[Unit, str] = field(default_factory=dict)
    _config: Config | None = None
    _last_prompt: str = ""

    def warm_up(self, configs: Sequence[Config], units: Iterable[Unit]) -> Iterator[Config]:
        """One answer of each configuration that does not count; each configuration once it has answered.

        Raises ContextLengthError where no prompt fits.
        """
        fitting = iter(units)
        unit = next(fitting)
        for config in configs:
            while self.answer(Step(0, unit, config)) is None:
                following = next(fitting, None)
                if following is None:
                    part = " or a shorter text, or -n for a part of it" if unit.given else ""
                    raise ContextLengthError(
                        f"no prompt fits the context: {self.skipped[unit]}", f"use a larger -c{part}"
                    )
                unit = following
            yield config

    def measure(self, steps: Iterable[Step]) -> Iterator[Sample | None]:
        """The samples of the steps as they come; None where the unit was skipped."""
        for step in steps:
            yield None if step.unit in self.skipped else self.answer(step)

    def answer(self, step: Step) -> Sample | None:
        """One answer, None where its prompt does not fit the context."""
        if step.config != self._config:
            self.client.configure(step.config.draft_max)
            self._config = step.config
        if step.unit.prompt == self._last_prompt:
            self._ask(_BETWEEN, {"max_tokens": 1, "temperature": 0}, None)
        self._last_prompt = step.unit.prompt
        params = {**self.params, "temperature": step.unit.temperature, "seed": step.run}
        try:
            tokens, done = self._ask(step.unit.prompt, params, step.unit.given)
        except ContextLengthError as error:
            self.skipped[step.unit] = error.message
            return None
        rounds = {int(n): (int(c), float(s)) for n, (c, s) in done.stats.get("round_seconds", {}).items()}
        ties_known = done.extra.get("epsilon") is not None
        return Sample(step, tuple(tokens), RunStats.from_dict(done.stats), rounds, ties_known)

    def _ask(self, prompt: str, params: dict[str, Any], given: Given | None) -> tuple[list[int], m.Done]:
        id_ = self.client.next_id()
        forced = given.text if given else None
        if self.raw or (given and given.raw):
            request = m.Generate(id_, prompt=prompt, params=params, forced=forced)
        else:
            messages, variables = [{"role": "user", "content": prompt}], dict(self.variables)
            request = m.Generate(id_, messages, params=params, variables=variables, forced=forced)
        tokens: list[int] = []
        for event in self.client.generate(request):
            if isinstance(event, m.Tokens):
                tokens += event.items[0].ids
            elif isinstance(event, m.Done):
                return tokens, event
        raise AssertionError("a generation ends with Done or an error")
