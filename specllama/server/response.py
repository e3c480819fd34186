"""Sends an answer over HTTP, streamed or in one piece; generation ends at once when the client disconnects.

Knows events and a writer, no API.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from specllama.errors import SpecllamaError
from specllama.server.dialects.shared.writer import AnswerWriter
from specllama.server.events import Event, Start, to_json
from specllama.server.http.body import IdleTimer
from specllama.server.http.errors import ClientGoneError
from specllama.server.requests import RequestStream

PING_SECONDS = 15.0  # without events, after which a stream sends a ping


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds. answer: for the whole answer, 0 for no limit. client: how long sent bytes may stay unread."""

    answer: float
    client: float


class StreamingResponse(Response):
    """The answer made of the events of a RequestStream.

    Errors before the first byte are raised; later ones become an event of the stream.
    """

    def __init__(self, job: RequestStream, writer: AnswerWriter, stream: bool, limits: Limits) -> None:
        super().__init__(media_type=writer.media_type if stream else "application/json")
        self._job, self._writer, self._stream, self._limits = job, writer, stream, limits

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer. Raises SpecllamaError as long as nothing was sent, ClientGoneError."""
        loop, limit = asyncio.get_running_loop(), None
        if self._limits.answer:
            limit = loop.call_later(self._limits.answer, self._job.expire)
        write = self._write_stream if self._stream else self._write_whole

        gone = asyncio.ensure_future(_disconnected(receive))
        unread = IdleTimer(self._limits.client, gone.cancel)

        async def timed(message: Message) -> None:
            unread.begin()
            await send(message)
            unread.end()

        work = asyncio.ensure_future(write(timed))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ClientGoneError
            work.result()
        finally:
            if limit is not None:
                limit.cancel()
            unread.close()
            self._job.cancel()  # has no effect after the end
            self._writer.close()
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    async def _write_whole(self, send: Send) -> None:
        async with aclosing(self._job.batches(whole=True)) as batches:
            async for events in batches:
                self._writer.fold.add(events)
        self.body = to_json(self._writer.answer())
        self.init_headers({"content-type": "application/json"})
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body})

    async def _write_stream(self, send: Send) -> None:
        """Holds Start events back until the first text or ping, so that an error before it still sets the
        status.
        """
        writer, sent = self._writer, False

        async def body(data: bytes, more: bool = True) -> None:
            nonlocal sent
            if not sent:
                sent = True
                self.raw_headers = [h for h in self.raw_headers if h[0] != b"content-length"]
                self.raw_headers += [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": data, "more_body": more})

        ping_timer = IdleTimer(PING_SECONDS, self._job.wake)
        ping_timer.begin()
        try:
            held: list[Event] = []
            async with aclosing(self._job.batches()) as batches:
                async for events in batches:
                    ping_timer.begin()
                    held += events
                    if events and all(isinstance(event, Start) for event in held):
                        continue
                    data = writer.stream(held, len(self._job.specs))
                    held.clear()
                    if data:
                        await body(data)
                    if not events:
                        await body(writer.ping)
        except SpecllamaError as error:
            if not sent:
                raise
            await body(writer.error_event(error))
        finally:
            ping_timer.close()
        await body(writer.end(), more=False)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
