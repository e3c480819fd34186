"""Anthropic's API, /v1/messages and /v1/messages/count_tokens: bodies and their content blocks, converted to
a conversation for chat templates; the writer, blocks one after another; the routes.

Calls of tools that ran on Anthropic's servers are converted too, followed by their results.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import from_json
from starlette.responses import JSONResponse, Response

from specllama.errors import ContextLengthError, SpecllamaError
from specllama.json_types import JsonObject
from specllama.server import events
from specllama.server.dialects.shared.base import ApiRequest, ApiRoute, Dialect
from specllama.server.dialects.shared.chat_fields import Arguments, ConversationFields
from specllama.server.dialects.shared.conversation import (
    MAX_MESSAGES,
    ContentPart,
    ConversationReader,
    GivenCall,
    MessageFields,
    ReadContent,
    ReadConversation,
    as_result,
    placeholder,
    read,
    read_part,
    with_images,
)
from specllama.server.dialects.shared.fields import SMALL, AtMost, FieldError
from specllama.server.dialects.shared.figures import own_figures, trace_of
from specllama.server.dialects.shared.image_parts import replaced
from specllama.server.dialects.shared.sampling_fields import SamplingFields, StopList
from specllama.server.dialects.shared.structured import OutputConfig
from specllama.server.dialects.shared.tools import needed
from specllama.server.dialects.shared.writer import ERROR_TYPES, AnswerOptions, AnswerWriter
from specllama.text.prompt_parts import reasoning_variables

MAX_BLOCKS, MAX_ID = 4096, 512
_PAIR = r"[ \t]{0,8}[\w.-]{1,64}=[^;\n]{0,256}(?:;|$)"
_HEADER = re.compile(rf"x-anthropic-billing-header:(?:{_PAIR}){{0,16}}[ \t]{{0,8}}\n?", re.MULTILINE)
_LEFT_OUT = ("compaction", "mcp_tool_listing", "tool_addition", "tool_removal", "fallback")
_USES = ("server_tool_use", "mcp_tool_use")
_RESULTS_OF_CLIENTS = ("tool_result", "mcp_tool_result")
_PARTS_OF_RESULTS = ("tool_reference", "web_search_result", "web_fetch_result")
_RESULT = "_tool_result"  # end of the types of results of a server's tools


class ResultPart(ContentPart):
    """A part of a result: text for a client's tool, an entry of its own form for a server tool.
    tool_name: found by a search for tools; the tools themselves are in `tools`.
    """

    unnamed = ContentPart.unnamed | {"encrypted_content", "page_age", "retrieved_at", "encrypted_index"}

    tool_name: Annotated[str, Field(max_length=512)] = ""
    url: Annotated[str, Field(max_length=8192)] = ""
    error_code: Annotated[str, Field(max_length=256)] = ""
    stdout: str = ""
    stderr: str = ""
    return_code: int | None = None


Texts = str | Annotated[list[ResultPart], AtMost(MAX_BLOCKS)]
ResultContent = str | ResultPart | Annotated[list[ResultPart], AtMost(MAX_BLOCKS)]


class ContentBlock(ContentPart):
    """A block of a message. Its type determines which fields count."""

    unnamed = ContentPart.unnamed | {"server_name", "encrypted_content"}

    id: Annotated[str, Field(max_length=MAX_ID)] = ""
    input: Arguments | None = None
    tool_use_id: Annotated[str, Field(max_length=MAX_ID)] = ""
    content: ResultContent | None = None  # type: ignore[assignment]
    is_error: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_content(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or data.get("type") not in _RESULTS_OF_CLIENTS:
            return data
        return {**data, "content": as_result(data.get("content"), _PARTS_OF_RESULTS)}


class MessageTurn(MessageFields):
    """One turn, or instructions between turns."""

    unnamed = frozenset(
        {
            "id", "type", "model", "stop_reason", "stop_sequence", "stop_details", "usage", "container",
            "context_management", "cache_control", "created_at", "timestamp", "metadata", "speculation",
            "provider_specific_fields",
        }
    )  # fmt: skip

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[ContentBlock], AtMost(MAX_BLOCKS)]

    def add_to(self, conversation: ConversationReader, path: str) -> None:
        """Add the turn, a user's tool results before the text. path: its field. Raises FieldError."""
        here, images = f"{path}.content", with_images(ReadContent(), self.images, path)
        if self.role == "assistant":
            _AnswerReader(conversation, here, images).add(self.content, self.reasoning_content or "")
        elif self.role == "user" and not isinstance(self.content, str):
            _add_user(conversation, self.content, here, images)
        else:
            conversation.say(self.role, images.with_more(read(self.content, here)), here)


