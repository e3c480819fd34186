"""The stream of /v1/messages: what Anthropic's own SDK makes of it is the whole answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import anthropic
import httpx2
import pytest
from hypothesis import given, settings

from specllama.core.gain import PlainRate
from specllama.core.stats import RunStats
from specllama.errors import EngineDiedError
from specllama.server.dialects.anthropic import SIGNATURE, MessageWriter
from specllama.server.dialects.shared.writer import AnswerOptions
from specllama.server.events import (
    CallArgs,
    CallClose,
    CallOpen,
    End,
    Event,
    Prefill,
    Reasoning,
    RoundEvent,
    Start,
    TextEvent,
    to_json,
)
from tests.support.event_scripts import Script, scripts

START, ROUND = Start(0, 0, 7, 1), RoundEvent(3, 2, 0.01)
ASKED: dict[str, Any] = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}


def end(reason: str = "stop", stop_string: str | None = None, n_reused: int = 0) -> End:
    stats = RunStats(n_prompt=7, n_reused=n_reused, n_predict=3)
    return End(0, reason, stop_string, stats, PlainRate(None, "none", 0))


def call(arguments: str, number: int = 0, complete: bool = True) -> list[Event]:
    opened: list[Event] = [CallOpen(0, number, "a" * 24, "f")]
    parts: list[Event] = [CallArgs(0, number, character) for character in arguments]
    return [*opened, *parts, *([CallClose(0, number)] if complete else [])]


def written(events: Iterable[Event]) -> list[dict[str, Any]]:
    """The data of the stream's events."""
    writer = MessageWriter(AnswerOptions("m"))
    frames = (writer.stream([START, *events], 1) + writer.end()).decode().split("\n\n")
    assert frames.pop() == ""
    stream_events = []
    for frame in frames:
        name, data = frame.split("\n", 1)
        stream_events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {stream_events[-1]['type']}"
    return stream_events


def answer(events: Iterable[Event]) -> dict[str, Any]:
    writer = MessageWriter(AnswerOptions("m"))
    writer.fold.add([START, *events])
    return writer.answer()


