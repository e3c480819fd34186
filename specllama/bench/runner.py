"""Sends the requests of a bench to a loaded engine, one by one, and yields the samples. Prints nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specllama.bench.plan import BenchCase, BenchConfig, BenchSample, BenchStep, ForcedText
from specllama.client import protocol
from specllama.client.client import EngineClient
from specllama.client.stream import GenerationResult, fold
from specllama.errors import ContextLengthError
from specllama.json_types import JsonObject

_FILLER = "Hello"  # prompt between two equal prompts, so that the second is not in the prompt cache


@dataclass(slots=True)
class BenchRunner:
    """A loaded engine with one slot, and another one without specllama's kernels where that is measured too.

    params: sampling parameters that all answers share; variables: of the chat template; raw: prompts go in
    without the chat template; skipped: cases whose prompt does not fit the context, and why.
    """

    client: EngineClient
    params: Mapping[str, Any]
    variables: Mapping[str, Any] = field(default_factory=dict)
    raw: bool = False
    skipped: dict[BenchCase, str] = field(default_factory=dict)
    without_kernels: EngineClient | None = None
    _config: BenchConfig | None = None
    _last_prompt: dict[bool, str] = field(default_factory=dict)  # of each engine

    def warm_up(self, configs: Sequence[BenchConfig], cases: Iterable[BenchCase]) -> Iterator[BenchConfig]:
        """Generates one unmeasured answer under each configuration and yields the configuration after it.

        Raises ContextLengthError if no prompt fits.
        """
        fitting = iter(cases)
        case = next(fitting)
        for config in configs:
            while self.answer(BenchStep(0, case, config)) is None:
                following = next(fitting, None)
                if following is None:
                    part = " or a shorter text, or -n for a part of it" if case.forced else ""
                    raise ContextLengthError(
                        f"no prompt fits the context: {self.skipped[case]}", f"use a larger -c{part}"
                    )
                case = following
            yield config

    def measure(self, steps: Iterable[BenchStep]) -> Iterator[BenchSample | None]:
        """A sample for each step; None if its case is skipped."""
        for step in steps:
            yield None if step.case in self.skipped else self.answer(step)

    def answer(self, step: BenchStep) -> BenchSample | None:
        """The answer of a step; None if its prompt does not fit the context."""
        client = self.client if step.config.kernels else self.without_kernels
        assert client is not None
        if step.config != self._config:
            client.configure(step.config.draft_max, priced=step.config.priced)
            self._config = step.config
        if self._last_prompt.get(step.config.kernels) == step.case.prompt:
            self._generate(client, _FILLER, {"max_tokens": 1, "temperature": 0}, None)
        self._last_prompt[step.config.kernels] = step.case.prompt
        params = {**self.params, "temperature": step.case.temperature, "seed": step.run}
        try:
            answer = self._generate(client, step.case.prompt, params, step.case.forced)
        except ContextLengthError as error:
            self.skipped[step.case] = error.message
            return None
        stats, ties_known = answer.stats, answer.epsilon is not None
        ids, steady = tuple(answer.ids), stats.steady_by_rows
        return BenchSample(step, ids, stats, stats.round_seconds, ties_known, steady)

    def _generate(
        self, client: EngineClient, prompt: str, params: JsonObject, text: ForcedText | None
    ) -> GenerationResult:
        id_ = client.next_id()
        forced = text.text if text else None
        if self.raw or (text and text.raw):
            given: protocol.PromptInput = protocol.TextInput(prompt)
        else:
            given = protocol.ChatInput([{"role": "user", "content": prompt}], dict(self.variables))
        return fold(client.generate(protocol.Generate(id_, given, params, forced=forced)))
