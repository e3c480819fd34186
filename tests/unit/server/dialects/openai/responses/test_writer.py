"""The writer of /v1/responses: what OpenAI's SDK makes of any stream, and that the whole is its fold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import openai
import pytest
from hypothesis import given, settings
from openai._models import construct_type
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from specllama.core.gain import PlainRate
from specllama.core.stats import RunStats
from specllama.errors import DeadlineError, EngineDiedError
from specllama.server.dialects.openai.responses import writer as writer_module
from specllama.server.dialects.openai.responses.request import ResponsesRequest
from specllama.server.dialects.openai.responses.writer import (
    MAX_ECHO,
    ResponsesWriter,
    echo_json,
)
from specllama.server.dialects.shared.fields import checked
from specllama.server.dialects.shared.writer import AnswerOptions
from specllama.server.events import (
    CallArgs,
    CallClose,
    CallOpen,
    End,
    Event,
    Reasoning,
    RoundEvent,
    Start,
    TextEvent,
    to_json,
)
from tests.support.event_scripts import Script, scripts

EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ECHO = to_json(checked(ResponsesRequest, {"input": "x"}).echo({}))
KEY = "k" * 24
unhurried = settings(deadline=None)  # the SDK's models are built when they are first used


@pytest.fixture(autouse=True, scope="module")
def _clock() -> Iterator[None]:
    with patch.object(writer_module, "time", SimpleNamespace(time=lambda: 1000.0)):
        yield


def writer(**fields: Any) -> ResponsesWriter:
    own = {name: fields.pop(name) for name in ("echo", "names", "keep") if name in fields}
    return ResponsesWriter(AnswerOptions("m", created=1000.0, **fields), **{"echo": ECHO, **own})


def frames(data: bytes) -> list[dict[str, Any]]:
    """The events of a stream, as a client reads them."""
    stream_events = []
    for frame in data.decode().split("\n\n")[:-1]:
        name, body = frame.split("\n")
        stream_events.append(json.loads(body.removeprefix("data: ")))
        assert name == f"event: {stream_events[-1]['type']}"
    return stream_events


def streamed(one: ResponsesWriter, script: Script) -> list[dict[str, Any]]:
    return frames(b"".join(one.stream(batch, 1) for batch in script.batches) + one.end())


def whole(like: ResponsesWriter, script: Script) -> dict[str, Any]:
    """The answer in one piece, with the ids of another writer."""
    other = writer()
    other.id, other._key = like.id, like._key
    other.fold.add(script.events)
    return other.answer()


def end(reason: str = "stop", **counters: int) -> End:
    return End(0, reason, None, RunStats(**counters), PlainRate(None, "none", 0))


def script(*events: Event) -> Script:
    return Script([[Start(0, 0, 7, 5), *events]], 1)


def call(*parts: str, name: str = "f", close: bool = True) -> list[Event]:
    opened: list[Event] = [CallOpen(0, 0, KEY, name), *(CallArgs(0, 0, part) for part in parts)]
    return [*opened, CallClose(0, 0)] if close else opened


@unhurried
@given(scripts(logprobs=True))
def test_the_whole_is_the_fold_of_the_stream(script: Script) -> None:
    one = writer()
    stream_events = streamed(one, script)
    assert [event["sequence_number"] for event in stream_events] == list(range(len(stream_events)))
    assert [event["type"] for event in stream_events[:2]] == ["response.created", "response.in_progress"]
    assert not any(event["response"]["output"] for event in stream_events[:2])
    last = stream_events[-1]["response"]
    assert stream_events[-1]["type"] == f"response.{last['status']}"
    assert last == json.loads(to_json(whole(one, script)))
    done = [event["item"] for event in stream_events if event["type"] == "response.output_item.done"]
    assert done == last["output"]
    assert len({item["id"] for item in done}) == len(done)
    check_items(stream_events)


def check_items(stream_events: list[dict[str, Any]]) -> None:
    """Deltas add up, and items follow each other."""
    open_, texts, output = None, dict[int, str](), list[dict[str, Any]]()
    for event in stream_events:
        kind = event["type"]
        if kind == "response.output_item.added":
            assert open_ is None
            open_ = event["output_index"]
            assert open_ == len(texts)
            texts[open_] = ""
        elif kind.endswith(".delta"):
            assert event["output_index"] == open_
            texts[event["output_index"]] += event["delta"]
        elif kind == "response.output_item.done":
            assert event["output_index"] == open_
            open_ = None
            output.append(event["item"])
    assert open_ is None
    for i, item in enumerate(output):
        written = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert written == texts[i]


@unhurried
@given(scripts(logprobs=True))
def test_the_sdk_accepts_every_stream(script: Script) -> None:
    one = writer()
    state: Any = ResponseStreamState(input_tools=openai.omit, text_format=openai.omit)
    snapshots = dict[int, str]()
    for data in streamed(one, script):
        EVENTS.validate_python(data)
        for event in state.handle_event(construct_type(type_=ResponseStreamEvent, value=data)):
            if event.type in ("response.output_text.delta", "response.function_call_arguments.delta"):
                snapshots[event.output_index] = event.snapshot
    final = one.answer()
    Response.model_validate(final)
    for i, item in enumerate(final["output"]):
        if i in snapshots:
            text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
            assert snapshots[i] == text
    if final["status"] == "completed":
        assert state._completed_response.output_text == "".join(
            part["text"] for item in final["output"] if item["type"] == "message" for part in item["content"]
        )


@unhurried
@given(scripts())
def test_an_answer_is_accepted_as_input(script: Script) -> None:
    one = writer()
    one.fold.add(script.events)
    items = [item.to_dict() for item in Response.model_validate(one.answer()).output]
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "done"}
        for item in items
        if item["type"] == "function_call"
    ]
    body = checked(ResponsesRequest, {"input": [{"role": "user", "content": "x"}, *items, *results]})
    messages = body.generations({}, {})[0].chat.messages
    assert messages is not None
    choice = one.fold.choices[0]
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    assert {c["id"] for c in calls} >= {f"call_{c.id}" for c in choice.calls if c.complete}
    assert [m["tool_call_id"] for m in messages if m["role"] == "tool"] == [c["id"] for c in calls]
    if choice.reasoning:
        assert messages[1]["reasoning_content"] == choice.reasoning


class TestItems:
    def test_the_order_of_events(self) -> None:
        stream_events = streamed(
            writer(), script(Reasoning(0, "hm"), TextEvent(0, "a"), *call('{"x": ', "1}"), end(n_predict=4))
        )
        assert [event["type"].removeprefix("response.") for event in stream_events] == [
            "created", "in_progress",
            "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done",
            "content_part.done", "output_item.done",
            "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
            "content_part.done", "output_item.done",
            "output_item.added", "function_call_arguments.delta", "function_call_arguments.delta",
            "function_call_arguments.done", "output_item.done",
            "completed",
        ]  # fmt: skip
        added = [event["item"] for event in stream_events if event["type"] == "response.output_item.added"]
        assert [item["status"] for item in added] == ["in_progress"] * 3
        assert [item.get("content") for item in added] == [[], [], None]
        (done,) = [e for e in stream_events if e["type"] == "response.function_call_arguments.done"]
        assert (done["name"], done["arguments"], done["output_index"]) == ("f", '{"x": 1}', 2)
        item = stream_events[-1]["response"]["output"][2]
        assert item["call_id"] == f"call_{KEY}"
        assert item["id"].startswith("fc_")

    @pytest.mark.parametrize("reason", ["length", "context"])
    @pytest.mark.parametrize(
        ("events", "statuses"),
        [
            ([TextEvent(0, "a")], ["incomplete"]),
            ([Reasoning(0, "a")], ["incomplete"]),
            ([Reasoning(0, "a"), TextEvent(0, "b")], ["completed", "incomplete"]),
            ([TextEvent(0, "b"), *call('{"x', close=False)], ["completed", "incomplete"]),
            (call("{}"), ["completed"]),
            ([], ["incomplete"]),
        ],
    )
    def test_truncated_items_are_incomplete(self, reason: str, events, statuses) -> None:
        stream_events = streamed(writer(), script(*events, end(reason)))
        last = stream_events[-1]
        assert last["type"] == "response.incomplete"
        assert last["response"]["status"] == "incomplete"
        assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
        assert last["response"]["completed_at"] is None
        assert [item["status"] for item in last["response"]["output"]] == statuses

    def test_an_empty_answer_has_an_empty_text(self) -> None:
        one = script(end())
        assert Response.model_validate(whole(writer(), one)).output_text == ""
        assert whole(writer(), one)["output"][0]["content"][0]["text"] == ""

    @pytest.mark.parametrize("first", [[], [Reasoning(0, "so ")]])
    def test_reasoning_between_texts_is_in_the_last_event(self, first: list[Event]) -> None:
        given = script(*first, TextEvent(0, "a"), Reasoning(0, "well"), TextEvent(0, "b"), end())
        stream_events = streamed(writer(), given)
        shown = [
            (item["type"], item["content"][0]["text"]) for item in stream_events[-1]["response"]["output"]
        ]
        thought = [("reasoning", "so well" if first else "well")]
        text = [("message", "ab")]
        assert shown == (thought + text if first else text + thought)
        deltas = [event["delta"] for event in stream_events if event["type"] == "response.output_text.delta"]
        assert deltas == ["a", "b"]

    def test_calls_name_their_namespace(self) -> None:
        one = writer(names={"mcp__files__read": ("mcp__files", "read")})
        stream_events = streamed(one, script(*call("{}", name="mcp__files__read"), end()))
        items = [event["item"] for event in stream_events if "item" in event]
        assert {(item["namespace"], item["name"]) for item in items} == {("mcp__files", "read")}

    def test_a_trace_names_the_drafters(self) -> None:
        event = TextEvent(0, "ab", [(1, "model"), (1, "target")], round=RoundEvent(3, 1, 0.25))
        stream_events = streamed(writer(trace=True), script(event, end()))
        (delta,) = [e for e in stream_events if e["type"] == "response.output_text.delta"]
        assert delta["speculation"]["tokens"] == [[1, "model"], [1, "target"]]
        assert delta["speculation"]["round"]["drafted"] == 3


class TestFigures:
    def test_usage_and_speculation(self) -> None:
        stats = {"n_prompt": 7, "n_reused": 3, "n_predict": 9, "n_drafted": 4, "n_accept": 2}
        answer = whole(writer(), script(TextEvent(0, "a"), end(**stats)))
        assert answer["usage"] == {
            "input_tokens": 7,
            "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
            "output_tokens": 9,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 16,
        }
        assert answer["timings"]["draft_n_accepted"] == 2
        assert answer["speculation"]["n_drafted"] == 4
        assert (answer["seed"], answer["created_at"], answer["completed_at"]) == (5, 1000, 1000)


class TestErrors:
    @pytest.mark.parametrize(
        "before",
        [[], [Start(0, 0, 7, 5)], [Start(0, 0, 7, 5), TextEvent(0, "a")], [Start(0, 0, 7, 5), *call('{"x')]],
    )
    def test_an_error_after_the_first_byte(self, before: list[Event]) -> None:
        one = writer()
        stream_events = frames(
            one.stream(before, 1) + one.error_event(EngineDiedError("it died")) + one.end()
        )
        assert [event["sequence_number"] for event in stream_events] == list(range(len(stream_events)))
        assert stream_events[0]["type"] == "response.created"
        error, failed = stream_events[-2:]
        assert (error["type"], error["code"], error["message"]) == ("error", "unavailable_error", "it died")
        assert error["param"] is None
        assert failed["response"]["error"] == {"code": "server_error", "message": "it died"}
        assert failed["response"]["status"] == "failed"
        state: Any = ResponseStreamState(input_tools=openai.omit, text_format=openai.omit)
        for data in stream_events:
            EVENTS.validate_python(data)
            state.handle_event(construct_type(type_=ResponseStreamEvent, value=data))

    def test_error_codes_equal_those_of_other_routes(self) -> None:
        error = frames(writer().error_event(DeadlineError("too long")))[-2]
        assert error["code"] == "deadline_exceeded"


class TestEcho:
    def test_a_response_repeats_the_request(self) -> None:
        asked = {
            "input": "x",
            "instructions": "be short",
            "max_output_tokens": 5,
            "metadata": {"a": "b"},
            "temperature": 0.5,
            "reasoning": {"effort": "low", "summary": "auto"},
            "parallel_tool_calls": False,
            "tools": [
                {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}},
                {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g"}]},
                {"type": "web_search"},
            ],
            "tool_choice": {"type": "function", "name": "f"},
            "text": {"format": {"type": "json_schema", "name": "s", "schema": {"type": "object"}}},
        }
        body = checked(ResponsesRequest, asked)
        one = writer(echo=echo_json(body.echo({"top_p": 0.9})))
        one.fold.add(script(end()).events)
        response = Response.model_validate(one.answer())
        assert (response.instructions, response.max_output_tokens, response.metadata) == (
            "be short",
            5,
            {"a": "b"},
        )
        assert (response.temperature, response.top_p, response.store) == (0.5, 0.9, False)
        assert response.reasoning is not None
        assert response.reasoning.effort == "low"
        assert [tool.type for tool in response.tools] == ["function", "namespace"]
        assert response.tool_choice.to_dict() == {"type": "function", "name": "f"}  # type: ignore[union-attr]
        assert response.parallel_tool_calls is False
        assert response.text is not None
        assert response.text.format is not None
        assert response.text.format.type == "json_schema"

    def test_the_echo_is_bounded(self) -> None:
        schema = {"type": "object", "description": "x" * 60_000}
        tools = [{"type": "function", "name": f"f{i}", "parameters": schema} for i in range(20)]
        tools.append({"type": "namespace", "name": "n", "tools": tools[:1]})
        echo = echo_json(checked(ResponsesRequest, {"input": "x", "tools": tools}).echo({}))
        assert len(echo) < MAX_ECHO
        one = writer(echo=echo)
        one.fold.add(script(end()).events)
        assert len(Response.model_validate(one.answer()).tools) == 21
