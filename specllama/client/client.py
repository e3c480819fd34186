"""The client that every front talks to: sends requests to an engine process, hands out what comes back.

Imports no llama.cpp.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import IO, NoReturn, TypeVar

from specllama.client import protocol
from specllama.client.child import EngineProcess
from specllama.config.load import LoadSettings
from specllama.config.options import as_flag
from specllama.errors import SpecllamaError, Spelling, UsageError, spelled

Deliver = Callable[[protocol.Message | SpecllamaError], None]
_Answer = TypeVar(
    "_Answer", protocol.Ready, protocol.Calibrated, protocol.Configured, protocol.Inspected, protocol.Serving
)
_Inbox = queue.SimpleQueue[protocol.Message | SpecllamaError]


class Submission:
    """A request in the engine. Its methods never wait and never raise, whoever calls them when."""

    __slots__ = ("_client", "id")

    def __init__(self, client: EngineClient, id_: int) -> None:
        self._client, self.id = client, id_

    def cancel(self) -> None:
        """End the generation; what it has written by then and its Done are still delivered."""
        with contextlib.suppress(SpecllamaError):
            self._client.send(protocol.Cancel(self.id))

    def leave(self) -> None:
        """Have nothing more delivered, and end it if it still runs."""
        if self._client._waiting.pop(self.id, None) is not None:
            self.cancel()


class EngineClient:
    """An engine process; a context manager that ends it.

    log: where the process's stderr goes as well. loop: where messages are read, so that everything is
    delivered in it; else, and where it cannot watch pipes, a thread does. notice: gets the engine's notices,
    there; without it they are collected in `notices`. ended: called in a thread once the process has ended
    and everybody who waits knows; handed_out: after all deliveries of a message, and after
    `ended`. spelling: of the options in what the engine says. Threads may share a client. Raises
    EngineDiedError from any call once the process has ended, EngineError in a forked child.
    """

    def __init__(
        self,
        log: IO[str] | None = None,
        notice: Callable[[str], None] | None = None,
        ended: Callable[[], None] | None = None,
        handed_out: Callable[[], None] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        spelling: Spelling = as_flag,
    ) -> None:
        self.notices: list[str] = []
        self._spelling = spelling
        self._ended, self._handed_out = ended, handed_out
        self._notice = notice or self.notices.append
        self._ids = itertools.count(1)
        self._waiting: dict[int | None, Deliver] = {}  # None: for the answer to what has no id
        self._asking = threading.Lock()
        self._child = EngineProcess(self._dispatch, self._tell_all, log)
        self._child.start(loop)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def dead(self) -> SpecllamaError | None:
        """Why the process has ended; None while it lives."""
        return self._child.dead

    @property
    def silent_for(self) -> float:
        """Seconds since the process was last heard of; a living one says something twice a second."""
        return self._child.silent_for

    def __enter__(self) -> EngineClient:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def load(
        self,
        settings: LoadSettings,
        progress: Callable[[str, float], None] | None = None,
        verbose: bool = False,
        measure_when_idle: bool = False,
    ) -> protocol.LoadInfo:
        """Load the models. progress: called with (model, share loaded).

        Raises what the load raises: IntegrityError, IncompatiblePairError, ResourceError, UsageError …
        """
        if settings.rpc:
            self._child.hang_hint = f"perhaps it waits for an RPC worker: {', '.join(settings.rpc)}"
        return self._ask(
            protocol.Load(settings, verbose, measure_when_idle), protocol.Ready, progress
        ).info.spelled(self._spelling)

    def calibrate(self, seconds: float = 1.0) -> protocol.Calibrated:
        """Have the idle engine measure now what it does not know yet."""
        return self._ask(protocol.Calibrate(seconds), protocol.Calibrated)

    def configure(self, draft_max: int | None = None, draft_min: int = 0, draft_p_min: float = 0.0) -> None:
        """Let the idle engine draft in another way (see LoadSettings) without loading again.

        Raises UsageError for impossible settings, EngineError where the engine is busy.
        """
        self._ask(protocol.Configure(draft_max, draft_min, draft_p_min), protocol.Configured)

    def inspect(self) -> protocol.BuildInfo:
        """What this build of llama.cpp is and can use."""
        return self._ask(protocol.Inspect(), protocol.Inspected).build

    def serve(self, request: protocol.Serve) -> protocol.Serving:
        """Make the process an RPC worker, for as long as it lives; what it serves, once it listens.

        Raises UsageError for devices that it does not have, ResourceError where it cannot listen, EngineError
        where the build cannot.
        """
        return self._ask(request, protocol.Serving)

    def wait(self) -> NoReturn:
        """Stay until the process has ended. Raises why."""
        raise self._child.wait()

    def submit(
        self, request: protocol.Generate | protocol.Question | protocol.Tune, deliver: Deliver
    ) -> Submission:
        """Hand in a request without waiting. deliver: gets Started, Prefilled …, Tokens (of this generation
        only), at last Done or an error, and nothing after that; for a question only its answer or an error.

        It is called in the reading thread, perhaps before this returns: it has to be quick and must neither
        raise nor wait for this client. Raises UsageError where the request is no JSON or its id is taken.
        """
        self._open(request.id, deliver, request)
        return Submission(self, request.id)

    def generate(self, request: protocol.Generate) -> Iterator[protocol.Message]:
        """Started, Prefilled …, Tokens (of this generation only), at last Done. Leaving the iterator cancels.

        Raises UsageError and others before the first message, EngineError where decoding fails.
        """
        return self._events(request, protocol.Done)

    def tune(self, request: protocol.Tune) -> Iterator[protocol.Message]:
        """Tuning …, Measured …, at last Tuned. Leaving the iterator cancels.

        Raises what the drafts' files and llama.cpp give cause for, before the first message or in between.
        """
        return self._events(request, protocol.Tuned)

    def next_id(self) -> int:
        """An id for a request, unique in this client."""
        return next(self._ids)

    def send(self, message: protocol.Message) -> None:
        """Have a message written to the process; does not wait for that."""
        try:
            data = protocol.encode(message)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"the request cannot be written as JSON: {error}") from None
        self._child.write(data)

    def shut(self) -> None:
        """Let the process end, without waiting for it; for finalizers, which may run at any point."""
        self._child.shut()

    def close(self) -> None:
        """End the process: it exits when its stdin closes, and is killed if it does not."""
        self._child.close()

    def _events(
        self, request: protocol.Generate | protocol.Tune, last: type[protocol.Message]
    ) -> Iterator[protocol.Message]:
        inbox = _Inbox()
        submission = self.submit(request, inbox.put)
        try:
            while True:
                message = _raised(inbox.get())
                yield message
                if isinstance(message, last):
                    return
        finally:
            submission.leave()

    def _open(self, id_: int | None, deliver: Deliver, message: protocol.Message) -> None:
        if self._waiting.setdefault(id_, deliver) is not deliver:
            raise UsageError(f"there is a request {id_} already")
        try:
            self.send(message)
        except SpecllamaError:
            if self._waiting.pop(id_, None) is not None:  # else `deliver` has got the same error
                raise

    def _ask(
        self,
        message: protocol.Message,
        answer: type[_Answer],
        progress: Callable[[str, float], None] | None = None,
    ) -> _Answer:
        inbox = _Inbox()
        with self._asking:
            self._open(None, inbox.put, message)
            try:
                while True:
                    got = _raised(inbox.get())
                    if isinstance(got, answer):
                        return got
                    if progress is not None and isinstance(got, protocol.Loading):
                        progress(got.model, got.share)
            finally:
                self._waiting.pop(None, None)

    def _dispatch(self, message: protocol.Message) -> None:
        if isinstance(message, protocol.Tokens):
            for item in message.items:
                self._deliver(item.id, protocol.Tokens([item]))
        elif isinstance(message, protocol.Notice):
            self._notice(spelled(message.text, self._spelling))
        elif isinstance(message, protocol.Done) and message.off_reason:
            reason = spelled(message.off_reason, self._spelling)
            self._deliver(message.id, replace(message, off_reason=reason))
        elif isinstance(message, protocol.Failed):
            error = SpecllamaError.from_dict(message.error).spelled(self._spelling)
            if message.id is None and None not in self._waiting:  # its last word
                self._child.blame(error)
            self._deliver(message.id, error)
        else:
            self._deliver(getattr(message, "id", None), message)
        if self._handed_out is not None:
            self._handed_out()

    def _deliver(self, id_: int | None, message: protocol.Message | SpecllamaError) -> None:
        ends = isinstance(message, (protocol.Done, protocol.Answer, protocol.Tuned, SpecllamaError))
        deliver = self._waiting.pop(id_, None) if ends else self._waiting.get(id_)
        if deliver is not None:
            deliver(message)

    def _tell_all(self) -> None:
        """Tell everybody who waits why the process has ended."""
        for id_ in list(self._waiting):
            deliver, error = self._waiting.pop(id_, None), self._child.dead
            if deliver is not None and error is not None:
                with contextlib.suppress(Exception):  # the others need to know too
                    deliver(error)
        if self._ended is not None:
            self._ended()
        if self._handed_out is not None:
            self._handed_out()


def _raised(message: protocol.Message | SpecllamaError) -> protocol.Message:
    if isinstance(message, SpecllamaError):
        raise message
    return message
