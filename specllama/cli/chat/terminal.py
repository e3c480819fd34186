"""Input at a terminal: editing, history, completion of commands, several lines. The only module that imports
prompt_toolkit.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import TextIO

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

from specllama.cli.chat.history import HistoryFile
from specllama.cli.chat.input import CONTINUED, FILE, PROMPT, UserInput, is_open, parse_input


class TerminalReader:
    """Inputs typed at a terminal. words: completions of each command's argument, FILE for a path. screen: the
    terminal to draw on.
    """

    interactive = True

    def __init__(self, words: Mapping[str, Iterable[str]], history: HistoryFile, screen: TextIO) -> None:
        self._history = _History(history)
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
        self._history.keeps = False
        try:
            typed = self.read()
        finally:
            self._history.keeps = True
        return typed.text.strip() if typed is not None else ""


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
        """The completions of the text before the cursor."""
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


class _History(History):
    """The inputs of earlier sessions, from a file. keeps: whether further ones are added to it."""

    def __init__(self, file: HistoryFile) -> None:
        super().__init__()
        self._file, self.keeps = file, True

    def load_history_strings(self) -> Iterable[str]:
        """The newest first."""
        return reversed(self._file.read())

    def store_string(self, string: str) -> None:
        """Keep an input."""
        if self.keeps:
            self._file.append(string)