def system_text(system: Texts | None) -> str:
    """The system prompt without the header that Claude Code prepends: its checksum changes with every
    request, which would defeat prefix reuse. Raises FieldError.
    """
    texts = [replaced(text, {}, placeholder("image")) for text in read(system, "system").texts]
    if texts:
        rest = _without_header(texts[0])
        texts = [*([rest] if rest else []), *texts[1:]]
    return _without_header("\n".join(texts))


def _without_header(text: str) -> str:
    header = _HEADER.match(text)
    return text[header.end() :] if header else text


def _add_user(
    conversation: ConversationReader, blocks: Sequence[ContentBlock], path: str, said: ReadContent
) -> None:
    """said: images next to the blocks."""
    has_results = False
    for i, block in enumerate(blocks):
        here = f"{path}[{i}]"
        if block.type in _RESULTS_OF_CLIENTS:
            _add_result(conversation, block, here)
            has_results = True
        elif block.type in _LEFT_OUT:
            conversation.leave_out(block.type)
        else:
            read_part(block, here, said, "tool_result")
    if said.texts or not has_results:
        conversation.say("user", said, path)


class _AnswerReader:
    """Reads an assistant's turn, split before each result of a server tool. images: next to its content."""

    def __init__(self, conversation: ConversationReader, path: str, images: ReadContent) -> None:
        self._conversation, self._path = conversation, path
        self._texts, self._images = [images.run], images.images  # runs of text, between which there are calls
        self._calls: list[GivenCall] = []
        self._thoughts: list[str] = []
        self._ended = self._left_out = False

    def add(self, content: str | Sequence[ContentBlock], thought: str) -> None:
        """Add the turn. thought: reasoning next to its content."""
        self._thoughts += filter(None, [thought])
        if isinstance(content, str):
            self._texts[-1] += content
        else:
            for i, block in enumerate(content):
                self._block(block, f"{self._path}[{i}]")
        if self._has_more or not (self._ended or self._left_out):
            self._end()

    @property
    def _has_more(self) -> bool:
        return any(self._texts) or bool(self._calls or self._thoughts)

    def _end(self) -> None:
        said = ReadContent(["\n".join(filter(None, self._texts))], images=self._images)
        self._conversation.answer(said, self._path, "".join(self._thoughts), self._calls)
        self._texts, self._images, self._calls, self._thoughts, self._ended = [""], [], [], [], True

    def _block(self, block: ContentBlock, path: str) -> None:
        if block.type in ("tool_use", *_USES):
            name = needed(block.name, f"{path}.name")
            self._calls.append(GivenCall(block.id or None, name, block.input, f"{path}.input"))
            self._texts.append("")
        elif block.type != "tool_result" and block.type.endswith(_RESULT):
            if self._has_more:
                self._end()
            _add_result(self._conversation, block, path)
        elif block.type in _LEFT_OUT:
            self._conversation.leave_out(block.type)
            self._left_out = True
        else:
            content = ReadContent()
            read_part(block, path, content, "tool_use")
            self._texts[-1] += content.run
            self._images += content.images
            self._thoughts += content.thoughts


def _add_result(conversation: ConversationReader, block: ContentBlock, path: str) -> None:
    id_path = f"{path}.tool_use_id" if block.tool_use_id else path
    here, failed = f"{path}.content", bool(block.is_error)
    result = read(block.content, here, _read_result)
    conversation.result(block.tool_use_id or None, result, here, failed=failed, id_path=id_path)


