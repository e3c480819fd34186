"""The JSON of /v1/responses: the response, its items, and the events of a stream."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from specllama.json_types import JsonObject
from specllama.server.dialects.openai.responses.tools import ToolEcho
from specllama.server.dialects.openai.writer import ResponseUsage
from specllama.server.dialects.shared.figures import (
    AnswerFigures,
    AnswerTrace,
    PromptProgress,
    Timings,
    TokenLogprob,
)
from specllama.server.dialects.shared.structured import FormatEcho


class WrittenText(TypedDict):
    """The content of a message."""

    type: Literal["output_text"]
    text: str
    annotations: list[str]
    logprobs: list[TokenLogprob]


class WrittenReasoning(TypedDict):
    """The content of a reasoning item."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(TypedDict):
    """Reasoning. summary: always empty."""

    id: str
    type: Literal["reasoning"]
    summary: list[str]
    content: list[WrittenReasoning]
    status: str


class MessageItem(TypedDict):
    """A text."""

    id: str
    type: Literal["message"]
    role: str
    status: str
    content: list[WrittenText]


class CallItem(TypedDict):
    """A call."""

    id: str
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    status: str
    namespace: NotRequired[str]


OutputItem = ReasoningItem | MessageItem | CallItem


class EffortEcho(TypedDict):
    """`reasoning` of a request, as repeated in answers."""

    effort: str | None
    summary: None


class TextEcho(TypedDict):
    """`text` of a request, as repeated in answers."""

    format: FormatEcho


class RequestEcho(TypedDict):
    """The fields of a request that answers repeat."""

    instructions: str | None
    max_output_tokens: int | None
    metadata: JsonObject
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: EffortEcho
    store: bool
    temperature: float | None
    text: TextEcho
    tool_choice: str | JsonObject
    tools: list[ToolEcho]
    top_logprobs: int
    top_p: float | None
    truncation: str


class IncompleteDetails(TypedDict):
    """Why an answer is incomplete."""

    reason: str


class ResponseFailure(TypedDict):
    """Why a response failed."""

    code: str
    message: str


class ResponseSoFar(RequestEcho):
    """A response. usage: None before its end."""

    id: str
    object: str
    created_at: int
    status: str
    background: bool
    completed_at: int | None
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None


class FinalResponse(ResponseSoFar, AnswerFigures):
    """A response after its end, with its figures."""

    seed: int


class ResponseEvent(TypedDict):
    """The whole response begins, goes on or ends. prompt_progress, timings: as requested. speculation: the
    trace of the last event.
    """

    response: ResponseSoFar | FinalResponse
    prompt_progress: NotRequired[PromptProgress]
    timings: NotRequired[Timings]
    speculation: NotRequired[AnswerTrace]


class ItemEvent(TypedDict):
    """An item begins or ends. speculation: the trace of the beginning of a call."""

    output_index: int
    item: OutputItem
    speculation: NotRequired[AnswerTrace]


class ItemPosition(TypedDict):
    """Where an event belongs. content_index: of the part, in items that have parts."""

    item_id: str
    output_index: int
    content_index: NotRequired[int]


class PartEvent(ItemPosition):
    """A part of an item begins or ends."""

    part: WrittenText | WrittenReasoning


class DeltaFields(TypedDict, total=False):
    """Fields of some deltas. logprobs: of a text. speculation, timings: as requested."""

    logprobs: list[TokenLogprob]
    speculation: AnswerTrace
    timings: Timings


class DeltaEvent(ItemPosition, DeltaFields):
    """The next piece of a text, of reasoning or of arguments."""

    delta: str


class ReasoningDone(ItemPosition):
    """Reasoning is complete."""

    text: str


class TextDone(ReasoningDone):
    """A text is complete."""

    logprobs: list[TokenLogprob]


class ArgumentsDone(ItemPosition):
    """The arguments of a call are complete."""

    name: str
    arguments: str


class ErrorEvent(TypedDict):
    """The answer failed."""

    code: str
    message: str
    param: str | None


TextEnd = TextDone | ReasoningDone
EventData = ResponseEvent | ItemEvent | PartEvent | DeltaEvent | TextEnd | ArgumentsDone | ErrorEvent
"""An event without its type and number."""
