"""One HTTP request in the engine, all its completions as one stream of events; and the response made of them.

Generation ends at once when the client disconnects. Knows events and a writer, no API.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from specllama.calls.scanner import CallReader
from specllama.calls.tools import Tools
from specllama.client import protocol
from specllama.client.client import EngineClient, Submission
from specllama.core.gain import plain_rate
from specllama.core.sampling.params import nth_seed
from specllama.errors import DeadlineError, ResourceError, SpecllamaError
from specllama.server.dialects.shared.writer import AnswerWriter
from specllama.server.events import Event, EventAssembler, ReasoningFormat, Start, to_json
from specllama.server.http.body import IdleTimer
from specllama.server.http.errors import ClientGoneError
from specllama.server.metrics import Metrics

ReaderOf = Callable[[Tools | None], CallReader | None]


class RequestStream:
    """The completions of one request, from waiting for the model to the last event.

    requests: of the engine, one for each prompt. n: completions of each prompt, with seeds derived from its
    own. metrics: count its figures. ended: called once when all have ended, for whatever reason. reasoning:
    see EventAssembler. fields: names of request fields by the parameters that they set, for errors of the
    engine about a parameter. supersedes: a key; earlier requests of the same owner and key end with the text
    that they have, unless this request only evaluates its prompt; "" for none. owner: the requesting key's
    name. n_completions: in all; n_open: those that have not ended. begun: whether the engine has the request.
    n_bytes: size of the request; n_held: the part held in this process until then. answer_id: as the client
    sees it, "" for none. controlled: whether its reasoning can be ended.
    """

    def __init__(
        self,
        requests: Sequence[protocol.Generate],
        n: int = 1,
        reasoning: ReasoningFormat = "auto",
        fields: Mapping[str, str] = MappingProxyType({}),
        supersedes: str = "",
        n_bytes: int = 0,
    ) -> None:
        self.supersedes, self.n_held = supersedes, n_bytes
        self._assemblers: list[EventAssembler] = []
        self.requests, self._n, self.owner = list(requests), n, requests[0].owner
        self.answer_id, self.controlled = "", requests[0].reasoning_control
        self._reasoning, self._fields = reasoning, fields
        self.n_completions = self.n_open = len(requests) * n
        self._waiting = set(range(self.n_completions))  # those that the engine has not begun or ended
        self.metrics: Sequence[Metrics] = ()
        self.ended: Callable[[RequestStream], None] = lambda _: None
        self.begun = False
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._submitted: list[Submission] = []
        self._inbox: list[tuple[EventAssembler, protocol.Message, float] | SpecllamaError] = []
        self._arrived, self._complete = asyncio.Event(), asyncio.Event()  # a message did, all did
        self._abandoned = self._woken = False
        self._last: dict[int, float] = {}  # by choice: when its latest tokens arrived

    @property
    def n_waiting(self) -> int:
        """Completions that wait for a slot, or have had one for less than half a second without a token."""
        return len(self._waiting)

    @property
    def seconds(self) -> float:
        return self._loop.time() - self._began

    def start(
        self, client: EngineClient, end_ids: Collection[int] = (), reader: ReaderOf | None = None
    ) -> None:
        """Submit all completions; those of a prompt together: it is sent, rendered and tokenised once.

        end_ids: tokens that end a completion. reader: creates the reader of a chat's answer, see
        LoadInfo.answer_reader.
        """
        self.begun, self.n_held = True, 0
        for prompt, request in enumerate(self.requests):
            chat, first = request.chat, prompt * self._n
            begun, splits = chat is not None and chat.is_begun, chat is not None
            form = request.progress, self._reasoning
            assemblers = [
                EventAssembler(
                    i, prompt, splits, begun, end_ids, reader(chat.tools) if chat and reader else None, *form
                )
                for i in range(first, first + self._n)
            ]
            self._assemblers += assemblers
            self._submit(client, replace(request, id=client.next_id(), turn=first), assemblers)
        self.requests = []  # the prompts are not kept: they may be large, and wait for long

    def _submit(
        self, client: EngineClient, request: protocol.Generate, assemblers: Sequence[EventAssembler]
    ) -> None:
        if self._n > 1:
            given = request.params.get("seed")
            seed = secrets.randbits(32) if given is None else given
            more = [
                protocol.Choice(client.next_id(), one.index, nth_seed(seed, j))
                for j, one in enumerate(assemblers[1:], 1)
            ]
            params = {**request.params, "seed": nth_seed(seed, 0)}
            request = replace(request, params=params, choices=more)
        try:
            self._submitted += client.submit_choices(request, [partial(self._arrive, a) for a in assemblers])
        except SpecllamaError as error:
            for assembler in assemblers:
                self._arrive(assembler, error)

    async def batches(self, whole: bool = False) -> AsyncGenerator[list[Event]]:
        """Yields events until all completions have ended; those that arrived together are one list.

        whole: yield all events at once, at the end. A list is empty after `wake`. Raises errors of the
        engine, the error given to `fail`, and DeadlineError after `expire`.
        """
        awaited, n_done = self._complete if whole else self._arrived, 0
        while n_done < self.n_completions:
            await awaited.wait()
            awaited.clear()
            woken, self._woken = self._woken, False
            arrived, self._inbox = self._inbox, []
            events: list[Event] = []
            for one in arrived:
                if isinstance(one, SpecllamaError):
                    raise one
                assembler, message, at = one
                events += assembler.add(message, at)
                n_done += isinstance(message, protocol.Done)
            if events or woken:
                yield events

    def wake(self) -> None:
        """Make `batches` yield, even without events."""
        self._woken = True
        self._arrived.set()

    def expire(self) -> None:
        """End the request for exceeding its time limit: `batches` raises DeadlineError."""
        self.fail(DeadlineError(f"the request took longer than {self.seconds:.0f} s, which is its limit"))

    def fail(self, error: SpecllamaError) -> None:
        self._put(error)
        self.cancel()

    def end_early(self) -> None:
        """End the completions where they are; they count as complete, unless they wait for their model."""
        if not self.begun:
            self.fail(ResourceError("a newer request has taken the place of this one"))
        for assembler in self._assemblers:
            assembler.ends_early = True
        for submission in self._submitted:
            submission.cancel()

    def end_reasoning(self) -> None:
        """Have the engine write the end of the reasoning; without effect on completions where it is over."""
        for submission in self._submitted:
            submission.end_reasoning()

    def cancel(self) -> None:
        """Make the engine end the completions; no more events follow."""
        self._abandoned = True
        if not self.n_open:
            return
        if not self.begun:
            self.n_open = 0
            self._waiting.clear()
            self.ended(self)
        for submission in self._submitted:
            submission.cancel()

    def _arrive(self, assembler: EventAssembler, message: protocol.Message | SpecllamaError) -> None:
        """Handle a message of the engine about one completion, in the event loop."""
        now = self._loop.time()
        if not isinstance(message, protocol.Started | protocol.Queued):
            self._waiting.discard(assembler.index)
        if isinstance(message, protocol.Tokens):
            self._observe(assembler.index, len(message.items[0].ids), now)
        ended = isinstance(message, (protocol.Done, SpecllamaError))
        if isinstance(message, protocol.Done):
            self._count(assembler, message)
        if ended:
            self.n_open -= 1
        if isinstance(message, SpecllamaError):
            self._put(self._named(message))
            if not self._abandoned:
                self.cancel()  # the others are useless without it
        elif not self._abandoned:
            self._put((assembler, message, now))
        if ended and self.n_open == 0:
            for metrics in self.metrics:
                metrics.seconds.observe(self.seconds)
            self.ended(self)

    def _named(self, error: SpecllamaError) -> SpecllamaError:
        """The error, with the request's own name for the field at fault."""
        path = self._fields.get(error.details.get("param", ""))
        if path is None:
            return error
        named = error.prefixed(f"{path}: ")
        named.details = {**error.details, "param": path}
        return named

    def _put(self, arrived: tuple[EventAssembler, protocol.Message, float] | SpecllamaError) -> None:
        self._inbox.append(arrived)
        self._arrived.set()
        if self.n_open == 0 or isinstance(arrived, SpecllamaError):
            self._complete.set()

    def _count(self, assembler: EventAssembler, done: protocol.Done) -> None:
        first_of_prompt = assembler.index % self._n == 0
        for metrics in self.metrics:
            if done.queue_seconds is not None:
                metrics.queued.observe(done.queue_seconds)
            metrics.count(done.stats, plain_rate(done.stats, done.stored_t1, done.pace), first_of_prompt)

    def _observe(self, index: int, n: int, now: float) -> None:
        """Observe the arrival of n tokens of a choice in the metrics."""
        for metrics in self.metrics:
            if index not in self._last:
                metrics.first_token.observe(now - self._began)
            else:
                gap = (now - self._last[index]) / n
                for _ in range(n):
                    metrics.between_tokens.observe(gap)
        self._last[index] = now


