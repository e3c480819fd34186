"""What `run` and `chat` share: receiving an answer, ending it with Ctrl-C, the log file, measuring costs
afterwards.

Knows the client and its messages; how the text is shown is up to the caller.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import IO, Any

from specllama.cli import console
from specllama.cli.formatting import LogFile
from specllama.cli.options import mapped_errors, refuse_stdout
from specllama.cli.progress import Progress
from specllama.client import protocol
from specllama.client.client import EngineClient
from specllama.client.model_info import LoadInfo
from specllama.client.stream import GenerationResult
from specllama.config.load import LoadSettings
from specllama.config.text_file import expanded
from specllama.core.repetition import EVERY, NOTICED, repeats
from specllama.errors import ResourceError, SpecllamaError, UsageError, option

INTERRUPTED = 130
CALIBRATE_SECONDS = 1.0
Show = Callable[[str, Sequence[tuple[int, str]]], None]


def generate(
    client: EngineClient,
    request: protocol.Generate,
    show: Show | None = None,
    into: GenerationResult | None = None,
    hold_notices: bool = False,
) -> GenerationResult:
    """Run one request; Ctrl-C ends it and keeps its text, another one raises KeyboardInterrupt.

    show: called with each piece of text and its runs (characters, source). into: the answer to fill,
    which keeps the text that arrived before an error. hold_notices: leave them in client.notices. A line
    says where a text that is shown goes on repeating itself, and nothing ends it. Raises as client.generate.
    """
    answer, progress = into if into is not None else GenerationResult(), Progress()
    events = client.generate(request)
    watches = show is not None and may_loop(request.params) and not request.end_loops

    def receive(event: protocol.Message) -> None:
        nonlocal watches
        n_before = len(answer.ids)
        _receive(answer, event, progress, show)
        n = len(answer.ids) // EVERY * EVERY
        if watches and n > n_before and repeats(answer.ids[:n], NOTICED):
            watches = False
            begin = "\n" if sys.stderr.isatty() else ""
            console.note(f"{begin}note: the answer repeats itself; Ctrl-C ends it")
        while client.notices and not hold_notices:
            console.note(f"note: {client.notices.pop(0)}")

    receive(next(events))
    with first_interrupt(lambda: client.send(protocol.Cancel(request.id))):
        for event in events:
            receive(event)
    return answer


def may_loop(params: Mapping[str, Any]) -> bool:
    """Whether nothing was said of the end of an answer, so that repetitions alone could keep it going."""
    return "max_tokens" not in params and not params.get("ignore_eos")


def cut_short(answer: GenerationResult, n_ctx: int) -> tuple[str, ResourceError | None]:
    """(What ended an answer early, the error where nothing can be done with it); ("", None) for one that
    ended by itself. n_ctx: tokens of the context.
    """
    if answer.params is None or answer.done is None or answer.finish_reason in ("stop", "cancel"):
        return "", None
    longer = option("max_tokens", -1)
    if answer.finish_reason == "loop":
        why = f"the answer only repeated itself, and was ended after {len(answer.ids)} tokens"
        hint = f"try another prompt or {option('seed')}, or a --repeat-penalty; with {longer} it goes on"
        return why, ResourceError(why, hint)
    why, hint = f"the context of {n_ctx} tokens is full", f"{option('n_ctx')} makes it larger"
    if answer.finish_reason == "length":
        why = f"the answer was cut at {option('max_tokens', answer.params.max_tokens)}"
        hint = f"{longer} lets it end by itself"
    free = answer.params.json_schema is None and answer.params.grammar is None  # with tools, maybe
    if free or answer.done.complete:
        return "" if answer.params.ignore_eos else f"{why}; {hint}", None
    return why, ResourceError(f"{why}, before its schema or grammar allows an end", hint)


def _receive(
    answer: GenerationResult, event: protocol.Message, progress: Progress, show: Show | None
) -> None:
    delta = answer.add(event)
    if isinstance(event, protocol.Prefilled):
        progress.show("reading the prompt", event.n_done / event.n_prompt, f"of {event.n_prompt} tokens")
    if delta is not None:
        progress.clear()
        if show is not None and delta.text:
            show(delta.text, delta.runs)


def load(
    client: EngineClient,
    settings: LoadSettings,
    verbose: bool = False,
    measure_when_idle: bool = False,
    open_draft: bool = True,
) -> LoadInfo:
    """Load models, with progress on a terminal; returns the engine's report.

    Raises what client.load raises.
    """
    with Progress(delay=1.0) as progress:
        return client.load(settings, progress.loading, verbose, measure_when_idle, open_draft)


@contextlib.contextmanager
def first_interrupt(action: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C runs `action` in a thread, as this one may hold locks; the second one interrupts."""

    def act() -> None:
        with contextlib.suppress(SpecllamaError):
            action()

    def handle(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, previous)
        threading.Thread(target=act, daemon=True).start()

    previous = signal.getsignal(signal.SIGINT)
    if previous is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def log_file(values: Mapping[str, Any]) -> IO[str] | None:
    """The file that --log-file names, opened for writing. Raises UsageError."""
    if "log_file" not in values:
        return None
    refuse_stdout(values["log_file"], "--log-file")
    with mapped_errors(UsageError, f"--log-file: {values['log_file']} cannot be written"):
        return LogFile(
            expanded(values["log_file"]),
            lambda why: console.warning(f"--log-file: {values['log_file']} cannot be written: {why}"),
        )


def engine_log(file: IO[str] | None, verbose: bool) -> IO[str] | None:
    """Where the log of the engine process goes: the file, else stderr with -v, else nowhere."""
    if file is None and not verbose:
        return None
    return console.log_stream(file or sys.stderr)


def calibrate(client: EngineClient) -> None:
    """Measure costs for the next run, during one second after the answer."""
    with contextlib.suppress(SpecllamaError, KeyboardInterrupt):
        client.calibrate(CALIBRATE_SECONDS)
