"""The body of /v1/responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PrivateAttr, ValidationInfo, model_validator

from specllama.client import protocol
from specllama.server.dialects.conversation import ReadConversation
from specllama.server.dialects.fields import SMALL, AtMost, Body, FieldError
from specllama.server.dialects.openai.responses.items import MAX_ITEMS, InputItem, conversation_of
from specllama.server.dialects.openai.responses.tools import ChosenTool, FlatTools, ResponseTool, flat_tools
from specllama.server.dialects.openai.sampling_fields import MAX_TOP, SamplingFields, first
from specllama.server.dialects.restriction import ANY_OBJECT, Restriction
from specllama.server.dialects.thinking import ThinkingFields
from specllama.server.dialects.tool_choice import MAX_TOOLS

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


class TextFormat(Body):
    """text.format. The schema is enforced, strict or not; other fields have no effect."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: Annotated[str, Field(max_length=512)] | None = None
    schema_: Annotated[dict[str, Any], SMALL] | None = Field(default=None, alias="schema")
    strict: bool | None = None

    def as_schema(self) -> Mapping[str, Any] | None:
        """The schema that the text must obey, None for free text. Raises FieldError."""
        if self.type == "json_schema" and self.schema_ is None:
            raise FieldError("text.format.schema is missing", "text.format.schema")
        found = {"text": None, "json_object": ANY_OBJECT, "json_schema": self.schema_}
        return found[self.type]

    def echo(self) -> dict[str, Any]:
        """The format as answers repeat it."""
        if self.type != "json_schema":
            return {"type": self.type}
        return {
            "type": self.type,
            "name": self.name or "schema",
            "schema": self.schema_,
            "strict": bool(self.strict),
        }


class TextFields(Body):
    """text: its format, and how much to write, a variable of the chat template."""

    verbosity: Annotated[str, Field(max_length=64)] | None = None
    format: TextFormat | None = None


class ResponsesRequest(SamplingFields, ThinkingFields):
    """The body of /v1/responses; the fields of sampling are those of other routes. store: whether items of
    answer are held for references to them, and prompt and answer may be written to the disk.
    """

    previous_response_id: Refused = None
    conversation: Refused = None
    background: Refused = None
    prompt: Refused = None
    context_management: Refused = None
    input: str | Annotated[list[InputItem], AtMost(MAX_ITEMS)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    tools: Annotated[list[ResponseTool], AtMost(MAX_TOOLS)] | None = None
    tool_choice: str | ChosenTool = "auto"
    parallel_tool_calls: bool = True
    text: TextFields = TextFields()
    include: Annotated[list[Annotated[str, Field(max_length=128)]], AtMost(64)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None
    metadata: Annotated[dict[str, Any], SMALL, AtMost(64)] | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    n: Annotated[int, Field(ge=1, le=1)] = 1
    store: bool = True
    _conversation: ReadConversation = PrivateAttr()
    _tools: FlatTools = PrivateAttr()

    @model_validator(mode="after")
    def _read(self) -> ResponsesRequest:
        self._tools = flat_tools(self.tools or (), self.tool_choice, self.parallel_tool_calls)
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
    def flat_tools(self) -> FlatTools:
        return self._tools

    @property
    def with_logprobs(self) -> bool:
        return bool(self.top_logprobs) or WITH_LOGPROBS in (self.include or ())

    def generation(self, defaults: Mapping[str, Any], variables: Mapping[str, Any]) -> protocol.Generate:
        """The engine's request. defaults, variables: of the server. Raises UsageError."""
        return protocol.Generate(
            -1,
            messages=self._conversation.messages,
            params={**defaults, **self._params()},
            strict_schema=self.limits.strict,
            variables={**variables, **self._variables()},
            **self.engine_fields(),
            progress=self.shows_progress,
            tools=self._tools.allowed,
        )

    def echo(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """What answers repeat of the request. defaults: of the server."""
        format_ = self.text.format or TextFormat()
        choice = self.tool_choice
        return {
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": self.metadata or {},
            "parallel_tool_calls": self.parallel_tool_calls,
            "previous_response_id": None,
            "reasoning": {"effort": self.reasoning.effort if self.reasoning else None, "summary": None},
            "store": False,
            "temperature": first(self.temperature, defaults.get("temperature")),
            "text": {"format": format_.echo()},
            "tool_choice": choice if isinstance(choice, str) else choice.echo(),
            "tools": self._tools.echo,
            "top_logprobs": self.top_logprobs or 0,
            "top_p": first(self.top_p, defaults.get("top_p")),
            "truncation": self.truncation,
        }

    @property
    def limits(self) -> Restriction:
        """What restricts the text. Raises FieldError."""
        form = self.text.format
        schema, strict = (form.as_schema(), form.strict) if form else (None, None)
        return self.restriction("text.format.schema", schema, strict, self._tools.allowed is not None)

    def _params(self) -> dict[str, Any]:
        return self.sampling(
            max_tokens=first(self.max_output_tokens, self.max_tokens, self.n_predict),
            logprobs=(self.top_logprobs or 0) if self.with_logprobs else None,
            **self.limits.params,
        )

    def _variables(self) -> dict[str, Any]:
        more = {"verbosity": self.text.verbosity} if self.text.verbosity else {}
        return more | self.thinking_variables(self.reasoning.effort if self.reasoning else None)
