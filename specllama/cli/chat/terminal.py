"""Input at a terminal: editing, history, completion, several lines. Alone imports prompt_toolkit."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from types import FrameType
from typing import BinaryIO, TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.application import Application
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.history import History
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output
from prompt_toolkit.shortcuts import CompleteStyle

from specllama import wire
from specllama.cli import console
from specllama.client.stream import GenerationResult
from specllama.config.defaults import SOURCE_LABELS
from specllama.config.store import write_whole
from specllama.config.text_file import CUT, CUT_HINT, MAX_BYTES, checked_text, decoded, is_cut
from specllama.errors import UsageError
from specllama.json_types import without_lone_surrogates
from specllama.regular_file import open_regular
from specllama.text.reasoning import ReasoningPiece, ReasoningSplitter

# The input of a chat: single lines, or several between two lines of three quotation marks.
#
# LineReader reads from a pipe or a simple terminal; TerminalReader is for terminals that can edit. Of both,
# `interactive` says whether a user types: errors and Ctrl-C then do not end the chat.


PROMPT, CONTINUED = "> ", ". "
QUOTES = '"""'
FILE = "FILE"  # among the completions of a command: any path


@dataclass(frozen=True, slots=True)
class UserInput:
    """One input. literal: it is a message, even if it begins with a slash."""

    text: str
    literal: bool = False


def is_open(text: str) -> bool:
    """Whether the text begins with three quotation marks that are not closed yet."""
    text = text.strip()
    return text.startswith(QUOTES) and not (len(text) >= 2 * len(QUOTES) and text.endswith(QUOTES))


def parse_input(text: str) -> UserInput:
    """A typed text as an input, without the quotation marks around it."""
    text = without_lone_surrogates(text)
    if not text.lstrip().startswith(QUOTES):
        return UserInput(text.strip("\n"))
    inner = text.strip()[len(QUOTES) :]
    return UserInput(inner.removesuffix(QUOTES).removeprefix("\n").removesuffix("\n"), literal=True)


class LineReader:
    """Lines of standard input. Where that is a terminal, a prompt is written to stderr."""

    def __init__(self) -> None:
        self.interactive = sys.stdin is not None and sys.stdin.isatty()
        self._source: BinaryIO = sys.stdin.buffer if sys.stdin is not None else io.BytesIO()
        self._n_lines = 0

    def read(self) -> UserInput | None:
        """The next input without empty lines, None at the end. Raises KeyboardInterrupt for Ctrl-C."""
        lines: list[str] = []
        while (line := self._line(CONTINUED if lines else PROMPT)) is not None:
            lines.append(line)
            text = "\n".join(lines)
            if not is_open(text):
                return parse_input(text)
        if not lines:
            return None
        console.warning(f"the {QUOTES} was not closed; the message is sent as it is")
        return parse_input("\n".join(lines))

    def read_name(self) -> str:
        """A line, "" at the end. Raises KeyboardInterrupt for Ctrl-C."""
        return (self._line(PROMPT) or "").strip()

    def _line(self, prompt: str) -> str | None:
        if self.interactive:
            console.write(sys.stderr, prompt)
        try:
            raw = self._raw_line()
        except KeyboardInterrupt:
            if self.interactive:
                console.note("")
            raise
        if not raw:
            if self.interactive:
                console.note("")
            return None
        if self.interactive and is_cut(raw):
            raise UsageError(CUT, CUT_HINT)
        try:
            text = decoded(raw) if self._n_lines == 1 else raw.decode("utf-8")
        except ValueError:
            raise UsageError(f"line {self._n_lines} of standard input is not UTF-8; it is left out") from None
        if "\0" in text:
            raise UsageError(f"line {self._n_lines} of standard input has a NUL; it is left out")
        return text.rstrip("\r\n")

    def _raw_line(self) -> bytes:
        """The next line, empty at the end. Raises UsageError for one that is too long, after reading it."""
        raw = self._source.readline(MAX_BYTES + 1)
        self._n_lines += bool(raw)
        if self._n_lines == 1 and raw.startswith((b"\xff\xfe", b"\xfe\xff")):  # UTF-16
            raw += self._source.read(MAX_BYTES)
            self._source = io.BytesIO(checked_text(raw, "standard input", "").encode())
            return self._source.readline()
        if len(raw) <= MAX_BYTES:
            return raw
        while raw and not raw.endswith(b"\n"):
            raw = self._source.readline(MAX_BYTES)
        limit = f"{MAX_BYTES >> 20} MiB"
        raise UsageError(f"line {self._n_lines} of standard input is larger than {limit}; it is left out")


