"""The client that every front uses: sends requests to an engine process and delivers its messages.

Does not import llama.cpp.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, NoReturn, TypeVar

from specllama.client import protocol, tune_messages
from specllama.client.child import WITHOUT_KERNELS, EngineProcess
from specllama.client.model_info import BuildInfo, LoadInfo
from specllama.config.load import LoadSettings
from specllama.config.options import as_flag
from specllama.errors import OptionNames, SpecllamaError, UsageError, with_option_names

if TYPE_CHECKING:
    import asyncio

Asked = protocol.Generate | protocol.Question | tune_messages.Tune
Deliver = Callable[[protocol.Message | SpecllamaError], None]
_Answer = TypeVar("_Answer", bound=protocol.Message)
_Inbox = queue.SimpleQueue[protocol.Message | SpecllamaError]


class Submission:
    """A request in the engine. Its methods never block and never raise, in any thread and at any time."""

    __slots__ = ("_client", "id")

    def __init__(self, client: EngineClient, id_: int) -> None:
        self._client, self.id = client, id_

    def cancel(self) -> None:
        """End the generation. Its output so far and its Done are still delivered."""
        with contextlib.suppress(SpecllamaError):
            self._client.send(protocol.Cancel(self.id))

    def end_reasoning(self) -> None:
        with contextlib.suppress(SpecllamaError):
            self._client.send(protocol.EndReasoning(self.id))

    def discard(self) -> None:
        """Stop delivering, and end the generation if it is still running."""
        if self._client._pending.pop(self.id, None) is not None:
            self.cancel()


class EngineClient:
    """An engine process; a context manager that ends it.

    log: receives the process's stderr too. loop: the event loop in which messages are read and delivered and
    `ended` is called; without it a thread does so. notice: called where messages are read with the engine's
    notices, which are otherwise collected in `notices`. ended: called once the process has ended and every
    pending request has its error. handed_out: called after each message, and after `ended`. option_names: of
    options in the engine's texts. kernels: False leaves specllama's kernels out. Threads may share a client.
    Every call raises EngineDiedError once the process has ended, EngineError in a forked child.
    """

    def __init__(
        self,
        log: IO[str] | None = None,
        notice: Callable[[str], None] | None = None,
        ended: Callable[[], None] | None = None,
        handed_out: Callable[[], None] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        option_names: OptionNames = as_flag,
        kernels: bool = True,
    ) -> None:
        self.notices: list[str] = []
        self._option_names = option_names
        self._loop, self._ended, self._handed_out = loop, ended, handed_out
        self._made_in = threading.get_ident()  # the thread of the loop, if there is one
        self._notice = notice or self.notices.append
        self._ids = itertools.count(1)
        self._pending: dict[int | None, Deliver] = {}  # by id; None: the request without an id
        self._images: dict[int | None, list[protocol.Image]] = {}  # of requests that were not read yet, by id
        self._control_lock = threading.Lock()  # only one request without an id at a time
        self._child = EngineProcess(self._dispatch, self._fail_all, log, {} if kernels else WITHOUT_KERNELS)
        self._child.start(loop)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def dead(self) -> SpecllamaError | None:
        return self._child.dead

    @property
    def silent_for(self) -> float:
        """Seconds since the last message of the process, which sends at least two per second."""
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
        open_draft: bool = True,
        may_embed: bool = False,
        yields: bool = False,
        reserved: int = 0,
    ) -> LoadInfo:
        """Load the models. progress: called with (model, share loaded). The others: see protocol.Load.

        Raises what the load raises: IntegrityError, IncompatiblePairError, ResourceError, UsageError …
        """
        if settings.rpc:
            self._child.hang_hint = f"it may be waiting for an RPC worker: {', '.join(settings.rpc)}"
        more = may_embed, yields, reserved
        order = protocol.Load(settings, verbose, measure_when_idle, open_draft, *more)
        return self._control(order, protocol.Ready, progress).info.with_option_names(self._option_names)

    def calibrate(self, seconds: float = 1.0) -> tune_messages.Calibrated:
        """Let the idle engine measure what is missing in its profile, for about `seconds`."""
        return self._control(tune_messages.Calibrate(seconds), tune_messages.Calibrated)

    def configure(
        self,
        draft_max: int | None = None,
        draft_min: int = 0,
        draft_p_min: float = 0.0,
        runs_models: bool = True,
    ) -> None:
        """Change how the idle engine drafts (see LoadSettings), without loading again. runs_models: False
        leaves draft models and heads out.

        Raises UsageError for impossible settings, EngineError if the engine is busy.
        """
        self._control(
            tune_messages.Configure(draft_max, draft_min, draft_p_min, runs_models), tune_messages.Configured
        )

    def inspect(self) -> BuildInfo:
        return self._control(tune_messages.Inspect(), tune_messages.Inspected).build

    def serve(self, request: tune_messages.Serve) -> tune_messages.Serving:
        """Make the process an RPC worker until it ends. Returns what it serves, once it listens.

        Raises UsageError for unknown devices, ResourceError if it cannot listen, EngineError if llama.cpp was
        built without RPC.
        """
        return self._control(request, tune_messages.Serving)

    def trim(
        self, request: tune_messages.Trim, progress: Callable[[str, float], None] | None = None
    ) -> tune_messages.Trimmed:
        """Write a trimmed draft. progress: gets what is done, and its share. Raises what worker/trim does."""
        return self._control(request, tune_messages.Trimmed, progress)

    def wait(self) -> NoReturn:
        raise self._child.wait()

    def submit(self, request: Asked, deliver: Deliver) -> Submission:
        """Submit a request without waiting. deliver: called with Started, Prefilled …, Tokens (of this
        generation only), finally Done or an error; for a question only with parts of its answer, or an error.

        `deliver` is called in the reading thread, possibly before this method returns, or in the loop: it
        must be quick, and must neither raise nor wait for this client. Raises UsageError if the request is no
        JSON, or its id is in use.
        """
        return self.submit_choices(request, [deliver])[0]

    def submit_choices(self, request: Asked, deliver: Sequence[Deliver]) -> list[Submission]:
        """Submit a request and its `choices`. deliver: for the request and each choice, in order."""
        choices = request.choices if isinstance(request, protocol.Generate) else []
        ids = [request.id, *(choice.id for choice in choices)]
        if images := _images_of(request):  # the engine reads their files, which last as long as they do
            self._images[request.id] = images
        if self._loop is not None:
            deliver = [partial(self._in_loop, one) for one in deliver]
        try:
            self._open(dict(zip(ids, deliver, strict=True)), request)
        except SpecllamaError:
            self._images.pop(request.id, None)
            raise
        return [Submission(self, id_) for id_ in ids]

    def generate(self, request: Asked) -> Iterator[protocol.Message]:
        """Yields Started, Prefilled …, Tokens (of this generation only), finally Done; for a question the
        parts of its answer. Closing the iterator cancels the request.

        Raises UsageError and others before the first message, EngineError if decoding fails.
        """
        inbox = _Inbox()
        submission = self.submit(request, inbox.put)
        try:
            while True:
                message = _checked(inbox.get())
                yield message
                if _is_last(message):
                    return
        finally:
            submission.discard()

    def tune(self, request: tune_messages.Tune) -> Iterator[protocol.Message]:
        """Yields Tuning …, TuneMeasurement …, finally Tuned. Closing the iterator cancels the request.

        Raises EngineError and others, before the first message or in between.
        """
        return self.generate(request)

    def ask(self, question: protocol.Question) -> list[Any]:
        return [*self.generate(question)]

    def embed(self, request: protocol.Embed) -> list[protocol.TextVectors]:
        """The vectors or scores of all texts of a request, in order. Raises what it fails with."""
        return sorted(item for part in self.ask(request) for item in part.items)

    def next_id(self) -> int:
        """An id for a request, unique in this client."""
        return next(self._ids)

    def send(self, message: protocol.Message) -> None:
        """Queue a message for the process, without waiting."""
        try:
            data = protocol.encode(message)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"the request cannot be written as JSON: {error}") from None
        self._child.write(data)

    def shut(self) -> None:
        self._child.shut()

    def end(self, error: SpecllamaError) -> None:
        self._child.kill(error)

    def close(self) -> None:
        self._child.close()

    def _open(self, deliver: Mapping[int | None, Deliver], message: protocol.Message) -> None:
        """Send a message. deliver: by the ids of those who wait for answers."""
        opened: list[int | None] = []
        try:
            for id_, one in deliver.items():
                if self._pending.setdefault(id_, one) is not one:
                    raise UsageError(f"there is a request {id_} already")
                opened.append(id_)
            self.send(message)
        except SpecllamaError:
            left = [id_ for id_ in opened if self._pending.pop(id_, None) is not None]
            if left or not opened:  # otherwise each `deliver` has received the same error
                raise

    def _control(
        self,
        message: protocol.Message,
        answer: type[_Answer],
        progress: Callable[[str, float], None] | None = None,
    ) -> _Answer:
        """Send a message without an id and wait for the answer to it."""
        inbox = _Inbox()
        with self._control_lock:
            self._open({None: inbox.put}, message)
            try:
                while True:
                    got = _checked(inbox.get())
                    if isinstance(got, answer):
                        return got
                    if progress is not None and isinstance(got, tune_messages.Loading):
                        progress(got.model, got.share)
            finally:
                self._pending.pop(None, None)

    def _dispatch(self, message: protocol.Message) -> None:
        if isinstance(message, protocol.Tokens):
            for item in message.items:
                self._deliver(item.id, protocol.Tokens([item]))
        elif isinstance(message, protocol.Notice):
            self._notice(with_option_names(message.text, self._option_names))
        elif isinstance(message, protocol.Done) and message.off_reason:
            reason = with_option_names(message.off_reason, self._option_names)
            self._deliver(message.id, replace(message, off_reason=reason))
        elif isinstance(message, protocol.Failed):
            error = SpecllamaError.from_dict(message.error).with_option_names(self._option_names)
            if message.id is None and None not in self._pending:  # not an answer: the process ends
                self._child.set_reason(error)
            self._deliver(message.id, error)
        else:
            self._deliver(getattr(message, "id", None), message)
        if self._handed_out is not None:
            self._handed_out()

    def _deliver(self, id_: int | None, message: protocol.Message | SpecllamaError) -> None:
        if self._images and (isinstance(message, protocol.Started) or _is_last(message)):
            self._images.pop(id_, None)
        deliver = self._pending.pop(id_, None) if _is_last(message) else self._pending.get(id_)
        if deliver is not None:
            deliver(message)

    def _fail_all(self) -> None:
        for id_ in list(self._pending):
            deliver, error = self._pending.pop(id_, None), self._child.dead
            if deliver is not None and error is not None:
                with contextlib.suppress(Exception):  # the others must get it too
                    deliver(error)
        self._images.clear()
        if self._ended is not None:
            self._in_loop(self._ended)
        if self._handed_out is not None:
            self._handed_out()

    def _in_loop(self, call: Callable[..., None], *arguments: object) -> None:
        """Call a function in the event loop; without one, here."""
        if self._loop is None:
            call(*arguments)
        else:
            here, loop = threading.get_ident() == self._made_in, self._loop
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits
                (loop.call_soon if here else loop.call_soon_threadsafe)(call, *arguments)


def _is_last(message: protocol.Message | SpecllamaError) -> bool:
    """Whether no other message of its request follows."""
    ends = isinstance(message, (protocol.Done, tune_messages.Tuned, SpecllamaError))
    return ends or (isinstance(message, protocol.Answer) and not message.more)


def _images_of(request: Asked) -> list[protocol.Image]:
    prompt = getattr(request, "prompt", None) or getattr(request, "chat", None)
    return prompt.images if isinstance(prompt, protocol.ChatInput | protocol.TextInput) else []


def _checked(message: protocol.Message | SpecllamaError) -> protocol.Message:
    if isinstance(message, SpecllamaError):
        raise message
    return message
