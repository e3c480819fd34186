"""The writer of Ollama's API: the whole answer is the fold of its stream, and its client reads every line."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import ollama
import pytest
from hypothesis import given

from specllama.core.gain import PlainRate
from specllama.core.stats import RunStats
from specllama.errors import EngineDiedError
from specllama.server.dialects.ollama import OllamaWriter
from specllama.server.dialects.shared.writer import AnswerOptions
from specllama.server.events import CallArgs, CallClose, CallOpen, End, Event, Start, TextEvent
from tests.support.event_scripts import Script, scripts

DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


def writer(chat: bool = True) -> OllamaWriter:
    return OllamaWriter(AnswerOptions("m", created=1767225600), chat)


def lines(batches: Sequence[Sequence[Event]], chat: bool = True) -> list[dict[str, Any]]:
    """The stream as a client reads it that ends lines as str.splitlines does."""
    one = writer(chat)
    data = b"".join(one.stream(batch, 1) for batch in batches) + one.end()
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.decode().splitlines()]


def whole(events: Sequence[Event], chat: bool = True) -> dict[str, Any]:
    one = writer(chat)
    one.fold.add(events)
    return json.loads(json.dumps(one.answer()))


def folded(chunks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A stream in one piece: texts and lists are joined, of the rest the last line counts."""
    last = dict(chunks[-1])
    if logprobs := [entry for chunk in chunks for entry in chunk.get("logprobs", [])]:
        last["logprobs"] = logprobs
    parts = [chunk.get("message", chunk) for chunk in chunks]
    joined = {} if "message" in last else last
    for name in ("content", "response", "thinking"):
        if texts := [part[name] for part in parts if name in part]:
            joined[name] = "".join(texts)
    if calls := [call for part in parts for call in part.get("tool_calls", [])]:
        joined["tool_calls"] = calls
    return last | ({"message": {"role": "assistant", **joined}} if "message" in last else {})


@given(scripts(logprobs=True))
def test_the_whole_answer_is_the_fold_of_the_stream(script: Script) -> None:
    stream_lines = lines(script.batches)
    assert folded(stream_lines) == whole(script.events)
    assert [chunk["done"] for chunk in stream_lines] == [False] * (len(stream_lines) - 1) + [True]


@given(scripts(calls=False, logprobs=True))
def test_a_whole_text_is_the_fold_of_its_stream(script: Script) -> None:
    assert folded(lines(script.batches, chat=False)) == whole(script.events, chat=False)


@given(scripts())
def test_its_client_reads_every_line(script: Script) -> None:
    stream_lines = lines(script.batches)
    read = [ollama.ChatResponse(**chunk) for chunk in stream_lines]
    choice = writer_fold(script)
    assert "".join(chunk.message.thinking or "" for chunk in read) == choice.reasoning
    assert "".join(chunk.message.content or "" for chunk in read) == choice.text
    calls = [call.function for chunk in read for call in chunk.message.tool_calls or ()]
    complete = [call for call in choice.calls if call.complete]
    assert [(call.name, call.arguments) for call in calls] == [
        (call.name, json.loads(call.arguments)) for call in complete
    ]
    assert all(isinstance(chunk["message"]["content"], str) for chunk in stream_lines)
    last = read[-1]
    assert last.done_reason in ("stop", "length")
    assert all(getattr(last, name) > 0 for name in DURATIONS)
    assert (last.prompt_eval_count, last.model) == (7, "m")


def writer_fold(script: Script):
    one = writer()
    one.fold.add(script.events)
    return one.fold.choices[0]


@given(scripts(calls=False))
def test_its_client_reads_every_line_of_a_text(script: Script) -> None:
    read = [ollama.GenerateResponse(**chunk) for chunk in lines(script.batches, chat=False)]
    assert "".join(chunk.response for chunk in read) == writer_fold(script).text


def test_a_call_is_one_line_with_an_object() -> None:
    ending = End(0, "stop", None, RunStats(n_predict=3), PlainRate(None, "none", 0))
    events: list[Event] = [
        Start(0, 0, 7, 5), CallOpen(0, 0, "x" * 24, "f"), CallArgs(0, 0, '{"a": '), CallArgs(0, 0, "1}"),
        CallClose(0, 0), CallOpen(0, 1, "y" * 24, "g"), CallArgs(0, 1, "{}"), CallClose(0, 1), ending,
    ]  # fmt: skip
    first, second, last = lines([[event] for event in events])
    assert first["message"]["tool_calls"] == [
        {"id": "call_" + "x" * 24, "function": {"index": 0, "name": "f", "arguments": {"a": 1}}}
    ]
    assert second["message"]["tool_calls"][0]["function"] == {"index": 1, "name": "g", "arguments": {}}
    assert (last["done_reason"], last["message"]) == ("stop", {"role": "assistant", "content": ""})


def test_a_truncated_call_is_left_out() -> None:
    ending = End(0, "length", None, RunStats(n_predict=3), PlainRate(None, "none", 0))
    events: list[Event] = [Start(0, 0, 7, 5), CallOpen(0, 0, "x", "f"), CallArgs(0, 0, '{"a": '), ending]
    (only,) = lines([events])
    assert only["done_reason"] == "length"
    assert "tool_calls" not in only["message"]
    assert "tool_calls" not in whole(events)["message"]


def test_times_are_nanoseconds() -> None:
    stats = RunStats(n_predict=3, ttft_seconds=0.5, encode_seconds=0.2, decode_seconds=1.5)
    events: list[Event] = [Start(0, 0, 7, 5), End(0, "stop", None, stats, PlainRate(None, "none", 0))]
    whole_answer = whole(events)
    assert [whole_answer[name] for name in DURATIONS] == [2 * 10**9, 3 * 10**8, 2 * 10**8, 15 * 10**8]
    assert (whole_answer["prompt_eval_count"], whole_answer["eval_count"]) == (7, 3)


@pytest.mark.parametrize("chat", [True, False])
def test_a_ping_adds_nothing(chat: bool) -> None:
    one = writer(chat)
    (line,) = one.ping.decode().splitlines()
    read = (ollama.ChatResponse if chat else ollama.GenerateResponse)(**json.loads(line))
    assert not read.done
    assert (read.message.content if chat else read.response) == ""


def test_an_error_is_a_line() -> None:
    assert json.loads(writer().error_event(EngineDiedError("gone"))) == {"error": "gone"}
    assert writer().end() == b""


def test_a_line_takes_a_fifth_of_a_millisecond_at_most() -> None:
    """Of the writer's own time, four times that on a busy machine."""
    one = writer()
    one.stream([Start(0, 0, 7, 5)], 1)
    began = time.process_time()
    for _ in range(2000):
        one.stream([TextEvent(0, " word", [(5, "target")])], 1)
    assert (time.process_time() - began) / 2000 < 4 * 0.0002