# The input history of chats: a file of JSON strings, one a line, readable by its owner alone. A file that
# cannot be read or written is not an error.


MAX_INPUTS, MAX_HISTORY_BYTES = 1000, 1_000_000  # inputs kept; bytes read from the end of the file
MAX_CHARACTERS = 20_000  # of an input; longer ones are not kept


class HistoryFile(History):
    """Inputs of earlier sessions. path: made when first written to. keeps: False leaves the file alone."""

    def __init__(self, path: Path, keeps: bool = True) -> None:
        super().__init__()
        self._path, self.keeps = path, keeps

    def load_history_strings(self) -> Iterable[str]:
        """The newest first."""
        return reversed(self.read())

    def store_string(self, string: str) -> None:
        self.append(string)

    def read(self) -> list[str]:
        """The newest inputs, the oldest of them first; a file that is too long is cut to the newest."""
        inputs: list[str] = []
        with contextlib.suppress(OSError):
            if not self.keeps:
                return []
            with open_regular(self._path) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - MAX_HISTORY_BYTES))
                lines = file.read(MAX_HISTORY_BYTES).splitlines()
            for line in lines:
                with contextlib.suppress(ValueError):
                    inputs.append(wire.from_text(str, line))
            if size > MAX_HISTORY_BYTES or len(inputs) > 2 * MAX_INPUTS:
                write_whole(self._path, _lines(inputs[-MAX_INPUTS:]), 0o600)
        return inputs[-MAX_INPUTS:]

    def append(self, text: str) -> None:
        if not self.keeps or len(text) > MAX_CHARACTERS:
            return
        if self._path.exists() and not self._path.is_file():
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                with contextlib.suppress(OSError):
                    os.fchmod(file, 0o600)
                os.write(file, _lines([text]).encode())
            finally:
                os.close(file)


def _lines(texts: list[str]) -> str:
    return "".join(json.dumps(text) + "\n" for text in texts)


class TerminalReader:
    """Inputs typed at a terminal. words: completions of each command, FILE: a path. screen: to draw on."""

    interactive = True

    def __init__(self, words: Mapping[str, Iterable[str]], history: HistoryFile, screen: TextIO) -> None:
        self._history = history
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            prompt_continuation=CONTINUED,
            key_bindings=_keys(),
            history=self._history,
            completer=_Commands(words),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            enable_suspend=True,
            output=create_output(screen),
        )

    def read(self) -> UserInput | None:
        """The next input. Raises KeyboardInterrupt for Ctrl-C on an empty line."""
        try:
            with _signals_between_events(self._session.app):
                return parse_input(self._session.prompt())
        except EOFError:
            return None

    def read_name(self) -> str:
        """A line that is not kept. Raises KeyboardInterrupt for Ctrl-C on an empty line."""
        keeps, self._history.keeps = self._history.keeps, False
        try:
            typed = self.read()
        finally:
            self._history.keeps = keeps
        return typed.text.strip() if typed is not None else ""


InputReader = LineReader | TerminalReader


@contextlib.contextmanager
def _signals_between_events(app: Application[str]) -> Iterator[None]:
    """Run signal handlers in the prompt's event loop: their exceptions must not interrupt its drawing."""
    numbers = [n for name in ("SIGTERM", "SIGHUP") if (n := getattr(signal, name, None)) is not None]
    handlers = {n: h for n in numbers if callable(h := signal.getsignal(n))}
    late: list[BaseException] = []

    def leave(number: int) -> None:
        try:
            handlers[number](number, None)
        except BaseException as raised:  # noqa: BLE001 - it is raised by `read`
            if app.is_running and app.future is not None and not app.future.done():
                app.exit(exception=raised)
            else:  # an input was completed in the same moment
                late.append(raised)

    def received(number: int, frame: FrameType | None) -> None:
        if app.is_running and app.loop is not None:
            app.loop.call_soon_threadsafe(leave, number)
        else:
            handlers[number](number, frame)

    for number in handlers:
        signal.signal(number, received)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if late:
        raise late[0]


