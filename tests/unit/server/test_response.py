"""The responses that the messages of an engine become, without an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from starlette.types import Message

from specllama.client import protocol
from specllama.core.sampling.params import SamplingParams
from specllama.core.stats import RunStats
from specllama.errors import EngineDiedError, SpecllamaError
from specllama.server import requests as response
from specllama.server.dialects.openai.routes import ChatWriter
from specllama.server.dialects.shared.writer import AnswerOptions
from specllama.server.events import End, Start, TextEvent
from specllama.server.http.errors import ClientGoneError
from specllama.server.metrics import Metrics
from specllama.server.requests import RequestStream
from tests.support.generations import generate

DONE = protocol.Done(0, "", "stop", RunStats())


class Engine:
    """Stands for an EngineClient; `deliver` sends the engine's message about the i-th text."""

    def __init__(self) -> None:
        self.deliveries: list[Callable[[protocol.Message | SpecllamaError], None]] = []
        self.cancelled = 0

    def next_id(self) -> int:
        return len(self.deliveries)

    def submit_choices(self, _request, deliver):
        self.deliveries += deliver
        return [self] * len(deliver)

    def cancel(self) -> None:
        self.cancelled += 1

    def deliver(self, i: int, message: protocol.Message | SpecllamaError) -> None:
        self.deliveries[i](message)

    def starts(self, i: int) -> None:
        self.deliver(i, protocol.Started(0, 1, SamplingParams(seed=1)))

    def writes(self, i: int, text: str) -> None:
        self.deliver(
            i, protocol.Tokens([protocol.SequenceDelta(0, text, [1], [(len(text), "target")], 0, 0)])
        )


EngineRun = Callable[[Engine], Awaitable[None]]


def waiting_job(n: int, ended: Callable[[RequestStream], None] = lambda _: None) -> RequestStream:
    job = RequestStream([generate(0, prompt="x", params={"seed": 0})], n)
    job.metrics, job.ended = [Metrics("m")], ended
    return job


def started_job(n: int) -> tuple[Engine, RequestStream]:
    engine, job = Engine(), waiting_job(n)
    job.start(engine)  # type: ignore[arg-type]
    return engine, job


def streamed(n: int, run_engine: EngineRun, reading: float = 0.0, limit: float = 5.0) -> list[bytes]:
    """The bodies that are sent for n choices.

    run_engine: what the engine delivers. reading: the seconds that the client takes for each body. limit: the
    seconds that it may take.
    """
    sent: list[bytes] = []

    async def receive() -> Message:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        await asyncio.sleep(reading)
        if message["type"] == "http.response.body":
            sent.append(message["body"])

    async def main() -> None:
        engine, job = started_job(n)
        answer = response.StreamingResponse(job, ChatWriter(AnswerOptions("m")), True, 0, limit)
        running = asyncio.ensure_future(run_engine(engine))
        try:
            await answer({}, receive, send)
        finally:
            await running

    asyncio.run(main())
    return sent


