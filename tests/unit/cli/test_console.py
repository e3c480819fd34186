"""What reaches a terminal, and what a pipe, of texts that others wrote."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specllama.cli import console
from specllama.cli.chat.terminal import Screen
from specllama.cli.progress import Progress
from specllama.client.stream import GenerationResult
from specllama.errors import Note
from specllama.text.terminal import printable, visible

ATTACKS = {
    "clipboard": "\x1b]52;c;ZXZpbA==\x07",
    "link": "\x1b]8;;https://evil.example\x1b\\here\x1b]8;;\x1b\\",
    "title": "\x1b]0;gone\x07",
    "cursor": "\x1b[2J\x1b[1;1H",
    "colour": "\x1b[31mred\x1b[0m",
    "one byte": "\x9b2J\x9d52;c;ZXZpbA==\x9c\x90q\x9c",
    "line": "safe\rgone\b\b\v\f",
    "direction": "a\u202egpj.exe\u202c\u202dx",
    "others": "\0\x05\x0e\x7f\x85",
}
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202d\u202e]")
OWN = re.compile(r"\x1b\[[0-9;]*m|\r?\x1b\[2K")
MARKUP = "[link=https://evil.example]here[/link] [red]x[/red] [/]"
PATHS: dict[str, Callable[[str], None]] = {
    "data": console.data,
    "data with a style": lambda text: console.data(text, "2"),
    "note": console.note,
    "note with a style": lambda text: console.note(text, "2"),
    "warning": console.warning,
    "a note of the engine": lambda text: console.show(Note(text)),
    "error": lambda text: console.error(text, text),
    "progress": lambda text: Progress(delay=0.0).show(text, 0.5, text),
    "log": lambda text: log(text),
    "traceback": lambda text: console.traceback(ValueError(text)),
    "traceback of a thread": lambda text: threading.excepthook(
        threading.ExceptHookArgs((ValueError, ValueError(text), None, None))
    ),
}


class Stream(io.TextIOWrapper):
    """A stream, a terminal or not, and what it got."""

    def __init__(self, path: Path, terminal: bool) -> None:
        super().__init__(path.open("wb"), "utf-8", errors="replace")
        self.path, self.terminal = path, terminal

    def isatty(self) -> bool:
        return self.terminal

    def got(self) -> str:
        self.flush()
        return self.path.read_bytes().decode()


Attach = Callable[[bool], Stream]


@pytest.fixture
def attach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Attach]:
    """Makes stdout and stderr the same new stream, a terminal or not."""
    made = []

    def attached(terminal: bool) -> Stream:
        made.append(Stream(tmp_path / "stream", terminal))
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys, "stdout", made[-1])
        monkeypatch.setattr(sys, "stderr", made[-1])
        monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
        console.prepare()
        return made[-1]

    yield attached
    for stream in made:
        stream.close()


def log(text: str) -> None:
    with (
        console.log_stream(sys.stderr) if sys.stderr.isatty() else contextlib.nullcontext(sys.stderr) as file
    ):
        file.write(text)


@pytest.mark.parametrize("way", PATHS)
def test_no_attack_reaches_a_terminal(way: str, attach: Attach) -> None:
    stream = attach(True)
    for text in (*ATTACKS.values(), MARKUP):
        PATHS[way](text)
    shown = OWN.sub("", stream.got())
    assert STEERING.findall(shown) == []
    assert "52;c;ZXZpbA==" in shown
    assert "[red]x[/red] [/]" in shown


@pytest.mark.parametrize("way", [way for way in PATHS if not way.startswith(("traceback", "progress"))])
def test_a_pipe_gets_the_text_as_it_is(way: str, attach: Attach) -> None:
    for text in ATTACKS.values():
        stream = attach(False)
        PATHS[way](text)
        assert text in stream.got()


def test_a_sequence_in_two_pieces_does_not_pass(attach: Attach) -> None:
    for text in ATTACKS.values():
        for at in range(len(text) + 1):
            stream = attach(True)
            console.data(text[:at])
            console.data(text[at:])
            assert stream.got() == visible(text)


@pytest.mark.parametrize("plain", [True, False])
def test_a_chat_filters_each_run(plain: bool, attach: Attach) -> None:
    stream = attach(True)
    screen = Screen(plain, show_draft=True)
    for text in ATTACKS.values():
        screen.begin(GenerationResult())
        screen.show(text, [(1, "copy"), (len(text) - 1, "target")])
        screen.end()
        screen.dim(text)
    assert STEERING.findall(OWN.sub("", stream.got())) == []


def test_every_character_is_judged_alone() -> None:
    every = [chr(c) for c in range(sys.maxunicode + 1)]
    assert [c for c in every if visible(c) != c] == STEERING.findall("".join(every))
    assert visible("a\x1b[2J\r\nb\x9b\u202e") == "a\u241b[2J\nb\ufffd\ufffd"
    assert visible("אב\u200f عربي 👩\u200d💻\t日本\n") == "אב\u200f عربي 👩\u200d💻\t日本\n"


def test_a_name_stays_in_one_line() -> None:
    assert printable("a\x1b[2Jb\n\x9b\u202e") == "a\\x1b[2Jb\\n\\x9b\\u202e"
    assert printable("日本 é") == "日本 é"


@pytest.mark.parametrize(
    ("show", "first"), [(console.note, ""), (console.warning, "warning: "), (console.error, "error: ")]
)
def test_messages_are_wrapped_at_words_on_a_terminal(
    attach: Attach, monkeypatch: pytest.MonkeyPatch, show: Callable[[str], None], first: str
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    text = "a sentence that has many more words than one line has room for, and "
    text += "/a/path/that/is/never/broken/to/copy\nnext"
    stream = attach(True)
    show(text)
    lines = stream.got().splitlines()
    assert lines[0].startswith(f"{first}a sentence that")
    assert " ".join(line.strip() for line in lines) == f"{first}{text}".replace("\n", " ")
    assert all(len(line) <= 40 or line.strip() == "/a/path/that/is/never/broken/to/copy" for line in lines)
    assert lines[-1] == "next"


def test_messages_in_pipes_keep_their_lines(attach: Attach, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    stream = attach(False)
    console.note("word " * 60)
    assert stream.got() == "word " * 60 + "\n"