def _read_result(part: ResultPart, path: str, result: ReadContent) -> None:
    """Add a part of a result; of results of server tools, only text."""
    if part.type == "tool_reference":
        result.texts.append(f"The tool {part.tool_name} can be called now.")
        return
    texts = [part.stdout, part.stderr, part.error_code and f"Error: {part.error_code}"]
    if part.type == "web_search_result":
        texts += [part.title, part.url]
    elif part.type == "web_fetch_result":
        texts += [part.url, part.document]
    if any(texts) or (part.type.endswith("_result") and part.type != "search_result"):
        result.texts.append("\n".join(filter(None, texts)))
    else:
        read_part(part, path, result)


_SYSTEM_BETA = "mid-conversation-"  # system, tool-changes: betas of which a message of the system is a part


class PromptRequest(ConversationFields):
    """The input of a prompt. Unknown fields have no effect."""

    unnamed = frozenset({"context_management"})
    own_effort: ClassVar[str] = "output_config"

    model: Annotated[str, Field(max_length=512)] | None = None
    messages: Annotated[list[MessageTurn], AtMost(MAX_MESSAGES, 1)]
    system: Texts | None = None
    output_config: OutputConfig | None = None
    thread: Annotated[JsonObject, SMALL] | None = None

    def read_turns(self) -> ReadConversation:
        if self.thread is not None:
            error = FieldError("thread: no conversation is kept here; send all of its messages", "thread")
            error.details |= {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
            raise error  # with the code that makes SDKs send all of it
        reader = ConversationReader()
        if system := system_text(self.system):
            reader.say("system", system, "system")
        for i, message in enumerate(self.messages):
            message.add_to(reader, f"messages[{i}]")
        return reader.read()

    def check_roles(self, betas: str) -> None:
        """Raises FieldError if the first message has the role system without a beta that allows it.

        Later system messages need no beta, whose name has changed over time.
        """
        if self.messages[0].role == "system" and _SYSTEM_BETA not in betas:
            field = "messages[0].role"
            raise FieldError(f"{field} must be 'user' or 'assistant': instructions are in system", field)

    def template_variables(self, server: Mapping[str, Any]) -> JsonObject:
        """If the request sets none, those of the server apply, and reasoning is off by default as in
        Anthropic's API; it is always off in a continued answer.
        """
        variables, off = self.thinking_variables(), reasoning_variables("off")
        if self.turns.prefix and "enable_thinking" not in self.chat_template_kwargs:
            variables |= off
        return {**off, **server, **variables}


class CountRequest(PromptRequest):
    """The body of /v1/messages/count_tokens."""


class MessagesRequest(PromptRequest, SamplingFields):
    """The body of /v1/messages. All sampling parameters of the program may be given, too."""

    max_tokens: Annotated[int, Field(ge=1, lt=2**31)]
    n: Literal[1] = 1
    own_form: ClassVar[str] = "output_config.format"
    aliases: ClassVar[Mapping[str, str]] = {"n_predict": "max_tokens"}
    stop_sequences: StopList = None

    def params(self) -> JsonObject:
        if self.n_logprobs is not None:
            raise FieldError("logprobs: answers of this API have none; /v1/chat/completions has", "logprobs")
        stops = {"stop": self.stop_sequences} if self.stop_sequences is not None else {}
        return self.sampling(**stops, **self.limits.params)

    @property
    def shows_progress(self) -> bool:
        return self.stream


_TYPES = ERROR_TYPES | {503: "overloaded_error"}


def error_body(error: SpecllamaError, request_id: str) -> JsonObject:
    status = error.http_status
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    shown: JsonObject = {"type": kind, "message": _message(error)}
    if "error_code" in error.details:
        details = error.details
        shown["details"] = {"error_code": details["error_code"], "unsupported": details["unsupported"]}
    return {"type": "error", "error": shown, "request_id": request_id}


def _message(error: SpecllamaError) -> str:
    """Claude Code recognises a prompt that is too long by these words, and shortens the conversation."""
    if not isinstance(error, ContextLengthError):
        return error.message
    n, n_ctx = error.details.get("n_prompt_tokens"), error.details.get("n_ctx")
    figures = "" if n is None else f"{n} tokens > {n_ctx} maximum; "
    return f"prompt is too long: {figures}{error.message}"


SIGNATURE = ""
"""Of thinking blocks. Claude Code (2.1.197) sends those with an empty one back, and drops all others."""
_REASONS = {"length": "max_tokens", "context": "model_context_window_exceeded"}


class MessageWriter(AnswerWriter):
    """Writes an answer with one choice. An answer without text and calls has an empty text block."""

    named, ping = True, b'event: ping\ndata: {"type":"ping"}\n\n'

    def __init__(self, options: AnswerOptions) -> None:
        super().__init__(options)
        self.id = f"msg_{secrets.token_hex(12)}"
        self._begun = self._waits = False  # whether the first event is written
        self._n_blocks = 0  # opened so far
        self._open = ""  # type of the block that is open
        self._empty = True  # whether the call that is open has no arguments yet
        self._spoke = False  # whether there was text or a call

    def chunks(self, events: Iterable[events.Event], n_choices: int = 1) -> list[JsonObject]:
        chunks = super().chunks(events, n_choices)
        return [*chunks, *self._beginning()] if self.fold.choices and not self._waits else chunks

    def chunks_of(self, event: events.Event) -> Sequence[JsonObject]:
        # The first event has the tokens whose evaluation was reused, once they are known.
        self._waits = isinstance(event, events.Prefill) and event.n_done in (event.n_reused, event.n_prompt)
        if isinstance(event, events.Start) or self._waits:
            return []
        written = self._events(event)
        if self.options.trace and written and (traced := trace_of(event)):
            shown = written[-2 if isinstance(event, events.End) else -1]  # message_stop has no fields
            shown["speculation"] = shown.get("speculation", {}) | traced
        return [*self._beginning(), *written]

    def error_body(self, error: SpecllamaError) -> JsonObject:
        return error_body(error, self.options.request_id)

    def answer(self) -> JsonObject:
        (choice,) = self.fold.in_order
        return self._message(choice, _blocks(choice)) | self._figures()

    def _figures(self) -> JsonObject:
        shown: JsonObject = {"speculation": own_figures(self.fold.ends, self.options.speculate)}
        return shown | ({"ignored_fields": list(self.options.ignored)} if self.options.ignored else {})

    def _message(self, choice: events.AccumulatedChoice, content: list[JsonObject]) -> JsonObject:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.options.model,
            "content": content,
            **_ending(choice),
            "usage": _usage(choice),
        }

    def _beginning(self) -> list[JsonObject]:
        """The first event, unless it was written."""
        if self._begun:
            return []
        self._begun = True
        (choice,) = self.fold.in_order
        return [{"type": "message_start", "message": self._message(choice, [])}]

    def _events(self, event: events.Event) -> list[JsonObject]:
        if isinstance(event, (events.TextEvent, events.CallArgs, events.Reasoning)) and not event.text:
            return []
        if isinstance(event, events.TextEvent):
            return self._part({"type": "text", "text": ""}, {"type": "text_delta", "text": event.text})
        if isinstance(event, events.CallArgs):
            self._empty = False
            return [self._delta(_arguments_delta(event.text))]
        if isinstance(event, events.Reasoning):
            block = {"type": "thinking", "thinking": "", "signature": ""}
            return self._part(block, {"type": "thinking_delta", "thinking": event.text})
        if isinstance(event, events.CallOpen):
            self._empty = True
            return [*self._closing(), self._opening(_tool_use(event.id, event.name, {}))]
        if isinstance(event, events.CallClose):
            filled = [self._delta(_arguments_delta("{}"))] if self._empty else []
            return [*filled, *self._closing()]
        if isinstance(event, events.Prefill):
            return [{"type": "ping"}]
        return self._end(self.fold.choices[event.index])

    def _end(self, choice: events.AccumulatedChoice) -> list[JsonObject]:
        closing = self._closing()
        if not self._spoke:
            closing += [self._opening({"type": "text", "text": ""}), *self._closing()]
        last: JsonObject = {
            "type": "message_delta",
            "delta": _ending(choice),
            "usage": _usage(choice),
            **self._figures(),
        }
        return [*closing, last, {"type": "message_stop"}]

    def _part(self, block: JsonObject, delta: JsonObject) -> list[JsonObject]:
        """The next part of text or thinking. block: the empty one, unless such a block is open."""
        opening = [] if self._open == block["type"] else [*self._closing(), self._opening(block)]
        return [*opening, self._delta(delta)]

    def _opening(self, block: JsonObject) -> JsonObject:
        self._open, self._n_blocks = block["type"], self._n_blocks + 1
        self._spoke = self._spoke or self._open != "thinking"
        return {"type": "content_block_start", "index": self._n_blocks - 1, "content_block": block}

    def _delta(self, delta: JsonObject) -> JsonObject:
        return {"type": "content_block_delta", "index": self._n_blocks - 1, "delta": delta}

    def _closing(self) -> list[JsonObject]:
        was, self._open = self._open, ""
        if not was:
            return []
        signature = self._delta({"type": "signature_delta", "signature": SIGNATURE})
        stop = {"type": "content_block_stop", "index": self._n_blocks - 1}
        return [signature, stop] if was == "thinking" else [stop]


