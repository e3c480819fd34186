"""Fields of all APIs that control reasoning, as variables of the chat template.

Every API here accepts all of them, since clients keep their field names whatever the API is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from specllama.errors import UsageError
from specllama.json_types import JsonObject
from specllama.server.assembler import ReasoningFormat
from specllama.server.dialects.shared.fields import SMALL, Body, FieldError
from specllama.server.dialects.shared.structured import NestedFields
from specllama.text.template_variables import effort_variables, template_variables

LEVELS = ("low", "medium", "high")
_ON = ("enabled", "adaptive", "auto")  # not "between_tools", which only writes notes on progress
Word = Annotated[str, Field(max_length=64)]


class ThinkingConfig(Body):
    """Anthropic's form, also used by GLM's, DeepSeek's and Kimi's APIs. budget_tokens has no effect."""

    unnamed = frozenset({"display", "clear_thinking", "keep"})

    type: Literal["enabled", "disabled", "adaptive", "auto", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=0)] | None = None


class ReasoningFields(Body):
    """OpenAI's form, and OpenRouter's with `enabled`."""

    unnamed = frozenset({"summary", "generate_summary", "context", "mode", "encrypted_content"})

    effort: Word | None = None
    enabled: bool | None = None


class ThinkingFields(NestedFields):
    """chat_template_kwargs: variables of the template, which take precedence. reasoning_format: see
    EventAssembler.
    """

    chat_template_kwargs: Annotated[JsonObject, SMALL, Field(max_length=64, default_factory=dict)]
    enable_thinking: bool | None = None
    think: bool | Word | None = None
    thinking: bool | ThinkingConfig | None = None
    reasoning: ReasoningFields | None = None
    reasoning_effort: Word | None = None
    verbosity: Word | None = None
    reasoning_format: ReasoningFormat | None = None

    @property
    def shown_reasoning(self) -> ReasoningFormat:
        """The format of the reasoning in the answer."""
        return self.reasoning_format or "auto"

    @field_validator("think")
    @classmethod
    def _check_level(cls, value: bool | str | None) -> bool | str | None:
        if isinstance(value, str) and value not in LEVELS:
            raise ValueError(f'must be true, false, "low", "medium" or "high", not {value[:40]!r}')
        return value

    def thinking_variables(self, effort: str | None = None) -> JsonObject:
        """The variables set by the fields. effort: from the API's own field, which takes precedence.
        Raises FieldError.
        """
        level = self.think if isinstance(self.think, str) else None
        inner = self.reasoning.effort if self.reasoning else None
        variables = effort_variables(
            effort or self.reasoning_effort or inner or self.configured_effort or level
        )
        switch = self._switch
        if switch is not None:
            variables["enable_thinking"] = switch
        if verbosity := self.verbosity or (self.text and self.text.verbosity):
            variables["verbosity"] = verbosity
        return {**variables, **self._given_variables()}

    @property
    def _switch(self) -> bool | None:
        """Whether to reason, None if no field says."""
        if self.enable_thinking is not None:
            return self.enable_thinking
        if self.think is not None:
            return self.think is not False
        if isinstance(self.thinking, ThinkingConfig):
            return self.thinking.type in _ON
        if self.thinking is not None:
            return self.thinking
        return self.reasoning.enabled if self.reasoning else None

    def _given_variables(self) -> Mapping[str, Any]:
        try:
            return template_variables(self.chat_template_kwargs)
        except UsageError as error:
            raise FieldError(error.message, "chat_template_kwargs") from None
