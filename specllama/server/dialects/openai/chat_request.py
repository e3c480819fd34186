"""The body of /v1/chat/completions, and its messages in the form of chat templates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from specllama.client import protocol
from specllama.errors import UsageError
from specllama.server.dialects.fields import SMALL, AtMost, Body, FieldError
from specllama.server.dialects.openai.sampling_fields import MAX_TOP, Count, SamplingFields, first
from specllama.text.template_variables import template_variables

MAX_MESSAGES = 4096
_ANY_OBJECT = {"type": "object"}


class TextPart(Body):
    """A part of a message's content, which can only be text."""

    type: Literal["text", "input_text", "output_text", "refusal"]
    text: str | None = None
    refusal: str | None = None

    @property
    def shown(self) -> str:
        return self.text or self.refusal or ""


class Message(Body):
    """One message. reasoning_content: the reasoning before it, for templates that show it."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], AtMost(MAX_MESSAGES)] | None = None
    name: Annotated[str, Field(max_length=256)] | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[Any], AtMost(0)] | None = None
    function_call: None = None
    annotations: Annotated[list[Any], AtMost(MAX_MESSAGES)] | None = None
    audio: None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.shown for part in self.content)
        return self.content or self.refusal or ""

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates read it."""
        role = "system" if self.role == "developer" else self.role
        more = {"name": self.name, "reasoning_content": self.reasoning_content}
        return {"role": role, "content": self.text} | {k: v for k, v in more.items() if v}


class JsonSchema(Body):
    """response_format.json_schema. The schema is enforced, strict or not; other fields have no effect."""

    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    schema_: Annotated[dict[str, Any], SMALL] | None = Field(None, alias="schema")


class ResponseFormat(Body):
    """type: json_object may have a schema, json_schema must."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: Annotated[dict[str, Any], SMALL] | None = Field(None, alias="schema")

    def as_schema(self) -> dict[str, Any] | None:
        """The schema that the text must obey, None for free text. Raises FieldError."""
        if self.type == "text":
            return None
        inner = self.json_schema.schema_ if self.json_schema else None
        found = first(inner, self.schema_)
        if found is None and self.type == "json_schema":
            raise FieldError("response_format.json_schema.schema is missing", "response_format")
        return _ANY_OBJECT if found is None else dict(found)


class TemplateInput(Body):
    """A conversation, and the variables of its chat template."""

    model: Annotated[str, Field(max_length=512)] | None = None
    messages: Annotated[list[Message], AtMost(MAX_MESSAGES, 1)]
    chat_template_kwargs: Annotated[dict[str, Any], SMALL, Field(max_length=64, default_factory=dict)]
    reasoning_effort: Annotated[str, Field(max_length=64)] | None = None

    def parts(self) -> tuple[list[dict[str, Any]], str]:
        """The messages for the template, and the prefix of the answer if the last message is the assistant's.

        Raises FieldError.
        """
        messages, last = [message.for_template() for message in self.messages], self.messages[-1]
        if last.role != "assistant":
            return messages, ""
        if last.reasoning_content:
            raise FieldError("a last assistant message cannot be continued with its reasoning", "messages")
        if len(messages) == 1:
            raise FieldError("messages: there is nothing to answer", "messages")
        return messages[:-1], last.text

    def variables(self) -> dict[str, Any]:
        """The variables of the chat template. Raises FieldError."""
        try:
            variables = template_variables(self.chat_template_kwargs)
        except UsageError as error:
            raise FieldError(error.message, "chat_template_kwargs") from None
        effort = {"reasoning_effort": self.reasoning_effort} if self.reasoning_effort else {}
        return effort | variables


class ChatRequest(SamplingFields, TemplateInput):
    """The body of /v1/chat/completions."""

    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None
    response_format: ResponseFormat | None = None

    def generation(self, defaults: Mapping[str, Any], variables: Mapping[str, Any]) -> protocol.Generate:
        """The engine's request. defaults, variables: of the server. Raises UsageError."""
        messages, prefix = self.parts()
        return protocol.Generate(
            -1,
            messages=messages,
            prefix=prefix,
            params={**defaults, **self._params()},
            variables={**variables, **self.variables()},
            speculate=self.speculation.enabled,
            draft_max=self.speculation.max,
        )

    def _params(self) -> dict[str, Any]:
        if self.top_logprobs is not None and not self.logprobs:
            raise FieldError("top_logprobs needs logprobs: true", "top_logprobs")
        schema = self.response_format.as_schema() if self.response_format else None
        if schema is not None and (self.grammar is not None or self.json_schema is not None):
            raise FieldError("response_format and a grammar or schema are both given", "response_format")
        return self.sampling(
            max_tokens=first(self.max_completion_tokens, self.max_tokens, self.n_predict),
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            json_schema=first(schema, self.json_schema),
        )