PING_SECONDS = 15.0  # without events, after which a stream sends a ping


class StreamingResponse(Response):
    """The answer made of the events of a RequestStream.

    Errors before the first byte are raised; later ones become an event of the stream. seconds: limit of the
    whole answer, 0 for none. client_seconds: how long sent bytes may stay unread.
    """

    def __init__(
        self, job: RequestStream, writer: AnswerWriter, stream: bool, seconds: float, client_seconds: float
    ) -> None:
        super().__init__(media_type=writer.media_type if stream else "application/json")
        self._job, self._writer, self._stream = job, writer, stream
        self._seconds, self._client_seconds = seconds, client_seconds

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer. Raises SpecllamaError as long as nothing was sent, ClientGoneError."""
        loop, limit = asyncio.get_running_loop(), None
        if self._seconds:
            limit = loop.call_later(self._seconds, self._job.expire)
        write = self._write_stream if self._stream else self._write_whole

        gone = asyncio.ensure_future(disconnected(receive))
        unread = IdleTimer(self._client_seconds, gone.cancel)

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
        """Start events wait for the first text or ping, so that an error before still sets the status."""
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
                    data = writer.stream(held, self._job.n_completions)
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


async def disconnected(receive: Receive) -> None:
    """Return when the client of a request whose body is read has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
