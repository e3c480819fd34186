"""The bodies of /v1/messages and /v1/messages/count_tokens, and the engine's request that they become."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, PrivateAttr, model_validator

from specllama.calls.tools import Choice, Tool, Tools
from specllama.client import protocol
from specllama.errors import UsageError
from specllama.server.dialects.anthropic.blocks import MessageTurn, Texts, system_text
from specllama.server.dialects.fields import SMALL, AtMost, FieldError, OpenBody
from specllama.server.dialects.openai.sampling_fields import MAX_STOPS, SamplingFields, Stop
from specllama.server.dialects.tool_choice import (
    MAX_TOOLS,
    Description,
    Name,
    Schema,
    name_results,
    order_results,
    tool_of,
    tools_of,
)
from specllama.text.template_variables import reasoning_variables, template_variables

MAX_MESSAGES = 4096
_CHOICES: Mapping[str, Choice] = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}
_ON = ("enabled", "adaptive")  # "between_tools": no thinking, but for words on progress
_SYSTEM_BETA = "mid-conversation-"  # system, tool-changes: betas of which a message of the system is a part
_EFFORTS = {"xhigh": "high", "max": "high"}  # templates know low, medium and high


class MessageTool(OpenBody):
    """A tool of the client; types other than "custom" run on Anthropic's servers or have its schemas."""

    type: Annotated[str, Field(max_length=256)] | None = None
    name: Name
    description: Description | None = None
    input_schema: Schema | None = None
    strict: bool | None = None

    @property
    def own(self) -> bool:
        """Whether it is the client's own."""
        return self.type in (None, "custom")


class MessageToolChoice(OpenBody):
    """name: for type "tool"."""

    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(OpenBody):
    """Whether to think before the answer. budget_tokens has no effect."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=0)] | None = None


class OutputFormat(OpenBody):
    """The schema that the text must obey."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], SMALL] = Field(alias="schema")


class OutputConfig(OpenBody):
    """effort: for templates that know it."""

    effort: Annotated[str, Field(max_length=64)] | None = None
    format: OutputFormat | None = None