class Client:
    """The SDK's client of a server that sends `body`."""

    def __init__(self) -> None:
        self.body, self.kind = b"", ""
        transport = httpx2.MockTransport(self._respond)
        self.api = anthropic.Anthropic(
            api_key="x",
            base_url="http://server",
            http_client=httpx2.Client(transport=transport),
            max_retries=0,
        )

    def _respond(self, _request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": self.kind}, content=self.body)

    def streamed(self, body: bytes) -> dict[str, Any]:
        self.body, self.kind = body, "text/event-stream"
        with self.api.messages.stream(**ASKED) as stream:
            return stream.get_final_message().to_dict()

    def whole(self, body: bytes) -> dict[str, Any]:
        self.body, self.kind = body, "application/json"
        return self.api.messages.create(**ASKED).to_dict()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    one = Client()
    yield one
    one.api.close()


@settings(deadline=None)  # the SDK builds its types at first
@given(scripts())
def test_the_sdk_reads_the_stream_as_the_whole_answer(client: Client, script: Script) -> None:
    writer = MessageWriter(AnswerOptions("m"))
    stream = b"".join(writer.stream(batch, 1) for batch in script.batches) + writer.end()
    whole = client.whole(to_json(writer.answer()))
    streamed = client.streamed(stream)
    del whole["speculation"]  # on the last event alone
    assert streamed == whole


@given(scripts())
def test_blocks_follow_each_other(script: Script) -> None:
    first, *inner, last, stop = written(script.events[1:])
    assert (first["type"], last["type"], stop["type"]) == ("message_start", "message_delta", "message_stop")
    n, current = 0, None
    for event in inner:
        if event["type"] == "content_block_start":
            assert current is None
            assert event["index"] == n
            current, n = event["content_block"]["type"], n + 1
            continue
        assert current is not None
        assert event["index"] == n - 1
        if event["type"] == "content_block_stop":
            current = None
            continue
        kinds = {"text": ["text_delta"], "tool_use": ["input_json_delta"]}
        assert event["delta"]["type"] in kinds.get(current, ["thinking_delta", "signature_delta"])
    assert current is None
    assert n


def test_the_order_of_a_stream() -> None:
    events = [Reasoning(0, "So"), TextEvent(0, "It "), TextEvent(0, "is"), *call('{"a": 1}'), end(n_reused=4)]
    first, *inner, last, stop = written(events)
    message = first["message"]
    assert message["id"].startswith("msg_")
    assert (message["content"], message["stop_reason"], message["role"]) == ([], None, "assistant")
    usage = {
        "input_tokens": 7, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
        "output_tokens_details": {"thinking_tokens": 0},
    }  # fmt: skip
    assert message["usage"] == usage | {"output_tokens": 1}
    deltas = [e["delta"] for e in inner if e["type"] == "content_block_delta"]
    assert deltas[:4] == [
        {"type": "thinking_delta", "thinking": "So"},
        {"type": "signature_delta", "signature": SIGNATURE},
        {"type": "text_delta", "text": "It "},
        {"type": "text_delta", "text": "is"},
    ]
    assert "".join(delta["partial_json"] for delta in deltas[4:]) == '{"a": 1}'
    assert [e["content_block"] for e in inner if e["type"] == "content_block_start"] == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": ""},
        {"type": "tool_use", "id": "toolu_" + "a" * 24, "name": "f", "input": {}},
    ]
    assert last["delta"] == {"stop_reason": "tool_use", "stop_sequence": None, "stop_details": None}
    assert last["usage"] == usage | {"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 3}
    assert stop == {"type": "message_stop"}


def test_the_first_event_reports_reused_tokens(client: Client) -> None:
    """Before that, nothing is written, so that an error has a status; a long prompt sends pings."""
    writer = MessageWriter(AnswerOptions("m"))
    assert writer.stream([START, Prefill(0, 4, 7, 4, 0.0)], 1) == b""
    filling = writer.stream([Prefill(0, 5, 7, 4, 1.0)], 1)
    first, ping, rest = filling.decode().split("\n\n")
    assert (ping, rest) == ('event: ping\ndata: {"type":"ping"}', "")
    usage = json.loads(first.split("data: ")[1])["message"]["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (3, 4)
    assert writer.stream([Prefill(0, 7, 7, 4, 2.0)], 1) == b""
    ending = writer.stream([TextEvent(0, "x"), end(n_reused=4)], 1)
    assert client.streamed(filling + ending)["content"] == [{"type": "text", "text": "x"}]


def test_a_trace_names_the_drafters(client: Client) -> None:
    writer = MessageWriter(AnswerOptions("m", trace=True))
    events = [
        Reasoning(0, "So", [(2, "target")]),
        TextEvent(0, "It is", [(2, "copy"), (3, "target")], (), ROUND),
    ]
    stream = writer.stream([START, *events, end()], 1)
    deltas = [json.loads(f.split("data: ")[1]) for f in stream.decode().split("\n\n") if "speculation" in f]
    assert [delta["speculation"] for delta in deltas[:-1]] == [
        {"tokens": [[2, "target"]]},
        {
            "tokens": [[2, "copy"], [3, "target"]],
            "round": {"drafted": 3, "accepted": 2, "ms": 10.0, "n_predict": 0},
        },
    ]
    assert [block["type"] for block in client.streamed(stream)["content"]] == ["thinking", "text"]


def test_a_client_that_waits_in_the_queue_gets_the_first_event_with_a_ping() -> None:
    writer = MessageWriter(AnswerOptions("m"))
    assert writer.stream([], 1) == b""
    assert writer.stream([START], 1).startswith(b"event: message_start\n")
    assert writer.stream([], 1) == b""


@pytest.mark.parametrize(
    ("events", "reason", "string"),
    [
        ([TextEvent(0, "x"), end()], "end_turn", None),
        ([end()], "end_turn", None),
        ([TextEvent(0, "x"), end(stop_string="END")], "stop_sequence", "END"),
        ([TextEvent(0, "x"), end("length")], "max_tokens", None),
        ([TextEvent(0, "x"), end("context")], "model_context_window_exceeded", None),
        ([*call("{}"), end()], "tool_use", None),
        ([*call("{}"), *call("{", 1, complete=False), end("length")], "max_tokens", None),
    ],
)
def test_stop_reasons(events, reason: str, string: str | None) -> None:
    whole_answer = answer(events)
    assert (whole_answer["stop_reason"], whole_answer["stop_sequence"]) == (reason, string)
    ending = {"stop_reason": reason, "stop_sequence": string, "stop_details": None}
    assert written(events)[-2]["delta"] == ending


@pytest.mark.parametrize(
    ("arguments", "complete", "expected"),
    [
        ('{"a": "é"}', True, {"a": "é"}),
        ("{}", True, {}),
        ("", True, {}),
        ("", False, {}),
        ('{"a": 1, "b": [2, "x', False, {"a": 1, "b": [2]}),
        ("nonsense", True, {}),
    ],
)
def test_input_is_an_object(arguments: str, complete: bool, expected: dict[str, Any]) -> None:
    (block,) = answer([*call(arguments, complete=complete), end()])["content"]
    assert block == {"type": "tool_use", "id": "toolu_" + "a" * 24, "name": "f", "input": expected}


def test_a_call_without_arguments_sends_an_empty_object() -> None:
    deltas = [e["delta"] for e in written([*call(""), end()]) if e["type"] == "content_block_delta"]
    assert deltas == [{"type": "input_json_delta", "partial_json": "{}"}]


def test_an_answer_always_has_a_text_or_a_call() -> None:
    for events in ([end()], [Reasoning(0, "so"), end("length")]):
        whole_answer = answer(events)
        assert whole_answer["content"][-1] == {"type": "text", "text": ""}
        starts = [e["content_block"] for e in written(events) if e["type"] == "content_block_start"]
        assert [block["type"] for block in starts] == [block["type"] for block in whole_answer["content"]]


def test_an_error_and_a_ping_in_a_stream(client: Client) -> None:
    writer = MessageWriter(AnswerOptions("m", request_id="req_1"))
    stream = writer.ping + writer.stream([START, TextEvent(0, "x")], 1) + writer.ping
    stream += writer.error_event(EngineDiedError("the engine ended")) + writer.end()
    with pytest.raises(anthropic.APIStatusError, match="the engine ended") as error:
        client.streamed(stream)
    assert error.value.type == "overloaded_error"
