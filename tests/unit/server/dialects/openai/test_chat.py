"""The writer of /v1/chat/completions: whatever the events are, a stream adds up to the whole answer, for
openai's own accumulator and for LangChain's.
"""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from specllama.core.gain import PlainRate
from specllama.core.stats import RunStats
from specllama.server.dialects.openai.routes import ChatWriter
from specllama.server.dialects.shared.writer import AnswerOptions
from specllama.server.events import CallArgs, CallClose, CallOpen, End, Event, Reasoning, Start, TextEvent
from tests.support.event_scripts import Script, scripts
from tests.support.examples import examples

START, ID = Start(0, 0, 7, 5), "0123456789abcdefghijklmn"
CALL = (CallOpen(0, 0, ID, "f"), CallArgs(0, 0, '{"a": '), CallArgs(0, 0, "1}"), CallClose(0, 0))
property_test = settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def end(reason: str = "stop", stop_string: str | None = None) -> End:
    return End(0, reason, stop_string, RunStats(n_predict=4), PlainRate(None, "none", 0))


def streamed(script: Script, **options: Any) -> list[dict[str, Any]]:
    """The chunks of a stream, from its bytes."""
    writer = ChatWriter(AnswerOptions("m", **options))
    data = b"".join(writer.stream(batch, script.n) for batch in script.batches) + writer.end()
    *frames, done, rest = data.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


def whole(script: Script, **options: Any) -> dict[str, Any]:
    writer = ChatWriter(AnswerOptions("m", **options))
    writer.fold.add(script.events)
    answer: dict[str, Any] = json.loads(json.dumps(writer.answer()))
    return answer


def deltas(*events: Event) -> list[dict[str, Any]]:
    chunks = streamed(Script([[START, *events]], 1))
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    return [chunk["choices"][0]["delta"] for chunk in chunks]


class TestDeltas:
    def test_a_call(self) -> None:
        first = {
            "index": 0,
            "id": f"call_{ID}",
            "type": "function",
            "function": {"name": "f", "arguments": ""},
        }
        more = [{"index": 0, "function": {"arguments": part}} for part in ('{"a": ', "1}")]
        assert deltas(*CALL, end()) == [
            {"role": "assistant", "content": None}, {"tool_calls": [first]}, {"tool_calls": [more[0]]},
            {"tool_calls": [more[1]]}, {},
        ]  # fmt: skip

    def test_text_before_a_call(self) -> None:
        stream_deltas = deltas(TextEvent(0, "Hm."), *CALL, end())
        assert stream_deltas[:2] == [{"role": "assistant", "content": ""}, {"content": "Hm."}]
        assert all("content" not in delta for delta in stream_deltas[2:])

    def test_reasoning_does_not_decide_whether_there_is_content(self) -> None:
        first = {"role": "assistant", "content": None}
        thought = {"reasoning_content": "Hm."}
        assert deltas(Reasoning(0, "Hm."), TextEvent(0, "x"), end()) == [first, thought, {"content": "x"}, {}]
        assert deltas(Reasoning(0, "Hm."), end("length")) == [first, thought, {"content": ""}, {}]

    def test_the_first_delta_waits_for_the_first_event(self) -> None:
        writer = ChatWriter(AnswerOptions("m"))
        assert writer.stream([START], 1) == b""
        assert deltas(end()) == [{"role": "assistant", "content": ""}, {}]

    def test_first_deltas_come_in_the_order_of_the_choices(self) -> None:
        starts = [Start(i, 0, 7, i) for i in range(3)]
        chunks = streamed(Script([starts, [TextEvent(2, "x")]], 3))
        assert [chunk["choices"][0]["index"] for chunk in chunks] == [0, 1, 2, 2]
        assert [chunk["choices"][0]["delta"].get("content") for chunk in chunks] == [None, None, "", "x"]

    def test_a_trace_names_the_drafters_of_arguments(self) -> None:
        args = CallArgs(0, 0, "{}", [(1, "grammar"), (1, "target")])
        chunks = streamed(Script([[START, CALL[0], args, CALL[-1], end()]], 1), trace=True)
        traces = [chunk["speculation"].get("tokens") for chunk in chunks if "speculation" in chunk]
        assert traces[:2] == [[], [[1, "grammar"], [1, "target"]]]