def _arguments_delta(text: str) -> JsonObject:
    return {"type": "input_json_delta", "partial_json": text}


def _tool_use(id_: str, name: str, arguments: JsonObject) -> JsonObject:
    return {"type": "tool_use", "id": f"toolu_{id_}", "name": name, "input": arguments}


def _blocks(choice: events.AccumulatedChoice) -> list[JsonObject]:
    blocks: list[JsonObject] = []
    if choice.reasoning:
        blocks.append({"type": "thinking", "thinking": choice.reasoning, "signature": SIGNATURE})
    for item in choice.items:
        if isinstance(item, events.AccumulatedCall):
            blocks.append(_tool_use(item.id, item.name, _input(item)))
        elif item.text:
            blocks.append({"type": "text", "text": item.text})
    if not any(block["type"] != "thinking" for block in blocks):
        blocks.append({"type": "text", "text": ""})
    return blocks


def _input(call: events.AccumulatedCall) -> JsonObject:
    """The arguments as an object; for a truncated call, its complete part, as the SDK parses it."""
    try:
        arguments = from_json(call.arguments or "{}", allow_partial=not call.complete)
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}


def _ending(choice: events.AccumulatedChoice) -> JsonObject:
    end = choice.end
    if end is None:
        return {"stop_reason": None, "stop_sequence": None, "stop_details": None}
    reason = _REASONS.get(end.reason, "end_turn")
    if choice.ended_with_calls:
        reason = "tool_use"
    if end.reason == "stop" and end.stop_string is not None:
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": end.stop_string, "stop_details": None}


def _usage(choice: events.AccumulatedChoice) -> JsonObject:
    stats = choice.end.stats if choice.end else None
    known = stats or choice.prefill
    cached = known.n_reused if known else 0
    return {
        "input_tokens": choice.start.n_prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": stats.n_predict if stats else 1,
        "output_tokens_details": {"thinking_tokens": choice.end.n_reasoning if choice.end else 0},
    }


async def messages(api: ApiRequest) -> Response:
    body = await api.body(MessagesRequest)
    body.check_roles(api.header("anthropic-beta"))
    return await api.answer(body, MessageWriter)


async def count_tokens(api: ApiRequest) -> Response:
    body = await api.body(CountRequest)
    body.check_roles(api.header("anthropic-beta"))
    api.check_model(body.model)
    await api.read_images(body)
    return JSONResponse({"input_tokens": await api.prompt_length(body.chat_input(api.settings.variables))})


DIALECT = Dialect(
    error_body,
    (
        ApiRoute("POST", "/v1/messages", messages, "Answer a conversation", MessagesRequest),
        ApiRoute("POST", "/v1/messages/count_tokens", count_tokens, "The length of its prompt", CountRequest),
    ),
    prefixes=("/v1/messages",),
)
