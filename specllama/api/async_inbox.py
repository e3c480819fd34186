"""How messages get from the client's thread to the event loop that waits for them."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

from specllama.api.collect import PendingCompletion, PendingRequest
from specllama.api.words import translated
from specllama.client import protocol as m
from specllama.client.client import EngineClient, Submission
from specllama.errors import SpecllamaError


class AsyncInbox:
    """A job of the running loop: handed in by `start`, read by `take`, in any case left."""

    def __init__(self, job: PendingRequest) -> None:
        self.job = job
        self._inbox: asyncio.Queue[tuple[PendingCompletion, m.Message | SpecllamaError]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._submitted: list[Submission] = []
        self._aborted = False

    def start(self, client: EngineClient) -> None:
        """Hand the job in."""
        for choice in () if self._aborted else self.job.choices:

            def deliver(message: m.Message | SpecllamaError, choice: PendingCompletion = choice) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                    self._loop.call_soon_threadsafe(self._inbox.put_nowait, (choice, message))

            choice.request = replace(choice.request, id=client.next_id())
            self._submitted.append(client.submit(choice.request, deliver))

    async def take(self) -> list[m.SequenceDelta]:
        """Wait for something new; all of it that has arrived by then. Raises what the engine says."""
        deltas: list[m.SequenceDelta] = []
        if not self._submitted:
            self.job.cancel()
        while not deltas and not self.job.finished:
            arrived = [await self._inbox.get()]
            while not self._inbox.empty():
                arrived.append(self._inbox.get_nowait())
            for choice, message in arrived:
                if isinstance(message, SpecllamaError):
                    raise translated(message)
                if (delta := choice.take(message)) is not None:
                    deltas.append(delta)
        return deltas

    def abort(self) -> None:
        """End the job; what it has written by then still arrives."""
        self._aborted = True
        for submission in self._submitted:
            submission.cancel()

    def leave(self) -> None:
        """Hear no more of it."""
        for submission in self._submitted:
            submission.leave()
