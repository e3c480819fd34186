"""The output items of a response, from the accumulated events, for streamed and whole answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specllama.client.protocol import PositionLogprobs
from specllama.server.dialects.openai.responses.shapes import (
    CallItem,
    MessageItem,
    OutputItem,
    ReasoningItem,
    WrittenReasoning,
    WrittenText,
)
from specllama.server.dialects.shared.logprobs import described
from specllama.server.events import AccumulatedCall, AccumulatedChoice, AccumulatedText

COMPLETED, INCOMPLETE, IN_PROGRESS = "completed", "incomplete", "in_progress"
OutputEntry = str | AccumulatedText | AccumulatedCall
"""What an item is made of: reasoning, a text or a call."""


class OutputItems:
    """Writes the items of one response. key: part of their ids. names: see RequestTools."""

    def __init__(self, key: str, names: Mapping[str, tuple[str, str]]) -> None:
        self._key, self._names = key, names

    def of(self, choice: AccumulatedChoice) -> list[OutputItem]:
        """All items so far."""
        entries = entries_of(choice)
        return [self.item(entry, i, status_of(choice, entries, i)) for i, entry in enumerate(entries)]

    def item(self, entry: OutputEntry, index: int, status: str) -> OutputItem:
        """The item at an index of the output."""
        if isinstance(entry, AccumulatedCall):
            return self.call(entry, index, status, entry.arguments)
        if isinstance(entry, str):
            return self.reasoning(index, status, [reasoning_part(entry)])
        return self.message(index, status, [text_part(entry.text, entry.logprobs)])

    def reasoning(self, index: int, status: str, content: list[WrittenReasoning]) -> ReasoningItem:
        return {
            "id": f"rs_{self._key}{index}",
            "type": "reasoning",
            "summary": [],
            "content": content,
            "status": status,
        }

    def message(self, index: int, status: str, content: list[WrittenText]) -> MessageItem:
        return {
            "id": f"msg_{self._key}{index}",
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def call(self, call: AccumulatedCall, index: int, status: str, arguments: str) -> CallItem:
        namespace, name = self._names.get(call.name, ("", call.name))
        item: CallItem = {
            "id": f"fc_{self._key}{index}",
            "type": "function_call",
            "call_id": f"call_{call.id}",
            "name": name,
            "arguments": arguments,
            "status": status,
        }
        if namespace:
            item["namespace"] = namespace
        return item


def entries_of(choice: AccumulatedChoice) -> list[OutputEntry]:
    """The contents of the items, in order. An answer that ends without any has an empty text."""
    entries: list[OutputEntry] = [choice.reasoning] if choice.reasoning else []
    entries += choice.items
    return entries if entries or choice.end is None else [AccumulatedText("")]


def status_of(choice: AccumulatedChoice, entries: Sequence[OutputEntry], index: int) -> str:
    """The status of the item at an index, after it was closed or the answer ended."""
    entry = entries[index]
    if isinstance(entry, AccumulatedCall):
        return COMPLETED if entry.complete else INCOMPLETE
    cut_off = index == len(entries) - 1 and (choice.end is None or choice.end.reason != "stop")
    return INCOMPLETE if cut_off else COMPLETED


def text_part(text: str, logprobs: Sequence[PositionLogprobs] = ()) -> WrittenText:
    """The content of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": described(logprobs)}


def reasoning_part(text: str) -> WrittenReasoning:
    """The content of a reasoning item."""
    return {"type": "reasoning_text", "text": text}
