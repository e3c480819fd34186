"""The body of /v1/responses, and its input items, converted to a conversation for chat templates.

Calls of tools that another provider ran are converted if their results are known; other items of other
providers are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from specllama.json_types import JsonObject
from specllama.server.dialects.shared.base import is_reference
from specllama.server.dialects.shared.chat_fields import Arguments, CallId, ConversationFields
from specllama.server.dialects.shared.conversation import (
    Content,
    ContentPart,
    ConversationReader,
    GivenCall,
    MessageFields,
    ReadContent,
    ReadConversation,
    as_result,
    read,
    read_part,
    with_images,
)
from specllama.server.dialects.shared.fields import MAX_NAMED, SMALL, AtMost, FieldError
from specllama.server.dialects.shared.image_parts import GivenImage
from specllama.server.dialects.shared.sampling_fields import SamplingFields, first
from specllama.server.dialects.shared.structured import TextFields
from specllama.server.dialects.shared.tools import (
    ChosenTools,
    Name,
    NamedTool,
    NamespaceEntry,
    RequestTools,
    ToolDefinition,
    flat_name,
    needed,
)

MAX_ITEMS = 4096
_MAX_FIELDS = 256  # of an object of a provider's own form
_RESULTS_OF_CLIENTS = ("function_call_output", "custom_tool_call_output")
_RESULTS = (
    *_RESULTS_OF_CLIENTS, "local_shell_call_output", "shell_call_output",
    "apply_patch_call_output", "computer_call_output",
)  # fmt: skip
_LEFT_OUT = (
    "web_search_call", "file_search_call", "image_generation_call", "tool_search_call", "tool_search_output",
    "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "compaction", "compaction_summary",
    "compaction_trigger", "context_compaction", "additional_tools", "configuration_update", "program",
    "program_output", "ghost_snapshot", "item_reference",
)  # fmt: skip
_WITHOUT_TEXT = ("rs_", "ws_", "fs_", "ig_", "cmp_")  # ids of items without which a conversation is whole
_OF_TOOLS = ("_call", "_call_output")  # ends of types that are not known here
Object = Annotated[JsonObject, AtMost(_MAX_FIELDS)]


class OutputPart(ContentPart):
    """A part of a result. stdout, stderr: of a command."""

    unnamed = ContentPart.unnamed | {"outcome", "created_by"}

    type: Annotated[str, Field(max_length=256)] = "text"
    stdout: str = ""
    stderr: str = ""
    logs: str = ""


Output = str | OutputPart | Annotated[list[OutputPart], AtMost(MAX_ITEMS)]


class InputItem(MessageFields):
    """One item, of any type; a message may omit its type."""

    unnamed = frozenset(
        {
            "phase", "encrypted_content", "metadata", "caller", "container_id", "created_by", "environment",
            "max_output_length", "pending_safety_checks", "acknowledged_safety_checks", "server_label",
            "approval_request_id", "execution", "async", "annotations", "cache_control",
            "provider_specific_fields", "internal_chat_message_metadata_passthrough",
        }
    )  # fmt: skip

    type: str | None = None
    id: CallId | None = None
    role: Literal["user", "system", "developer", "assistant"] | None = None
    content: Content | None = None
    call_id: CallId | None = None
    name: Name | None = None
    namespace: Name | None = None
    arguments: Arguments | None = None
    output: Output | None = None
    summary: Annotated[list[ContentPart], AtMost(MAX_ITEMS)] | None = None
    status: Annotated[str, Field(max_length=64)] | None = None
    input: str = ""
    action: Object | None = None
    operation: Object | None = None
    code: str = ""
    outputs: Annotated[list[OutputPart], AtMost(MAX_ITEMS)] | None = None
    error: str | Object | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_type(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        kind = data.get("type")
        if is_reference(data):
            if str(data.get("id")).startswith(_WITHOUT_TEXT):
                return {"type": "item_reference", "id": data["id"]}
            raise ValueError("the item of this item_reference is not held (any more): send the item itself")
        if kind in _RESULTS_OF_CLIENTS:
            return {**data, "output": as_result(data.get("output"))}
        if kind is None or (isinstance(kind, str) and kind in _READERS):
            return data
        if not isinstance(kind, str) or not (kind in _LEFT_OUT or kind.endswith(_OF_TOOLS)):
            raise ValueError(f"the type must be one of {', '.join(_READERS)}, not {repr(kind)[:80]}")
        return {name: data[name] for name in ("type", "id", "call_id") if name in data}

    @property
    def kind(self) -> str:
        return self.type or "message"


def conversation_of(instructions: str | None, items: str | Sequence[InputItem]) -> ConversationReader:
    """The conversation of a request. Raises FieldError."""
    reader = _ItemReader()
    if instructions:
        reader.conversation.say("system", instructions, "instructions")
    if isinstance(items, str):
        reader.conversation.say("user", items, "input")
    else:
        for i, item in enumerate(items):
            reader.add(item, f"input[{i}]")
    reader.end_turn()
    if not reader.conversation.n_messages:
        raise FieldError("input: there is nothing to answer", "input")
    return reader.conversation


class _ItemReader:
    """Merges consecutive reasoning, texts and calls of the assistant into one answer."""

    def __init__(self) -> None:
        self.conversation = ConversationReader()
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[GivenCall] = []
        self._images: list[GivenImage] = []

    def add(self, item: InputItem, path: str) -> None:
        read_item = _READERS.get(item.kind)
        if read_item is None:
            self.conversation.leave_out(item.kind, item.id, item.call_id)
        else:
            read_item(self, item, path)

    def end_turn(self) -> None:
        texts, thoughts, calls = self._texts, self._thoughts, self._calls
        said = ReadContent(["\n".join(filter(None, texts))], images=self._images)
        self._texts, self._thoughts, self._calls, self._images = [], [], [], []
        if texts or thoughts or calls:
            self.conversation.answer(said, "input", "\n".join(thoughts), calls)

    def message(self, item: InputItem, path: str) -> None:
        here, role = f"{path}.content", needed(item.role, f"{path}.role")
        content = with_images(read(item.content, here), item.images, path)
        if role == "assistant":
            if any(self._texts) and not self._calls:
                self.end_turn()
            self._texts.append(content.run)
            self._images += content.images
            thoughts = [item.reasoning_content] if item.reasoning_content else content.thoughts
            self._thoughts += [text for text in thoughts if text and text not in self._thoughts]
            return
        self.end_turn()
        self.conversation.say("user" if role == "user" else "system", content, here)

    def reasoning(self, item: InputItem, path: str) -> None:
        for parts, name in ((item.content, "content"), (item.summary, "summary")):
            content = read(parts, f"{path}.{name}")
            if text := "\n".join(filter(None, (*content.texts, *content.thoughts))):
                if any(self._texts) or self._calls:
                    self.end_turn()
                self._thoughts.append(text)
                return

    def function_call(self, item: InputItem, path: str) -> None:
        name, incomplete = needed(item.name, f"{path}.name"), item.status == "incomplete"
        self._call(item.call_id, flat_name(item.namespace, name), item.arguments, path, incomplete)

    def custom_tool_call(self, item: InputItem, path: str) -> None:
        name = flat_name(item.namespace, needed(item.name, f"{path}.name"))
        self._call(item.call_id, name, {"input": item.input}, path)

    def action_call(self, item: InputItem, path: str) -> None:
        name = item.kind.removesuffix("_call")
        self._call(item.call_id or item.id, name, item.action or item.operation or {}, path)

    def mcp_call(self, item: InputItem, path: str) -> None:
        id_ = item.id or f"mcp{path}"
        self._call(id_, needed(item.name, f"{path}.name"), item.arguments, path)
        self._result(id_, item.output if item.output is not None else _error(item.error), path)

    def code_interpreter_call(self, item: InputItem, path: str) -> None:
        id_ = item.id or f"code{path}"
        self._call(id_, "code_interpreter", {"code": item.code}, path)
        self._result(id_, item.outputs or "", path)

    def result(self, item: InputItem, path: str) -> None:
        call_id = item.call_id or (None if item.kind in _RESULTS_OF_CLIENTS else item.id)
        status = item.status if item.kind == "apply_patch_call_output" else None
        self._result(call_id, item.output if item.output is not None else (status or ""), path)

    def _call(
        self,
        id_: str | None,
        name: str,
        arguments: str | Mapping[str, Any] | None,
        path: str,
        incomplete: bool = False,
    ) -> None:
        self._calls.append(GivenCall(id_ or None, name, arguments, f"{path}.arguments", incomplete))

    def _result(self, id_: str | None, output: Output, path: str) -> None:
        self.end_turn()
        here = f"{path}.output"
        content = read(output, here, _read_output)
        self.conversation.result(id_ or None, content, here, id_path=f"{path}.call_id" if id_ else path)


_READERS: Mapping[str, Callable[[_ItemReader, InputItem, str], None]] = {
    "message": _ItemReader.message,
    "reasoning": _ItemReader.reasoning,
    "function_call": _ItemReader.function_call,
    "custom_tool_call": _ItemReader.custom_tool_call,
    **dict.fromkeys(
        ("local_shell_call", "shell_call", "apply_patch_call", "computer_call"), _ItemReader.action_call
    ),
    "mcp_call": _ItemReader.mcp_call,
    "code_interpreter_call": _ItemReader.code_interpreter_call,
    **dict.fromkeys(_RESULTS, _ItemReader.result),
}
"""Types of items to what reads them."""


def _read_output(part: OutputPart, path: str, content: ReadContent) -> None:
    if texts := list(filter(None, (part.stdout, part.stderr, part.logs))):
        content.texts += texts
    else:
        read_part(part, path, content)


def _error(given: str | Mapping[str, Any] | None) -> str:
    text = given.get("message") if isinstance(given, Mapping) else given
    return f"Error: {text}" if isinstance(text, str) and text else ""


# The tools of a request, and the choice among them, as answers repeat them.


def name_only(tool: JsonObject) -> JsonObject:
    """The tool as repeated in answers to requests whose tools are too large."""
    if tool["type"] == "namespace":
        return {"type": "namespace", "name": tool["name"], "description": "", "tools": []}
    return {"type": "function", "name": tool["name"]}


def _echo(tool: ToolDefinition) -> JsonObject:
    if tool.type != "namespace":
        return _function(tool)
    return {
        "type": "namespace",
        "name": tool.name or "",
        "description": tool.description or "",
        "tools": [_function(one) for one in tool.tools or () if one.is_function],
    }


def _function(tool: NamespaceEntry) -> JsonObject:
    function = tool.definition
    return {
        "type": "function",
        "name": function.name,
        "description": function.description,
        "parameters": function.arguments or {},
        "strict": bool(function.strict),
    }


def echoed_choice(choice: str | ChosenTools | None, tools: RequestTools) -> str | JsonObject:
    allowed = tools.allowed
    if isinstance(choice, ChosenTools) and choice.type == "allowed_tools":
        listed = [_named(one) for one in choice.allowed.tools or ()]
        return {"type": "allowed_tools", "mode": choice.allowed.mode, "tools": listed}
    if allowed is not None and allowed.names:
        return _named(choice) if isinstance(choice, NamedTool) else {"type": "function", "name": choice}
    return allowed.choice if allowed is not None else "none" if choice == "none" else "auto"


def _named(tool: NamedTool) -> JsonObject:
    named: JsonObject = {"type": "namespace" if tool.type == "namespace" else "function", "name": tool.named}
    return {**named, **({"namespace": tool.namespace} if tool.namespace else {})}


WITH_LOGPROBS = "message.output_text.logprobs"
_INCLUDED = (
    WITH_LOGPROBS, "reasoning.encrypted_content", "file_search_call.results", "web_search_call.results",
    "web_search_call.action.sources", "message.input_image.image_url", "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
)  # fmt: skip
"""The values of `include`; all but the first are about what answers of this server do not have."""
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


class ResponsesRequest(ConversationFields, SamplingFields):
    """The body of /v1/responses, with the sampling fields of the other routes. store: keep items of the
    answer for references to them, and allow writing prompt and answer to disk.
    """

    own_form: ClassVar[str] = "text.format"
    own_effort: ClassVar[str] = "reasoning"
    limit_fields: ClassVar[Sequence[str]] = ("max_output_tokens", *SamplingFields.limit_fields)
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

    def read_turns(self) -> ReadConversation:
        return conversation_of(self.instructions, self.input).read(continues=False, path="input")

    @property
    def kept(self) -> bool:
        return self.store and super().kept

    @property
    def ignored_fields(self) -> tuple[str, ...]:
        unknown = (f"include: {name}" for name in dict.fromkeys(self.include or ()) if name not in _INCLUDED)
        return (*super().ignored_fields, *unknown)[:MAX_NAMED]

    @property
    def n_logprobs(self) -> int | None:
        n = super().n_logprobs
        return 0 if n is None and WITH_LOGPROBS in (self.include or ()) else n

    def echo(self, defaults: Mapping[str, Any]) -> JsonObject:
        """The fields of the request that answers repeat. defaults: of the server."""
        format_ = self.text and self.text.format
        tools = [tool for tool in self.tools or () if tool.type == "namespace" or tool.is_function]
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
            "tools": [_echo(tool) for tool in tools],
            "top_logprobs": self.n_logprobs or 0,
            "top_p": first(self.top_p, defaults.get("top_p")),
            "truncation": self.truncation,
        }
