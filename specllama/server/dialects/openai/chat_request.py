"""The body of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specllama.client import protocol
from specllama.json_types import JsonObject
from specllama.server.dialects.shared.sampling_fields import Count, SamplingFields, first
from specllama.server.dialects.shared.template_input import TemplateInput


class ChatRequest(SamplingFields, TemplateInput):
    """The body of /v1/chat/completions."""

    max_completion_tokens: Count | None = None

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
        return self.sampling(
            max_tokens=first(self.max_completion_tokens, self.max_tokens, self.n_predict),
            logprobs=self.n_logprobs,
            **self.limits.params,
        )

    @property
    def has_tools(self) -> bool:
        return self.request_tools.allowed is not None
