"""The JSON of /v1/messages: the message, its blocks, and the events of a stream."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from specllama.json_types import JsonObject
from specllama.server.dialects.shared.figures import AnswerTrace


class MessageEnding(TypedDict):
    """How a message ended. stop_sequence: the string that ended it."""

    stop_reason: str | None
    stop_sequence: str | None
    stop_details: None


class MessageUsage(TypedDict):
    """Token counts. input_tokens excludes reused ones, which are in cache_read_input_tokens."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: dict[str, int]


class TextBlock(TypedDict):
    """Text."""

    type: str
    text: str


class ThinkingBlock(TypedDict):
    """Reasoning. signature: clients return it."""

    type: str
    thinking: str
    signature: str


class ToolUseBlock(TypedDict):
    """A call. input: its arguments, empty at the start of a streamed one."""

    type: str
    id: str
    name: str
    input: JsonObject


Block = TextBlock | ThinkingBlock | ToolUseBlock


class TextDelta(TypedDict):
    """The next part of a text."""

    type: str
    text: str


class ThinkingDelta(TypedDict):
    """The next part of the reasoning."""

    type: str
    thinking: str


class SignatureDelta(TypedDict):
    """The end of the reasoning."""

    type: str
    signature: str


class ArgumentsDelta(TypedDict):
    """The next part of a call's arguments."""

    type: str
    partial_json: str


Delta = TextDelta | ThinkingDelta | SignatureDelta | ArgumentsDelta


class WrittenMessage(MessageEnding):
    """A message: without content at the start of a stream, whole as an answer, which alone has figures."""

    id: str
    type: str
    role: str
    model: str
    content: list[Block]
    usage: MessageUsage
    speculation: NotRequired[AnswerTrace]
    ignored_fields: NotRequired[list[str]]


class MessageEvent(TypedDict):
    """An event of a stream. speculation: its trace, if one is asked for."""

    type: str
    speculation: NotRequired[AnswerTrace]


class MessageStart(MessageEvent):
    """The first event."""

    message: WrittenMessage


class BlockStart(MessageEvent):
    """A block begins. index: its number in the message."""

    index: int
    content_block: Block


class BlockDelta(MessageEvent):
    """The next part of the block."""

    index: int
    delta: Delta


class BlockStop(MessageEvent):
    """The block is complete."""

    index: int


class MessageDelta(MessageEvent):
    """The message is complete. speculation: its figures, too."""

    delta: MessageEnding
    usage: MessageUsage
    ignored_fields: NotRequired[list[str]]
