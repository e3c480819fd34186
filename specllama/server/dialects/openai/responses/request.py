"""The body of /v1/responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, PrivateAttr, ValidationInfo, model_validator

from specllama.client import protocol
from specllama.json_types import JsonObject
from specllama.server.dialects.openai.responses.items import MAX_ITEMS, InputItem, conversation_of
from specllama.server.dialects.openai.responses.tools import echoed_choice, echoed_tools
from specllama.server.dialects.shared.conversation import ReadConversation
from specllama.server.dialects.shared.fields import SMALL, AtMost
from specllama.server.dialects.shared.sampling_fields import SamplingFields, first
from specllama.server.dialects.shared.structured import TextFields
from specllama.server.dialects.shared.thinking import ThinkingFields
from specllama.server.dialects.shared.tools import ToolFields

WITH_LOGPROBS = "message.output_text.logprobs"
_STATELESS = "responses are not stored here: send the whole conversation in input"
_REFUSED: Mapping[str, str] = {
    "previous_response_id": _STATELESS,
    "conversation": _STATELESS,
    "background": "answers cannot be fetched later here: leave it out, and use stream for long ones",
    "prompt": "there are no stored prompts here: send instructions and input",
    "context_management": "a conversation is not compacted here: shorten input",
}


def _refuse(value: Any, field: ValidationInfo) -> Any:
    if value not in (None, False, [], {}):
        raise ValueError(_REFUSED[field.field_name or ""])
    return value


Refused = Annotated[Any, SMALL, AfterValidator(_refuse)]


class ResponsesRequest(SamplingFields, ThinkingFields, ToolFields):
    """The body of /v1/responses, with the sampling fields of the other routes. store: keep items of the
    answer for references to them, and allow writing prompt and answer to disk.
    """

    own_form: ClassVar[str] = "text.format"
    previous_response_id: Refused = None
    conversation: Refused = None
    background: Refused = None
    prompt: Refused = None
    context_management: Refused = None
    input: str | Annotated[list[InputItem], AtMost(MAX_ITEMS)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    text: TextFields | None = None
    include: Annotated[list[Annotated[str, Field(max_length=128)]], AtMost(64)] | None = None
    metadata: Annotated[JsonObject, SMALL, AtMost(64)] | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    n: Annotated[int, Field(ge=1, le=1)] = 1
    store: bool = True
    _conversation: ReadConversation = PrivateAttr()

    @model_validator(mode="after")
    def _read(self) -> ResponsesRequest:
        read = conversation_of(self.instructions, self.input)
        self._conversation = read.read(continues=False, path="input")
        return self

    @property
    def kept(self) -> bool:
        return self.store and super().kept

    @property
    def turns(self) -> ReadConversation:
        """The conversation."""
        return self._conversation

    @property
    def with_logprobs(self) -> bool:
        return self.n_logprobs is not None or WITH_LOGPROBS in (self.include or ())

    def chat_input(self, server: Mapping[str, Any]) -> protocol.ChatInput:
        """The prompt. server: the server's variables. Raises FieldError."""
        variables = {**server, **self._variables()}
        return protocol.ChatInput(self._conversation.messages, variables, self.request_tools.allowed)

    def generation(self, defaults: Mapping[str, Any], variables: Mapping[str, Any]) -> protocol.Generate:
        """The engine's request. defaults, variables: of the server. Raises UsageError."""
        return protocol.Generate(
            -1,
            self.chat_input(variables),
            params={**defaults, **self._params()},
            strict_schema=self.limits.strict,
            **self.engine_fields(),
            progress=self.shows_progress,
        )

    def echo(self, defaults: Mapping[str, Any]) -> JsonObject:
        """The fields of the request that answers repeat. defaults: of the server."""
        format_ = self.text and self.text.format
        return {
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": self.metadata or {},
            "parallel_tool_calls": self.parallel,
            "previous_response_id": None,
            "reasoning": {"effort": self.reasoning.effort if self.reasoning else None, "summary": None},
            "store": False,
            "temperature": first(self.temperature, defaults.get("temperature")),
            "text": {"format": format_.echo() if format_ else {"type": "text"}},
            "tool_choice": echoed_choice(self.tool_choice, self.request_tools),
            "tools": echoed_tools(self.tools or ()),
            "top_logprobs": self.n_logprobs or 0,
            "top_p": first(self.top_p, defaults.get("top_p")),
            "truncation": self.truncation,
        }

    @property
    def has_tools(self) -> bool:
        return self.request_tools.allowed is not None

    def _params(self) -> JsonObject:
        return self.sampling(
            max_tokens=first(self.max_output_tokens, self.max_tokens, self.n_predict),
            logprobs=(self.n_logprobs or 0) if self.with_logprobs else None,
            **self.limits.params,
        )

    def _variables(self) -> JsonObject:
        return self.thinking_variables(self.reasoning.effort if self.reasoning else None)