class TestStreams:
    def test_a_client_that_does_not_read_is_dropped(self) -> None:
        async def run_engine(engine: Engine) -> None:
            engine.starts(0)
            engine.writes(0, "a")

        with pytest.raises(ClientGoneError):
            streamed(1, run_engine, reading=60, limit=0.05)

    def test_a_slow_client_is_not_dropped(self) -> None:
        """The limit applies to each message, also to those sent after the timer was set."""

        async def run_engine(engine: Engine) -> None:
            engine.starts(0)
            for text in "abcde":
                engine.writes(0, text)
                await asyncio.sleep(0.1)
            engine.deliver(0, DONE)

        assert streamed(1, run_engine, reading=0.1, limit=0.4)[-1] == b"data: [DONE]\n\n"

    def test_a_stream_sends_pings_until_the_first_text(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An error after a ping is part of the stream."""
        monkeypatch.setattr(response, "PING_SECONDS", 0.05)

        async def run_engine(engine: Engine) -> None:
            engine.starts(0)
            await asyncio.sleep(0.12)
            engine.writes(0, "a")
            await asyncio.sleep(0.01)
            engine.deliver(0, EngineDiedError("gone"))

        sent = streamed(1, run_engine)
        assert sent[:-3] == [b": waiting\n\n"] * (len(sent) - 3) != []
        assert b'"role":"assistant"' in sent[-3]
        assert b'"content":"a"' in sent[-3]
        assert b"gone" in sent[-2]
        assert sent[-1] == b"data: [DONE]\n\n"

    def test_start_events_are_sent_with_the_first_text(self) -> None:
        async def run_engine(engine: Engine) -> None:
            for i in range(2):
                engine.starts(i)
                await asyncio.sleep(0.01)
            engine.writes(0, "a")
            await asyncio.sleep(0.01)
            for i in range(2):
                engine.deliver(i, DONE)

        sent = streamed(2, run_engine)
        assert [part.count(b"assistant") for part in sent] == [1, 1, 0]
        assert b'"content":"a"' in sent[0]
        assert sent[1].count(b'"finish_reason":"stop"') == 2

    def test_an_error_before_the_first_text_is_raised(self) -> None:
        async def run_engine(engine: Engine) -> None:
            engine.starts(0)
            await asyncio.sleep(0.01)
            engine.deliver(0, EngineDiedError("gone"))

        with pytest.raises(EngineDiedError):
            streamed(1, run_engine)


class TestWholeAnswers:
    def test_a_whole_answer_yields_all_events_at_once(self) -> None:
        """They are the events of a stream, with the times at which they came."""

        async def main() -> list[list[object]]:
            engine, job = started_job(1)
            batches = asyncio.ensure_future(collected(job))
            engine.starts(0)
            for text in "ab":
                await asyncio.sleep(0.01)
                engine.writes(0, text)
            await asyncio.sleep(0.01)
            assert not batches.done()
            engine.deliver(0, DONE)
            return await batches

        async def collected(job: RequestStream) -> list[list[object]]:
            return [list(events) async for events in job.batches(whole=True)]

        (events,) = asyncio.run(main())
        assert [type(event) for event in events] == [Start, TextEvent, TextEvent, End]
        rounds = [event.round for event in events if isinstance(event, TextEvent)]
        assert all(batches is not None and batches.seconds >= 0.005 for batches in rounds)

    def test_an_error_ends_the_wait(self) -> None:
        async def main() -> int:
            engine, job = started_job(2)
            engine.starts(0)
            engine.deliver(1, EngineDiedError("gone"))
            async with asyncio.timeout(5):
                with pytest.raises(EngineDiedError):
                    await anext(job.batches(whole=True))
            return engine.cancelled

        assert asyncio.run(main()) == 2  # the other one is useless alone


class TestRequestsThatWaitForTheirModel:
    def test_generation_ends_at_once_when_the_client_disconnects(self) -> None:
        async def main() -> None:
            ended: list[RequestStream] = []
            job = waiting_job(2, ended.append)
            assert (job.n_open, job.n_waiting) == (2, 2)
            job.cancel()
            job.cancel()
            assert (job.n_open, job.n_waiting, ended) == (0, 0, [job])

        asyncio.run(main())

    def test_an_error_of_the_load_is_raised(self) -> None:
        async def main() -> None:
            for whole in (False, True):
                job = waiting_job(1)
                job.fail(EngineDiedError("no model"))
                with pytest.raises(EngineDiedError, match="no model"):
                    _ = [events async for events in job.batches(whole)]

        asyncio.run(main())

    def test_a_waiting_stream_gets_pings(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(response, "PING_SECONDS", 0.05)
        sent: list[bytes] = []

        async def send(message: Message) -> None:
            sent.append(message.get("body", b""))

        async def receive() -> Message:
            await asyncio.sleep(60)
            return {"type": "http.disconnect"}

        async def main() -> None:
            job, engine = waiting_job(1), Engine()
            writer = ChatWriter(AnswerOptions("m"))
            answer = response.StreamingResponse(job, writer, True, 0, 5)
            sending = asyncio.ensure_future(answer({}, receive, send))
            await asyncio.sleep(0.18)
            job.start(engine)  # type: ignore[arg-type]
            engine.starts(0)
            engine.writes(0, "a")
            engine.deliver(0, DONE)
            await sending

        asyncio.run(main())
        pings = [data for data in sent if data == ChatWriter.ping]
        assert len(pings) >= 2
        assert sent[1] == ChatWriter.ping
        assert sent[-1] == b"data: [DONE]\n\n"
