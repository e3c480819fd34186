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

from specllama.client import protocol as m
from specllama.client.child import EngineProcess
from specllama.config.load import LoadSettings
from specllama.config.options import as_flag
from specllama.errors import SpecllamaError, Spelling, UsageError, spelled

Deliver = Callable[[m.Message | SpecllamaError], None]
_Answer = TypeVar("_Answer", m.Ready, m.Calibrated, m.Configured, m.Inspected, m.Serving)
_Inbox = queue.SimpleQueue[m.Message | SpecllamaError]


class Submission:
    """A request in the engine. Its methods never wait and never raise, whoever calls them when."""

    __slots__ = ("_client", "id")

    def __init__(self, client: EngineClient, id_: int) -> None:
        self._client, self.id = client, id_

    def cancel(self) -> None:
        """End the generation; what it has written by then and its Done are still delivered."""
        with contextlib.suppress(SpecllamaError):
            self._client.send(m.Cancel(self.id))

    def leave(self) -> None:
        """Hear no more of it, and end it if it still runs."""
        if self._client._waiting.pop(self.id, None) is not None:
            self.cancel()


class EngineClient:
    """An engine process; a context manager that ends it.

    log: where the process's stderr goes as well. loop: where messages are read, so that everything is
    delivered in it; else, and where it cannot watch pipes, a thread does. notice: gets the engine's notices,
    there; without it they are collected in `notices`. ended: called in a thread once the process has ended
    and everybody who waits knows; handed_out: whenever all that came in a message was delivered, and behind
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
    ) -> m.LoadInfo:
        """Load the models. progress: called with (model, share loaded).

        Raises what the load raises: IntegrityError, IncompatiblePairError, ResourceError, UsageError …
        """
        if settings.rpc:
            self._child.hang_hint = f"perhaps it waits for an RPC worker: {', '.join(settings.rpc)}"
        return self._ask(m.Load(settings, verbose, measure_when_idle), m.Ready, progress).info.spelled(
            self._spelling
        )

    def calibrate(self, seconds: float = 1.0) -> m.Calibrated:
        """Have the idle engine measure now what it does not know yet."""
        return self._ask(m.Calibrate(seconds), m.Calibrated)

    def configure(self, draft_max: int | None = None, draft_min: int = 0, draft_p_min: float = 0.0) -> None:
        """Let the idle engine draft in another way (see LoadSettings) without loading again.

        Raises UsageError for impossible settings, EngineError where the engine is busy.
        """
        self._ask(m.Configure(draft_max, draft_min, draft_p_min), m.Configured)

    def inspect(self) -> m.BuildInfo:
        """What this build of llama.cpp is and can use."""
        return self._ask(m.Inspect(), m.Inspected).build

    def serve(self, request: m.Serve) -> m.Serving:
        """Make the process an RPC worker, for as long as it lives; what it serves, once it listens.

        Raises UsageError for devices that it does not have, ResourceError where it cannot listen, EngineError
        where the build cannot.
        """
        return self._ask(request, m.Serving)

    def wait(self) -> NoReturn:
        """Stay until the process has ended. Raises why."""
        raise self._child.wait()

    def submit(self, request: m.Generate | m.Question | m.Tune, deliver: Deliver) -> Submission:
        """Hand in a request without waiting. deliver: gets Started, Prefilled …, Tokens (of this generation
        only), at last Done or an error, and nothing behind that; for a question only its answer or an error.

        It is called in the reading thread, perhaps before this returns: it has to be quick and must neither
        raise nor wait for this client. Raises UsageError where the request is no JSON or its id is taken.
        """
        self._open(request.id, deliver, request)
        return Submission(self, request.id)

    def generate(self, request: m.Generate) -> Iterator[m.Message]:
        """Started, Prefilled …, Tokens (of this generation only), at last Done. Leaving the iterator cancels.

        Raises UsageError and others before the first message, EngineError where decoding fails.
        """
        return self._events(request, m.Done)

    def tune(self, request: m.Tune) -> Iterator[m.Message]:
        """Tuning …, Measured …, at last Tuned. Leaving the iterator cancels.

        Raises what the drafts' files and llama.cpp give cause for, before the first message or in between.
        """
        return self._events(request, m.Tuned)

    def next_id(self) -> int:
        """An id for a request, unique in this client."""
        return next(self._ids)

    def send(self, message: m.Message) -> None:
        """Have a message written to the process; does not wait for that."""
        try:
            data = m.encode(message)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"the request cannot be written as JSON: {error}") from None
        self._child.write(data)

    def shut(self) -> None:
        """Let the process end, without waiting for it; for finalizers, which may run at any point."""
        self._child.shut()

    def close(self) -> None:
        """End the process: it exits when its stdin closes, and is killed if it does not."""
        self._child.close()

    def _events(self, request: m.Generate | m.Tune, last: type[m.Message]) -> Iterator[m.Message]:
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

    def _open(self, id_: int | None, deliver: Deliver, message: m.Message) -> None:
        if self._waiting.setdefault(id_, deliver) is not deliver:
            raise UsageError(f"there is a request {id_} already")
        try:
            self.send(message)
        except SpecllamaError:
            if self._waiting.pop(id_, None) is not None:  # else `deliver` has got the same error
                raise

    def _ask(
        self,
        message: m.Message,
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
                    if progress is not None and isinstance(got, m.Loading):
                        progress(got.model, got.share)
            finally:
                self._waiting.pop(None, None)

    def _dispatch(self, message: m.Message) -> None:
        if isinstance(message, m.Tokens):
            for item in message.items:
                self._deliver(item.id, m.Tokens([item]))
        elif isinstance(message, m.Notice):
            self._notice(spelled(message.text, self._spelling))
        elif isinstance(message, m.Done) and message.off_reason:
            reason = spelled(message.off_reason, self._spelling)
            self._deliver(message.id, replace(message, off_reason=reason))
        elif isinstance(message, m.Failed):
            error = SpecllamaError.from_dict(message.error).spelled(self._spelling)
            if message.id is None and None not in self._waiting:  # its last word
                self._child.blame(error)
            self._deliver(message.id, error)
        else:
            self._deliver(getattr(message, "id", None), message)
        if self._handed_out is not None:
            self._handed_out()

    def _deliver(self, id_: int | None, message: m.Message | SpecllamaError) -> None:
        ends = isinstance(message, (m.Done, m.Answer, m.Tuned, SpecllamaError))
        deliver = self._waiting.pop(id_, None) if ends else self._waiting.get(id_)
        if deliver is not None:
            deliver(message)

    def _tell_all(self) -> None:
        """Tell everybody who waits why the process has ended."""
        for id_ in list(self._waiting):
            deliver, error = self._waiting.pop(id_, None), self._child.dead
            if deliver is not None and error is not None:
                with contextlib.suppress(Exception):  # the others have to hear of it too
                    deliver(error)
        if self._ended is not None:
            self._ended()
        if self._handed_out is not None:
            self._handed_out()


def _raised(message: m.Message | SpecllamaError) -> m.Message:
    if isinstance(message, SpecllamaError):
        raise message
    return message