def _keys() -> KeyBindings:
    keys, typing = KeyBindings(), has_focus(DEFAULT_BUFFER)

    @keys.add("enter", filter=typing)
    def enter(event: KeyPressEvent) -> None:
        if is_open(event.current_buffer.text):
            event.current_buffer.newline(copy_margin=False)
        else:
            event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter", filter=typing)
    def newline(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @keys.add("c-c", filter=typing)
    @keys.add("<sigint>", filter=typing)
    def clear(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return keys


class _Commands(Completer):
    """Completes commands at the beginning of the line, then their arguments."""

    def __init__(self, words: Mapping[str, Iterable[str]]) -> None:
        self._words, self._paths = words, PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        command, blank, rest = text.partition(" ")
        if not text.startswith("/"):
            return
        if not blank:
            yield from _starting_with(command, self._words)
        elif FILE in (following := tuple(self._words.get(command, ()))):
            for path in self._paths.get_completions(Document(rest), complete_event):
                if path.text.isprintable():  # the list of completions is not filtered like other output
                    yield path
        elif " " not in rest:
            yield from _starting_with(rest, following)


def _starting_with(start: str, words: Iterable[str]) -> Iterable[Completion]:
    return (Completion(f"{word} ", -len(start), word) for word in words if word.startswith(start))


_PALETTE = (
    ("magenta", "35"), ("red", "31"), ("cyan", "36"), ("blue", "34"), ("light blue", "94"), ("green", "32"),
    ("yellow", "33"),
)  # fmt: skip
COLOURS = dict(zip(SOURCE_LABELS, cycle(_PALETTE), strict=False))  # by the source of a token
_DIM = "2"


def coloured(stream: TextIO) -> bool:
    """Whether text on the stream may be coloured or dimmed."""
    return console.supports_ansi(stream) and "NO_COLOR" not in os.environ


class Screen:
    """The output of a chat. plain: no styles, empty lines between answers; show_draft: colour drafts."""

    def __init__(self, plain: bool, show_draft: bool) -> None:
        self.styles = not plain and coloured(sys.stdout)
        self._dims = not plain and coloured(sys.stderr)
        self.show_draft = show_draft and self.styles
        self._answer = GenerationResult()
        self._splitter: ReasoningSplitter | None = None
        self._at_start, self._plain = True, plain
        self._has_text = self._separates = False

    def begin(self, answer: GenerationResult, goes_on: bool = False) -> None:
        """Begin an answer; `show` gets its text. goes_on: on the line where an earlier one has ended."""
        self._answer, self._splitter = answer, None
        self._at_start = self._at_start or not goes_on
        self._separates = self._plain and self._has_text and not goes_on

    def show(self, text: str, runs: Sequence[tuple[int, str]]) -> None:
        """Show the next piece of the answer. runs: (characters, source)."""
        if not self.styles:
            self._write(text)
            return
        if self._splitter is None:
            self._splitter = ReasoningSplitter(self._answer.closing_tag, keep_tags=True)
        self._pieces(self._splitter.push(text, runs))

    def end(self, newline: bool = True) -> None:
        """Finish the answer, and its last line too."""
        if self._splitter is not None:
            self._pieces(self._splitter.finish())
            self._splitter = None
        if newline and not self._at_start:
            self._write("\n")

    def line(self, text: str) -> None:
        """Show a line of its own in the answer."""
        self.end(newline=False)
        self._write(text if self._at_start else f"\n{text}")
        self._write("\n")

    def dim(self, text: str) -> None:
        """Write a dimmed line to stderr."""
        console.note(text, _DIM if self._dims else "")

    def legend(self) -> None:
        """Say which colour marks which source."""
        words = [f"{console.styled(SOURCE_LABELS[n], code)} {word}" for n, (word, code) in COLOURS.items()]
        console.write(sys.stderr, f"drafted text is coloured: {', '.join(words)}\n")

    def _pieces(self, pieces: Sequence[ReasoningPiece]) -> None:
        for piece in pieces:
            at = 0
            for n, source in piece.runs:
                code = COLOURS.get(source, ("", ""))[1] if self.show_draft else ""
                codes = ";".join(c for c in (_DIM if piece.reasoning else "", code) if c)
                self._write(piece.text[at : at + n], codes)
                at += n

    def _write(self, text: str, codes: str = "") -> None:
        if text:
            if self._separates:
                console.data("\n")
            self._separates, self._has_text = False, True
            self._at_start = text.endswith("\n")
            console.data(text, codes)
