"""The body of /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from specllama.client import protocol
from specllama.server.dialects.shared.fields import AtMost, FieldError
from specllama.server.dialects.shared.prompts import MAX_CHOICES, MAX_PROMPTS, Ids
from specllama.server.dialects.shared.sampling_fields import MAX_N, SamplingFields


class CompletionRequest(SamplingFields):
    """prompt: a text, ids, or a list of either with choices for each. suffix: the text after the gap to
    fill.
    """

    prompt: str | Ids | Annotated[list[str | Ids], AtMost(MAX_PROMPTS, 1)]
    zero_logprobs: ClassVar[int | None] = 0
    suffix: str | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_N)] | None = None

    def generations(self, defaults: Mapping[str, Any]) -> list[protocol.Generate]:
        """The engine's request for each prompt. defaults: of the server. Raises UsageError."""
        if self.best_of not in (None, self.n):
            raise FieldError("best_of must be n, or absent", "best_of")
        limits = self.limits
        params = {**defaults, **self.sampling(logprobs=self.n_logprobs, **limits.params)}
        prompts: list[Any] = self.prompt if isinstance(self.prompt, list) else [self.prompt]
        if isinstance(prompts[0], int):
            prompts = [self.prompt]
        if len(prompts) * self.n > MAX_CHOICES:
            raise FieldError(
                f"{len(prompts)} prompts with n {self.n} are more than {MAX_CHOICES} texts", "prompt"
            )
        return [
            protocol.Generate(
                -1,
                self._input(prompt),
                params=params,
                strict_schema=limits.strict,
                show_prompt=bool(self.verbose),
                progress=self.shows_progress,
                **self.engine_fields(),
            )
            for prompt in prompts
        ]

    def _input(self, prompt: str | list[int]) -> protocol.PromptInput:
        """One prompt. Raises FieldError."""
        if isinstance(prompt, list):
            if self.suffix:
                raise FieldError("suffix: the prompt must then be text, not ids", "suffix")
            return protocol.TokenInput(prompt)
        if self.suffix:
            return protocol.Infill(prompt, self.suffix)
        return protocol.TextInput(prompt)
