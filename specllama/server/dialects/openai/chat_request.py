"""The body of /v1/chat/completions, and its messages in the form of chat templates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from specllama.calls.tools import Tools
from specllama.client import protocol
from specllama.errors import UsageError
from specllama.server.dialects.fields import SMALL, AtMost, Body, FieldError
from specllama.server.dialects.openai.messages import MAX_MESSAGES, Message, conversation
from specllama.server.dialects.openai.sampling_fields import MAX_TOP, Count, SamplingFields, first
from specllama.server.dialects.openai.tools import ToolChoice, ToolList, requested_tools
from specllama.text.template_variables import effort_variables, template_variables

_ANY_OBJECT = {"type": "object"}


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
    """A conversation with its tools, and the variables of its chat template."""

    model: Annotated[str, Field(max_length=512)] | None = None
    messages: Annotated[list[Message], AtMost(MAX_MESSAGES, 1)]
    chat_template_kwargs: Annotated[dict[str, Any], SMALL, Field(max_length=64, default_factory=dict)]
    reasoning_effort: Annotated[str, Field(max_length=64)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: ToolList | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    _messages: list[dict[str, Any]] = PrivateAttr(default_factory=list)
    _allowed: Tools | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _convert(self) -> Self:
        """Here, so that large bodies are converted in the thread that checks them."""
        self._messages = conversation(self.messages)
        self._allowed = requested_tools(self.tools or (), self.tool_choice, self.parallel_tool_calls)
        return self

    @property
    def allowed(self) -> Tools | None:
        """The tools, and which of them may be called; None without tools."""
        return self._allowed

    @property
    def _continues(self) -> bool:
        """Whether the answer continues the last message."""
        return self.messages[-1].role == "assistant" and self.continue_final_message is not False

    def parts(self) -> tuple[list[dict[str, Any]], str]:
        """The messages for the template, and the prefix of the answer if the last message is the assistant's.

        Raises FieldError.
        """
        messages, last = self._messages, self.messages[-1]
        if self.add_generation_prompt and self.continue_final_message:
            name = "continue_final_message"
            raise FieldError(f"{name} and add_generation_prompt are both true; only one can be", name)
        if self.continue_final_message and last.role != "assistant":
            raise FieldError("messages: the last one is not the assistant's", "messages")
        if not self._continues:
            return messages, ""
        if len(messages) > 1 and messages[-2]["role"] == "assistant":
            raise FieldError(
                "messages: of two messages of the assistant at the end, none is continued", "messages"
            )
        if last.tool_calls:
            raise FieldError("messages: the calls of the last message have no results", "messages")
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
        without = self.add_generation_prompt is False and not self._continues
        effort = effort_variables(self.reasoning_effort)
        return effort | variables | ({"add_generation_prompt": False} if without else {})


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
            show_prompt=self.verbose,
            progress=self.shows_progress,
            variables={**variables, **self.variables()},
            tools=self.allowed,
            **self.engine_fields(),
        )

    def _params(self) -> dict[str, Any]:
        if self.top_logprobs is not None and not self.logprobs:
            raise FieldError("top_logprobs needs logprobs: true", "top_logprobs")
        schema = self.response_format.as_schema() if self.response_format else None
        if schema is not None and (self.grammar is not None or self.json_schema is not None):
            raise FieldError("response_format and a grammar or schema are both given", "response_format")
        for name in ("grammar", "json_schema") if self.allowed is not None else ():
            if getattr(self, name) is not None:
                raise FieldError(f"tools and {name} are both given; response_format goes with tools", name)
        return self.sampling(
            max_tokens=first(self.max_completion_tokens, self.max_tokens, self.n_predict),
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            json_schema=first(schema, self.json_schema),
        )
