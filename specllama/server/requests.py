"""One request in the engine: its texts, handed in together, as one stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

from specllama.client import protocol as m
from specllama.client.client import Submission
from specllama.client.loop_client import LoopClient
from specllama.errors import DeadlineError, SpecllamaError
from specllama.server.event_assembler import EventAssembler
from specllama.server.events import Event
from specllama.server.metrics import Metrics


@dataclass(frozen=True, slots=True)
class CompletionSpec:
    """One text that is wanted. prompt: number of the prompt that it answers. splits: see Reader."""

    request: m.Generate
    prompt: int = 0
    splits: bool = False


class RequestStream:
    """The texts of one request. ended: called once when all have ended in the engine, however that came
    about. n_open: those that have not. end_ids: tokens
    that end a text.
    """

    def __init__(
        self,
        wanted: Sequence[CompletionSpec],
        metrics: Metrics,
        ended: Callable[[RequestStream], None],
        end_ids: Collection[int] = (),
    ) -> None:
        self._end_ids = end_ids
        self.wanted = list(wanted)
        self.n_open = len(wanted)
        self._metrics, self._ended = metrics, ended
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._submitted: list[Submission] = []
        self._inbox: list[tuple[EventAssembler, m.Message, float] | SpecllamaError] = []
        self._news, self._whole = asyncio.Event(), asyncio.Event()  # something is in it; all that will be
        self._left = self._poked = False
        self._last: dict[int, float] = {}

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._loop.time() - self._began

    def start(self, client: LoopClient) -> None:
        """Hand all texts in."""
        for i, wanted in enumerate(self.wanted):
            begun = bool(wanted.request.prefix)
            reader = EventAssembler(i, wanted.prompt, wanted.splits, begun, self._end_ids)
            request = replace(wanted.request, id=client.next_id(), turn=i)
            try:
                self._submitted.append(client.submit(request, partial(self._arrive, reader)))
            except SpecllamaError as error:
                self._arrive(reader, error)

    async def batches(self, whole: bool = False) -> AsyncGenerator[list[Event]]:
        """The events, those that came together at once, until all texts have ended; whole: all of them then.
        An empty list after a `poke`. Raises what the engine says, what `fail` was given, DeadlineError by way
        of it.
        """
        awaited, n_done = self._whole if whole else self._news, 0
        while n_done < len(self.wanted):
            await awaited.wait()
            awaited.clear()
            poked, self._poked = self._poked, False
            arrived, self._inbox = self._inbox, []
            events: list[Event] = []
            for one in arrived:
                if isinstance(one, SpecllamaError):
                    raise one
                reader, message, at = one
                events += reader.take(message, at)
                n_done += isinstance(message, m.Done)
            if events or poked:
                yield events

    def wake(self) -> None:
        """Let who waits for news go on without any."""
        self._poked = True
        self._news.set()

    def expire(self) -> None:
        """It takes too long: whoever reads it gets DeadlineError."""
        self.fail(DeadlineError(f"the request took longer than {self.seconds:.0f} s, which is what it may"))

    def fail(self, error: SpecllamaError) -> None:
        """End it with an error."""
        self._put(error)
        self.cancel()

    def cancel(self) -> None:
        """Nobody wants it any more."""
        self._left = True
        if self.n_open:
            for submission in self._submitted:
                submission.cancel()

    def _arrive(self, reader: EventAssembler, message: m.Message | SpecllamaError) -> None:
        """In the loop: what the engine says about one of the texts."""
        now = self._loop.time()
        if isinstance(message, m.Tokens):
            self._observe(reader, len(message.items[0].ids), now)
        over = isinstance(message, (m.Done, SpecllamaError))
        if isinstance(message, m.Done):
            if message.queue_seconds is not None:
                self._metrics.queued.observe(message.queue_seconds)
            first_of_prompt = reader.index == 0 or self.wanted[reader.index - 1].prompt != reader.prompt
            self._metrics.count(message.stats, first_of_prompt)
        if over:
            self.n_open -= 1
        if isinstance(message, SpecllamaError):
            self._put(message)
            if not self._left:
                self.cancel()  # the others are worth nothing alone
        elif not self._left:
            self._put((reader, message, now))
        if over and self.n_open == 0:
            self._metrics.seconds.observe(self.seconds)
            self._ended(self)

    def _put(self, arrived: tuple[EventAssembler, m.Message, float] | SpecllamaError) -> None:
        self._inbox.append(arrived)
        self._news.set()
        if self.n_open == 0 or isinstance(arrived, SpecllamaError):
            self._whole.set()

    def _observe(self, reader: EventAssembler, n: int, now: float) -> None:
        if reader.index not in self._last:
            self._metrics.first_token.observe(now - self._began)
        else:
            gap = (now - self._last[reader.index]) / n
            for _ in range(n):
                self._metrics.between_tokens.observe(gap)
        self._last[reader.index] = now