@pytest.mark.parametrize(
    ("events", "reason", "content", "n_calls"),
    [
        ([*CALL, end()], "tool_calls", None, 1),
        ([TextEvent(0, "x"), *CALL, end()], "tool_calls", "x", 1),
        ([*CALL, end("length")], "length", None, 1),
        ([*CALL[:2], end("length")], "length", None, 1),
        ([*CALL[:2], end("context")], "length", None, 1),
        ([*CALL, CallOpen(0, 1, ID, "f"), end("stop", "#")], "stop", None, 2),
        ([TextEvent(0, "x"), end()], "stop", "x", 0),
        ([end()], "stop", "", 0),
        ([Reasoning(0, "x"), end("length")], "length", "", 0),
    ],
)
def test_a_whole_answer(events, reason, content, n_calls) -> None:
    (choice,) = whole(Script([[START, *events]], 1))["choices"]
    message = choice["message"]
    assert (choice["finish_reason"], message["content"]) == (reason, content)
    assert len(message.get("tool_calls", ())) == n_calls
    assert ("tool_calls" in message) == (n_calls > 0)


@property_test
@given(scripts(most_choices=3, logprobs=True))
def test_openais_accumulator_gets_the_whole_answer(script: Script) -> None:
    state: Any = ChatCompletionStreamState()
    for chunk in streamed(script, logprobs=True, usage_chunk=True):
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    expected = ChatCompletion.model_validate(whole(script, logprobs=True))
    snapshot = state.current_completion_snapshot  # get_final_completion() refuses texts that were cut off
    assert snapshot.usage == expected.usage
    for one, other in zip(snapshot.choices, expected.choices, strict=True):
        assert one.index == other.index
        assert one.finish_reason == other.finish_reason
        message, wanted = one.message, other.message
        assert (message.role, message.content) == (wanted.role, wanted.content)
        assert getattr(message, "reasoning_content", None) == getattr(wanted, "reasoning_content", None)
        assert [c.to_dict(exclude_none=True) | {"index": 0} for c in message.tool_calls or []] == [
            c.to_dict() | {"index": 0} for c in wanted.tool_calls or []
        ]
        tokens = [token.to_dict() for token in (one.logprobs.content if one.logprobs else None) or []]
        assert tokens == [token.to_dict() for token in other.logprobs.content]


@pytest.fixture(scope="module")
def langchain() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own dependencies
        from langchain_openai import ChatOpenAI

        return ChatOpenAI(model="m", api_key="unused")


@pytest.mark.filterwarnings("default")
@property_test
@given(script=scripts())
def test_langchain_gets_the_whole_answer(langchain: Any, script: Script) -> None:
    from langchain_core.messages import AIMessageChunk

    joined = None
    for chunk in streamed(script, usage_chunk=True):
        part = langchain._convert_chunk_to_generation_chunk(chunk, AIMessageChunk, {})
        if part is not None:
            joined = part.message if joined is None else joined + part.message
    (generation,) = langchain._create_chat_result(whole(script)).generations
    expected = generation.message
    assert (joined.content, joined.usage_metadata) == (expected.content, expected.usage_metadata)
    # A call that was cut off is completed by LangChain in a stream, and is invalid in a whole answer.
    complete = [call for call in expected.tool_calls if call["args"] is not None]
    assert [call for call in joined.tool_calls if call in complete] == complete
    assert len(joined.tool_call_chunks) == len(expected.tool_calls) + len(expected.invalid_tool_calls)
