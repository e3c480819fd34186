"""Carries messages from the client's reader thread to the event loop of a request."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

from specllama.api.collect import PendingCompletion, PendingRequest
from specllama.client import protocol
from specllama.client.client import EngineClient, Submission
from specllama.errors import SpecllamaError


class AsyncInbox:
    """A request of the running event loop: `start` submits it, `take` awaits its deltas, `leave` ends it."""

    def __init__(self, request: PendingRequest) -> None:
        self.request = request
        self._inbox: asyncio.Queue[tuple[PendingCompletion, protocol.Message | SpecllamaError]] = (
            asyncio.Queue()
        )
        self._loop = asyncio.get_running_loop()
        self._submitted: list[Submission] = []
        self._aborted = False

    def start(self, client: EngineClient) -> None:
        """Submit the request."""
        for completion in () if self._aborted else self.request.completions:

            def deliver(
                message: protocol.Message | SpecllamaError, completion: PendingCompletion = completion
            ) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for the message
                    self._loop.call_soon_threadsafe(self._inbox.put_nowait, (completion, message))

            completion.message = replace(completion.message, id=client.next_id())
            self._submitted.append(client.submit(completion.message, deliver))

    async def take(self) -> list[protocol.SequenceDelta]:
        """Wait for deltas and return all that have arrived. Raises the engine's errors."""
        deltas: list[protocol.SequenceDelta] = []
        if not self._submitted:
            self.request.cancel()
        while not deltas and not self.request.finished:
            arrived = [await self._inbox.get()]
            while not self._inbox.empty():
                arrived.append(self._inbox.get_nowait())
            for completion, message in arrived:
                if isinstance(message, SpecllamaError):
                    raise message
                if (delta := completion.take(message)) is not None:
                    deltas.append(delta)
        return deltas

    def abort(self) -> None:
        """End the request; its text so far still arrives."""
        self._aborted = True
        for submission in self._submitted:
            submission.cancel()

    def leave(self) -> None:
        """Stop delivering, and end the request if it still runs."""
        for submission in self._submitted:
            submission.discard()
