"""Bodies of /v1/messages and /v1/messages/count_tokens, converted to engine requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from specllama.calls.tools import Choice, Tool, Tools
from specllama.client import protocol
from specllama.json_types import JsonObject
from specllama.server.dialects.anthropic.blocks import MessageTurn, Texts, system_text
from specllama.server.dialects.shared.answer_forms import OutputConfig
from specllama.server.dialects.shared.conversation import MAX_MESSAGES, ConversationReader, ReadConversation
from specllama.server.dialects.shared.fields import SMALL, AtMost, Body, FieldError
from specllama.server.dialects.shared.sampling_fields import SamplingFields, StopList
from specllama.server.dialects.shared.thinking import ThinkingFields
from specllama.server.dialects.shared.tool_choice import (
    MAX_TOOLS,
    Description,
    Name,
    ParallelFields,
    Schema,
    tool_of,
    tools_of,
)
from specllama.text.template_variables import reasoning_variables

_CHOICES: Mapping[str, Choice] = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}
_SYSTEM_BETA = "mid-conversation-"  # system, tool-changes: betas of which a message of the system is a part


class MessageTool(Body):
    """A tool of the client. Types other than "custom" run on Anthropic's servers, or have predefined
    schemas.
    """

    type: Annotated[str, Field(max_length=256)] | None = None
    name: Name
    description: Description | None = None
    input_schema: Schema | None = None
    strict: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_its_type(cls, data: Any) -> Any:
        """Reduces a tool that is not the client's own to its type and name: it is dropped as a whole."""
        if not isinstance(data, Mapping) or data.get("type") in (None, "custom"):
            return data
        return {name: data[name] for name in ("type", "name") if name in data}

    @property
    def own(self) -> bool:
        """Whether the client runs it."""
        return self.type in (None, "custom")


class MessageToolChoice(Body):
    """name: for type "tool"."""

    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


class ThreadError(FieldError):
    """For a conversation that the server should store: this code makes SDKs send all of it."""

    def __init__(self) -> None:
        super().__init__("thread: no conversation is kept here; send all of its messages", "thread")
        self.details |= {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


class PromptRequest(ThinkingFields, ParallelFields):
    """The input of a prompt. Unknown fields have no effect.

    dropped: names of tools that the client cannot run, hidden from the model.
    """

    unnamed = frozenset({"context_management"})

    model: Annotated[str, Field(max_length=512)] | None = None
    messages: Annotated[list[MessageTurn], AtMost(MAX_MESSAGES, 1)]
    system: Texts | None = None
    tools: Annotated[list[MessageTool], AtMost(MAX_TOOLS)] = Field(default_factory=list)
    tool_choice: MessageToolChoice | None = None
    output_config: OutputConfig | None = None
    thread: Annotated[JsonObject, SMALL] | None = None
    _conversation: ReadConversation = PrivateAttr()
    _tools: Tools | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _read(self) -> Self:
        """In a validator, because large bodies are validated in a thread."""
        if self.thread is not None:
            raise ThreadError()
        self._conversation = self._turns()
        self._tools = self._allowed()
        return self

    @property
    def turns(self) -> ReadConversation:
        """The conversation."""
        return self._conversation

    def check_roles(self, betas: str) -> None:
        """Raises FieldError if the first message has the role system without a beta that allows it.

        Later system messages need no beta, whose name has changed over time.
        """
        if self.messages[0].role == "system" and _SYSTEM_BETA not in betas:
            field = "messages[0].role"
            raise FieldError(f"{field} must be 'user' or 'assistant': instructions are in system", field)

    @property
    def dropped(self) -> list[str]:
        return [tool.name for tool in self.tools if not tool.own]

    def chat_input(self, variables: Mapping[str, Any]) -> protocol.ChatInput:
        """The prompt. variables: of the server. Raises FieldError."""
        conversation = self._conversation
        return protocol.ChatInput(
            conversation.messages,
            self._variables(variables),
            self._tools,
            conversation.prefix,
            conversation.thought,
        )

    def _turns(self) -> ReadConversation:
        reader = ConversationReader()
        if system := system_text(self.system):
            reader.say("system", system, "system")
        for i, message in enumerate(self.messages):
            message.add_to(reader, f"messages[{i}]")
        return reader.read()

    def _allowed(self) -> Tools | None:
        tools: list[Tool] = []
        for i, tool in enumerate(self.tools):
            if tool.own:
                one = tool_of(
                    tool.name,
                    tool.description,
                    tool.input_schema,
                    tool.strict,
                    field=f"tools[{i}]",
                    schema_field="input_schema",
                )
                tools.append(one)
        if self.tools and not tools:
            kind = self.tools[0].type
            raise FieldError(
                f"tools[0].type: {str(kind)[:80]!r} runs on Anthropic's servers; give tools of your own, "
                "without a type",
                "tools[0].type",
            )
        choice = self.tool_choice or MessageToolChoice(type="auto")
        if (choice.type == "tool") != (choice.name is not None):
            what = "is missing" if choice.name is None else 'is for the type "tool"'
            raise FieldError(f"tool_choice.name {what}", "tool_choice.name")
        names = [choice.name] if choice.name is not None else []
        inner = choice.disable_parallel_tool_use
        parallel = choice.type != "tool" and (self.parallel if inner is None else not inner)
        return tools_of(tools, _CHOICES[choice.type], names, parallel)

    def _variables(self, server: Mapping[str, Any]) -> JsonObject:
        """Variables of the template. If the request sets none, those of the server apply, and reasoning
        is off by default as in Anthropic's API; it is always off in a continued answer.
        """
        variables = self.thinking_variables(self.configured_effort)
        off = reasoning_variables("off")
        if self._conversation.prefix and "enable_thinking" not in self.chat_template_kwargs:
            variables |= off
        return {**off, **server, **variables}


class CountRequest(PromptRequest):
    """The body of /v1/messages/count_tokens."""


class MessagesRequest(SamplingFields, PromptRequest):
    """The body of /v1/messages. All sampling parameters of the program may be given, too."""

    model: Annotated[str, Field(max_length=512)] | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)]
    n: Literal[1] = 1
    output_config: OutputConfig | None = None
    own_form: ClassVar[str] = "output_config.format"
    aliases: ClassVar[Mapping[str, str]] = {"n_predict": "max_tokens"}
    stop_sequences: StopList = None

    def generation(self, defaults: Mapping[str, Any], variables: Mapping[str, Any]) -> protocol.Generate:
        """The engine's request. defaults, variables: of the server. Raises UsageError."""
        return protocol.Generate(
            -1,
            self.chat_input(variables),
            params={**defaults, **self._params()},
            strict_schema=self.limits.strict,
            **self.engine_fields(),
            progress=self.stream,
        )

    @property
    def has_tools(self) -> bool:
        return self._tools is not None

    def _params(self) -> JsonObject:
        more: JsonObject = {"stop": self.stop_sequences, **self.limits.params}
        return self.sampling(**{name: value for name, value in more.items() if value is not None})
