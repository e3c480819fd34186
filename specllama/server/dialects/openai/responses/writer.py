"""The writer of /v1/responses.

Items are written one after another: each is closed before the next is opened. Closed items equal those
of a whole answer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from specllama.client.protocol import PositionLogprobs
from specllama.errors import SpecllamaError
from specllama.json_types import JsonObject
from specllama.server import events
from specllama.server.dialects.openai.responses.request import name_only
from specllama.server.dialects.shared.figures import (
    described,
    prompt_progress,
    running_timings,
    trace_of,
    usage,
)
from specllama.server.dialects.shared.writer import AnswerOptions, AnswerWriter, error_body

COMPLETED, INCOMPLETE, IN_PROGRESS = "completed", "incomplete", "in_progress"
OutputEntry = str | events.AccumulatedText | events.AccumulatedCall
"""The content of an item: reasoning, a text or a call."""


def _entries(choice: events.AccumulatedChoice) -> list[OutputEntry]:
    """The contents of the items, in order; all reasoning is one, at the end where other items come before it.
    An answer that ends without any has an empty text.
    """
    entries: list[OutputEntry] = [*choice.items]
    if choice.reasoning:
        entries.insert(len(entries) if choice.n_before else 0, choice.reasoning)
    return entries if entries or choice.end is None else [events.AccumulatedText("")]


def _status(choice: events.AccumulatedChoice, entries: Sequence[OutputEntry], index: int) -> str:
    """The status of the item at an index, after it was closed or the answer ended."""
    entry = entries[index]
    if isinstance(entry, events.AccumulatedCall):
        return COMPLETED if entry.complete else INCOMPLETE
    cut_off = index == len(entries) - 1 and (choice.end is None or choice.end.reason != "stop")
    return INCOMPLETE if cut_off else COMPLETED


def text_part(text: str, logprobs: Sequence[PositionLogprobs] = ()) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": described(logprobs)}


def reasoning_part(text: str) -> JsonObject:
    return {"type": "reasoning_text", "text": text}


def _usage(fold: events.Accumulator) -> JsonObject:
    """Token counts under the names of this API."""
    counts = usage(fold)
    cached = counts["prompt_tokens_details"]["cached_tokens"]
    reasoning = counts["completion_tokens_details"]["reasoning_tokens"]
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": counts["total_tokens"],
    }


MAX_ECHO = 256 * 1024  # bytes of the request that an answer repeats


def echo_json(echo: JsonObject) -> bytes:
    """The repeated fields, held while the request waits; of too large ones only the names of the tools."""
    whole = events.to_json(echo)
    if len(whole) <= MAX_ECHO:
        return whole
    tools = [name_only(tool) for tool in echo["tools"]]
    return events.to_json({**echo, "instructions": None, "tools": tools})


class ResponsesWriter(AnswerWriter):
    """Numbers its events from 0, without gaps.

    echo: JSON of the repeated request fields, see `echo_json`. names: see RequestTools. keep: receives the
    items of the answer.
    """

    named = True

    def __init__(
        self,
        options: AnswerOptions,
        echo: bytes = b"{}",
        names: Mapping[str, tuple[str, str]] = MappingProxyType({}),
        keep: Callable[[list[JsonObject]], None] = lambda _: None,
    ) -> None:
        super().__init__(options)
        self._echo, self._keep = echo, keep
        self._key, self._names = events.random_key(), names
        self.id = f"resp_{self._key}"
        self._n_events = 0
        self._index = -1  # in the output, of the item that was opened last
        self._open = ""  # its type while it is not closed
        self._position: JsonObject = {"item_id": "", "output_index": -1}  # of it, in events

    def _output(self, choice: events.AccumulatedChoice) -> list[JsonObject]:
        entries = _entries(choice)
        return [self._item(entry, i, _status(choice, entries, i)) for i, entry in enumerate(entries)]

    def _item(self, entry: OutputEntry, index: int, status: str, filled: bool = True) -> JsonObject:
        """The item at an index of the output. filled: with its content."""
        if isinstance(entry, events.AccumulatedCall):
            namespace, name = self._names.get(entry.name, ("", entry.name))
            return {
                "id": f"fc_{self._key}_{index}",
                "type": "function_call",
                "call_id": f"call_{entry.id}",
                "name": name,
                "arguments": entry.arguments if filled else "",
                "status": status,
                **({"namespace": namespace} if namespace else {}),
            }
        if isinstance(entry, str):
            return {
                "id": f"rs_{self._key}_{index}",
                "type": "reasoning",
                "summary": [],
                "content": [reasoning_part(entry)] if filled else [],
                "status": status,
            }
        return {
            "id": f"msg_{self._key}_{index}",
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [text_part(entry.text, entry.logprobs)] if filled else [],
        }

    def answer(self) -> JsonObject:
        return self._final()

    def close(self) -> None:
        if self.fold.choices:
            self._keep(self._output(self.fold.choices[0]))

    def error_event(self, error: SpecllamaError) -> bytes:
        """An error event for the SDKs, and the end of the response for agents that wait for it."""
        shown = error_body(error)["error"]
        code, message = shown["code"] or shown["type"], shown["message"]
        begun = [] if self._n_events else self._begin()
        failure = self._event("error", {"code": code, "message": message, "param": shown["param"]})
        output = self._output(self.fold.choices[0]) if self.fold.choices else []
        failed = self._response("failed", output, {"code": "server_error", "message": message})
        last = self._event("response.failed", {"response": failed})
        return b"".join(map(self.encoded, [*begun, failure, last]))

    def chunks_of(self, event: events.Event) -> Sequence[JsonObject]:
        if isinstance(event, events.TextEvent):
            return [*self._opened("message"), self._delta("output_text", event, described(event.logprobs))]
        if isinstance(event, events.Reasoning):
            if self._index >= 0 and self._open != "reasoning":
                return []  # the last event has it
            return [*self._opened("reasoning"), self._delta("reasoning_text", event)]
        if isinstance(event, events.CallArgs):
            return [self._delta("function_call_arguments", event)]
        if isinstance(event, events.CallOpen):
            return [*self._close(), *self._opened("function_call", self._trace(event))]
        if isinstance(event, events.CallClose):
            return self._close()
        if isinstance(event, events.End):
            return self._end(event)
        if isinstance(event, events.Prefill):
            return self._prefill(event)
        return self._begin() if isinstance(event, events.Start) else []

    def _prefill(self, event: events.Prefill) -> list[JsonObject]:
        if not self.options.progress:
            return []
        data: JsonObject = {
            "response": self._response(IN_PROGRESS, []),
            "prompt_progress": prompt_progress(event),
        }
        if self.options.timings:
            data["timings"] = running_timings(self.fold.choices[0])
        return [self._event("response.in_progress", data)]

    def _begin(self) -> list[JsonObject]:
        return [
            self._event(kind, {"response": self._response(IN_PROGRESS, [])})
            for kind in ("response.created", "response.in_progress")
        ]

    def _end(self, event: events.End) -> list[JsonObject]:
        parts = [] if self._index >= 0 else self._opened("message")
        parts += self._close()
        response = self._final()
        data: JsonObject = {"response": response}
        if self.options.timings:
            data["timings"] = response["timings"]
        if trace := self._trace(event):
            data["speculation"] = trace
        return [*parts, self._event(f"response.{response['status']}", data)]

    def _opened(self, kind: str, trace: JsonObject | None = None) -> list[JsonObject]:
        """Events that open an item of this type, none if one is open. trace: of a call's beginning."""
        if self._open == kind:
            return []
        parts = self._close()
        self._open, self._index = kind, self._index + 1
        entry = _entries(self.fold.choices[0])[self._index]
        item = self._item(entry, self._index, IN_PROGRESS, filled=False)
        self._position = {"item_id": item["id"], "output_index": self._index}
        data: JsonObject = {"output_index": self._index, "item": item}
        if trace:
            data["speculation"] = trace
        parts.append(self._event("response.output_item.added", data))
        if kind != "function_call":
            self._position["content_index"] = 0
            part = reasoning_part("") if kind == "reasoning" else text_part("")
            parts.append(self._event("response.content_part.added", {**self._position, "part": part}))
        return parts

    def _close(self) -> list[JsonObject]:
        if not self._open:
            return []
        self._open, i = "", self._index
        choice = self.fold.choices[0]
        entries = _entries(choice)
        item = self._item(entries[i], i, _status(choice, entries, i))
        parts = []
        if item["type"] == "function_call":
            arguments = {**self._position, "name": item["name"], "arguments": item["arguments"]}
            parts.append(self._event("response.function_call_arguments.done", arguments))
        else:
            (part,) = item["content"]
            done = {**self._position, **{name: part[name] for name in ("text", "logprobs") if name in part}}
            parts.append(self._event(f"response.{part['type']}.done", done))
            parts.append(self._event("response.content_part.done", {**self._position, "part": part}))
        parts.append(self._event("response.output_item.done", {"output_index": i, "item": item}))
        return parts

    def _delta(
        self,
        kind: str,
        event: events.TextEvent | events.Reasoning | events.CallArgs,
        logprobs: list[JsonObject] | None = None,
    ) -> JsonObject:
        data: JsonObject = {**self._position, "delta": event.text}
        if logprobs is not None:
            data["logprobs"] = logprobs
        if trace := self._trace(event):
            data["speculation"] = trace
        if self.options.timings:
            data["timings"] = running_timings(self.fold.choices[0])
        return self._event(f"response.{kind}.delta", data)

    def _trace(self, event: events.Event) -> JsonObject | None:
        return trace_of(event) if self.options.trace else None

    def _event(self, kind: str, data: JsonObject) -> JsonObject:
        self._n_events += 1
        return {"type": kind, "sequence_number": self._n_events - 1, **data}

    def _final(self) -> JsonObject:
        self.close()
        choice = self.fold.choices[0]
        complete = choice.end is not None and choice.end.reason == "stop"
        response = self._response(COMPLETED if complete else INCOMPLETE, self._output(choice))
        return {**response, "usage": _usage(self.fold), "seed": choice.start.seed, **self.figures()}

    def _response(self, status: str, output: list[JsonObject], error: JsonObject | None = None) -> JsonObject:
        echo: JsonObject = json.loads(self._echo)
        return {
            "id": self.id,
            "object": "response",
            "created_at": int(self.options.created),
            "status": status,
            "background": False,
            "completed_at": int(time.time()) if status == COMPLETED else None,
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == INCOMPLETE else None,
            "model": self.options.model,
            "output": output,
            "usage": None,
            **echo,
        }
