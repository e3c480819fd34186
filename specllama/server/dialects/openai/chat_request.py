"""The body of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from specllama.client import protocol
from specllama.json_types import JsonObject
from specllama.server.dialects.shared.fields import FieldError
from specllama.server.dialects.shared.sampling_fields import MAX_TOP, Count, SamplingFields, first
from specllama.server.dialects.shared.template_input import TemplateInput


class ChatRequest(SamplingFields, TemplateInput):
    """The body of /v1/chat/completions."""

    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None

    def generation(self, defaults: Mapping[str, Any], variables: Mapping[str, Any]) -> protocol.Generate:
        """The engine's request. defaults, variables: of the server. Raises UsageError."""
        return protocol.Generate(
            -1,
            self.chat_input(variables),
            params={**defaults, **self._params()},
            strict_schema=self.limits.strict,
            show_prompt=bool(self.verbose),
            progress=self.shows_progress,
            **self.engine_fields(),
        )

    def _params(self) -> JsonObject:
        if self.top_logprobs is not None and not self.logprobs:
            raise FieldError("top_logprobs needs logprobs: true", "top_logprobs")
        return self.sampling(
            max_tokens=first(self.max_completion_tokens, self.max_tokens, self.n_predict),
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            **self.limits.params,
        )

    @property
    def has_tools(self) -> bool:
        return self.allowed is not None