class ThreadError(FieldError):
    """For a conversation that the server should keep: the code makes SDKs send all of it."""

    def __init__(self) -> None:
        super().__init__("thread: no conversation is kept here; send all of its messages", "thread")
        self.details |= {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


class PromptRequest(OpenBody):
    """What the prompt is made of. Unknown fields have no effect.

    dropped: names of tools that the client cannot run, which the model does not see.
    """

    model: Annotated[str, Field(max_length=512)] | None = None
    messages: Annotated[list[MessageTurn], AtMost(MAX_MESSAGES, 1)]
    system: Texts | None = None
    tools: Annotated[list[MessageTool], AtMost(MAX_TOOLS)] = Field(default_factory=list)
    tool_choice: MessageToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: Annotated[dict[str, Any], SMALL, Field(max_length=64, default_factory=dict)]
    thread: Annotated[dict[str, Any], SMALL] | None = None
    _messages: list[dict[str, Any]] = PrivateAttr(default_factory=list)
    _prefix: str = PrivateAttr(default="")
    _tools: Tools | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _read(self) -> Self:
        """Here, because a large body is checked in a thread."""
        if self.thread is not None:
            raise ThreadError()
        self._messages, self._prefix = self._turns()
        self._tools = self._allowed()
        return self

    def check_roles(self, betas: str) -> None:
        """Raises FieldError where the first message is the system's without a beta that has such messages.

        Later ones are taken without: the name of the beta has changed.
        """
        if self.messages[0].role == "system" and _SYSTEM_BETA not in betas:
            field = "messages[0].role"
            raise FieldError(f"{field} must be 'user' or 'assistant': instructions are in system", field)

    @property
    def dropped(self) -> list[str]:
        return [tool.name for tool in self.tools if not tool.own]

    def prompt(self, variables: Mapping[str, Any]) -> protocol.Generate:
        """A request with what makes the prompt. variables: of the server. Raises FieldError."""
        return protocol.Generate(
            -1,
            messages=self._messages,
            prefix=self._prefix,
            variables=self._variables(variables),
            tools=self._tools,
        )

    def _turns(self) -> tuple[list[dict[str, Any]], str]:
        """The messages for the template, and the beginning of the answer, "" where there is none."""
        system = system_text(self.system)
        messages = [{"role": "system", "content": system}] if system else []
        for i, message in enumerate(self.messages):
            for one in message.for_template(f"messages[{i}]"):
                if messages and messages[-1]["role"] == one["role"] != "tool":
                    messages[-1] = _merged(messages[-1], one)
                else:
                    messages.append(one)
        name_results(messages)
        order_results(messages)
        last = messages[-1]
        if last["role"] != "assistant":
            return messages, ""
        here = f"messages[{len(self.messages) - 1}]"
        if last.get("tool_calls"):
            raise FieldError(f"{here}: after a tool_use its tool_result must follow", here)
        if last.get("reasoning_content"):
            raise FieldError(f"{here}: an answer cannot be continued with its thinking", here)
        if not any(message["role"] in ("user", "tool") for message in messages):
            raise FieldError("messages: there is nothing to answer", "messages")
        return messages[:-1], last["content"]

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
        return tools_of(tools, _CHOICES[choice.type], names, not choice.disable_parallel_tool_use)

    def _variables(self, server: Mapping[str, Any]) -> dict[str, Any]:
        """The variables of the template. Without a word of the client, the server's settings hold, and else
        there is no thinking, as in Anthropic's own API; nor is there in an answer that has begun.
        """
        kind = self.thinking.type if self.thinking else None
        thinks = reasoning_variables("on" if kind in _ON and not self._prefix else "off")
        found = {**thinks, **server, **(thinks if kind or self._prefix else {})}
        effort = self.output_config.effort if self.output_config else None
        if effort:
            found["reasoning_effort"] = _EFFORTS.get(effort, effort)
        try:
            return found | template_variables(self.chat_template_kwargs)
        except UsageError as error:
            raise FieldError(error.message, "chat_template_kwargs") from None


class CountRequest(PromptRequest):
    """The body of /v1/messages/count_tokens."""


class MessagesRequest(SamplingFields, PromptRequest):
    """The body of /v1/messages. All sampling parameters of the program may be given, too."""

    model_config = ConfigDict(extra="ignore")
    model: Annotated[str, Field(max_length=512)] | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)]
    n: Literal[1] = 1
    stop_sequences: Annotated[list[Stop], AtMost(MAX_STOPS)] | None = None

    def generation(self, defaults: Mapping[str, Any], variables: Mapping[str, Any]) -> protocol.Generate:
        """The engine's request. defaults, variables: of the server. Raises UsageError."""
        request = self.prompt(variables)
        return protocol.Generate(
            -1,
            messages=request.messages,
            prefix=request.prefix,
            params={**defaults, **self._params()},
            variables=request.variables,
            **self.engine_fields(),
            tools=request.tools,
            progress=self.stream,
        )

    def _params(self) -> dict[str, Any]:
        config = self.output_config
        schema = config.format.schema_ if config and config.format else None
        if schema is not None and (self.grammar is not None or self.json_schema is not None):
            raise FieldError("output_config.format and a grammar or schema are both given", "output_config")
        if self._tools is not None and self.grammar is not None:
            raise FieldError("tools and a grammar are both given", "grammar")
        more: dict[str, Any] = {"stop": self.stop_sequences, "json_schema": schema}
        return self.sampling(**{name: value for name, value in more.items() if value is not None})


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Two turns of the same role as one: templates expect roles to alternate."""
    between = "" if one["role"] == "assistant" else "\n"
    found = one | {"content": f"{one['content']}{between}{other['content']}"}
    if "reasoning_content" in other:
        found["reasoning_content"] = one.get("reasoning_content", "") + other["reasoning_content"]
    if "tool_calls" in other:
        found["tool_calls"] = [*one.get("tool_calls", ()), *other["tool_calls"]]
    return found
