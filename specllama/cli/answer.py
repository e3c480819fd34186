"""What `run` and `chat` share: images of a prompt, receiving an answer, ending it with Ctrl-C, the log file,
measuring costs afterwards.

Knows the client and its messages; how texts are shown is up to the caller. specllama/images.py decodes
images.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from specllama.cli import console
from specllama.cli.formatting import LogFile
from specllama.cli.options import mapped_errors, refuse_stdout
from specllama.cli.progress import Progress
from specllama.client import protocol
from specllama.client.client import EngineClient
from specllama.client.model_info import LoadInfo
from specllama.client.protocol import Image
from specllama.client.stream import GenerationResult
from specllama.config.load import LoadSettings
from specllama.config.places import NOWHERE
from specllama.config.store import cache_dir, writing_problem
from specllama.config.text_file import expanded
from specllama.core.repetition import EVERY, NOTICED, repeats
from specllama.errors import ResourceError, SpecllamaError, UsageError, option
from specllama.images import check_n_images, load_image, read_image_file
from specllama.text.terminal import visible
from specllama.wording import counted

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
        n_before, delta = len(answer.ids), answer.add(event)
        if isinstance(event, protocol.Prefilled):
            what = "reading an image of the prompt" if event.at_image else "reading the prompt"
            progress.show(what, event.n_done / event.n_prompt, f"of {event.n_prompt} tokens")
        if delta is not None:
            progress.clear()
            if show is not None and delta.text:
                show(delta.text, delta.runs)
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


@contextlib.contextmanager
def engine(values: Mapping[str, Any]) -> Iterator[EngineClient]:
    """An engine process, whose log goes to --log-file, or to stderr with -v. Raises UsageError."""
    log = log_file(values)
    with log or contextlib.nullcontext(), EngineClient(engine_log(log, values.get("verbose", False))) as one:
        yield one


def load(
    client: EngineClient,
    values: Mapping[str, Any],
    settings: LoadSettings,
    line: Callable[[LoadInfo], str] | None = None,
    chats: bool = False,
    **more: bool,
) -> LoadInfo:
    """Load models, with progress on a terminal; returns the engine's report, once its notes are shown after a
    line. values: option values. chats: the template of messages is needed, whose fault an error says then.
    more: arguments of client.load. Raises what that raises.
    """
    verbose = values.get("verbose", False) or "log_file" in values
    with Progress(delay=1.0) as progress:
        info = client.load(settings, progress.loading, verbose, **more)
    if settings.calibrate and (path := cache_dir()) != NOWHERE and (problem := writing_problem(path)):
        console.note(f"note: nothing is remembered between runs: {path} {problem}")
    if line is not None:
        console.note(line(info))
    for note in info.notes if info.template_works or not (chats and info.template) else ():
        console.show(note)
    return info


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


# Images: which files are meant, and where they stand in a text.


MARKER = "<__media__>"  # in a prompt, as llama-mtmd-cli has it: an image belongs here
_ENDING = re.compile(r"\.(png|jpe?g|webp|gif|bmp)['\"]?\s*$", re.I)
_AT_END = re.compile(r"""(?:^|(?<=\s))(?:'([^']+)'|"([^"]+)"|((?:file://|~?/)(?:\\.|[^\s\\'"])*))\s*$""")


@dataclass(slots=True)
class AttachedImage:
    """An image of a message. name: of its file. data: the bytes of the file."""

    name: str
    data: bytes
    _image: Image | None = None

    @property
    def image(self) -> Image:
        """It decoded, at the first use. Raises UsageError, ResourceError."""
        if self._image is None:
            self._image = load_image(self.data, visible(self.name))
        return self._image

    def decoded(self) -> AttachedImage:
        """Itself, decoded now. Raises UsageError, ResourceError."""
        self._image = self.image
        return self

    def __str__(self) -> str:
        return f"{visible(self.name)} ({self.image.width} × {self.image.height})"


def attached(path: str) -> AttachedImage:
    """The image in a file, not decoded yet. Raises NotFoundError, UsageError."""
    return AttachedImage(Path(path).name, read_image_file(path))


def given_images(values: Mapping[str, Any]) -> list[AttachedImage]:
    """The images of all --image, each a file, or several with commas between them, as llama.cpp reads them.
    Raises NotFoundError, UsageError, ResourceError.
    """
    given = values.get("image", ())
    if given and (values.get("mmproj") == "none" or (values.get("no_mmproj") and "mmproj" not in values)):
        raise UsageError("needs the model's projector", f"leave out {option('no_mmproj')}", option="image")
    paths = [path for value in given for path in ([value] if os.path.exists(value) else _fields(value))]
    check_n_images(paths, option("image"))
    return [attached(path).decoded() for path in paths]


def _fields(row: str) -> Iterable[str]:
    """The fields of a row of CSV; a quotation mark within a field is one."""
    for quoted, plain in re.findall(r'(?:^|,)(?:"((?:[^"]|"")*)"(?=,|$)|([^,]*))', row):
        yield quoted.replace('""', '"') or plain


def check_reads_images(images: Sequence[object], reads: bool, path: str) -> None:
    """Raises UsageError for images and a model that reads none; path: of its file."""
    if images and not reads:
        from specllama.models.projectors import no_projector
        from specllama.models.resolve import Library

        raise no_projector(Library(), path)


def placed(text: str, images: Sequence[Image]) -> str:
    """The text with the images' own markers: in the places of MARKER, in order, else before it. Raises
    UsageError for another number of MARKER than of images.
    """
    parts = text.split(MARKER)
    if not images or len(parts) == 1:
        return "".join(image.marker for image in images) + text
    if len(parts) - 1 != len(images):
        problem = f"the prompt has {len(parts) - 1} times {MARKER}, for {counted(len(images), 'image')}"
        raise UsageError(problem, f"write it once for each {option('image')}, or leave it out")
    return "".join(map(str.__add__, parts, [*(image.marker for image in images), ""]))


def dropped(line: str) -> tuple[str, list[str]]:
    """(The text before, the paths) of image files at the end of a line, as terminals paste them where files
    are dropped: whole paths, in quotation marks, with backslashes, or as file: URLs. Only existing files.
    """
    paths = list[str]()
    if "\n" not in line and _ENDING.search(line[-16:]):
        if _is_image(whole := os.path.expanduser(line.strip())):
            return "", [whole]
        while (match := _AT_END.search(line)) is not None:
            path = _path(match[1] or match[2] or re.sub(r"\\(.)", r"\1", match[3]))
            if not _is_image(path):
                break
            paths.insert(0, path)
            line = line[: match.start()].rstrip()
    return line, paths


def _path(text: str) -> str:
    if text.startswith("file://"):
        url = urlsplit(text)
        return unquote(url.path) if url.netloc in ("", "localhost") else ""
    return os.path.expanduser(text)


def _is_image(path: str) -> bool:
    try:
        return os.path.isabs(path) and _ENDING.search(path[-16:]) is not None and os.path.isfile(path)
    except ValueError:  # a NUL
        return False
