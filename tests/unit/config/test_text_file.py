"""The one reader of files that users name, and escapes in texts of the command line."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from specllama.config.forms import unescaped
from specllama.config.options import as_flag
from specllama.config.text_file import (
    LONGEST_LINE,
    MAX_BYTES,
    StandardInput,
    decoded,
    expanded,
    read_text,
    without_last_newline,
)
from specllama.errors import NotFoundError, UsageError

TEXT = "brûlée\n日本 😀\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_texts_of_all_editors_are_the_same(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "text"
    path.write_bytes(TEXT.encode(encoding))
    assert read_text(str(path), "file") == TEXT


@pytest.mark.parametrize("order", ["le", "be"])
def test_utf_16_of_either_order_has_a_mark(order: str) -> None:
    mark = b"\xff\xfe" if order == "le" else b"\xfe\xff"
    assert decoded(mark + TEXT.encode(f"utf-16-{order}")) == TEXT
    assert decoded(b"") == ""
    assert decoded(b"\xef\xbb\xbf\xef\xbb\xbfa") == "\ufeffa"  # the second one is a character of the text


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("brûlée".encode("iso-8859-1"), "line 1 is not UTF-8 (byte 2 is 0xfb)"),
        (b"ab\ncd\n\xed\xa0\x80", "line 3 is not UTF-8 (byte 6 is 0xed)"),
        (b"\xff\xfea", "it is not whole UTF-16 (at byte 2)"),
        (b"a\nb\0", "is no text: there is a NUL in line 2"),
        ("a".encode("utf-16-le"), "is no text: there is a NUL in line 1"),
        (b"x" * (MAX_BYTES + 1), "is larger than 4 MiB"),
    ],
)
def test_anything_else_is_refused_with_its_place(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "text"
    path.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        read_text(str(path), "grammar_file")
    message = caught.value.with_option_names(as_flag).message
    assert message.startswith(f"--grammar-file: {path}")
    assert message.endswith(why)


def test_endless_devices_and_what_is_no_file_are_refused(tmp_path: Path) -> None:
    for path, why in (
        ("/dev/zero", "larger than"),
        (str(tmp_path), "cannot be read"),
        (" ", "needs the path"),
    ):
        with pytest.raises(UsageError, match=why):
            read_text(path, "file")
    with pytest.raises(NotFoundError):
        read_text(str(tmp_path / "absent"), "file")


def test_the_home_directory_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.txt").write_text("found")
    assert read_text("~/a.txt", "file") == "found"
    assert expanded("~nobody-of-that-name/a") == Path("~nobody-of-that-name/a")


def test_one_newline_at_the_end_is_none_of_the_text() -> None:
    for text, kept in (("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), ("a", "a"), ("", ""), ("a\r", "a\r")):
        assert without_last_newline(text) == kept


class FakeInput:
    """Standard input with these bytes, from a terminal or a pipe."""

    def __init__(self, data: bytes, is_terminal: bool = False) -> None:
        self.buffer, self._is_terminal = io.BytesIO(data), is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def given(monkeypatch: pytest.MonkeyPatch, *args: Any) -> StandardInput:
    monkeypatch.setattr(sys, "stdin", FakeInput(*args))
    return StandardInput()


def test_standard_input_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = given(monkeypatch, b"text\n")
    assert stdin.read("the prompt") == "text\n"
    with pytest.raises(UsageError, match="-jf: standard input is already read as the prompt"):
        stdin.read("-jf")


def test_standard_input_is_text_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for data, why in (
        (b"a\xe9", r"standard input: line 1 is not UTF-8 \(byte 1"),
        (b"y\n" * MAX_BYTES, "larger"),
    ):
        with pytest.raises(UsageError, match=why):
            given(monkeypatch, data).read("the prompt")


def test_a_line_that_the_terminal_has_cut_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    line = b"x" * LONGEST_LINE + b"\n"
    with pytest.raises(UsageError, match="has cut this one"):
        given(monkeypatch, b"a\n" + line, True).read("the prompt")
    assert len(given(monkeypatch, line).read("the prompt")) == LONGEST_LINE + 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [  # as llama.cpp's string_process_escapes
        (r"a\nb\tc\rd", "a\nb\tc\rd"),
        (r"\'\"\\n", "'\"\\n"),
        (r"\x41\xc3\xa9", "Aé"),
        (r"\x4", r"\x4"),
        (r"\xg1 \q \u0041 \0", r"\xg1 \q \u0041 \0"),
        ("\\", "\\"),
        ("é\\n日", "é\n日"),
        ("plain", "plain"),
    ],
)
def test_escapes_are_those_of_llama_cpp(text: str, expected: str) -> None:
    assert unescaped(text, "prompt") == expected


@pytest.mark.parametrize("text", [r"\xff", r"a\x00", r"\xc3"])
def test_escapes_that_make_no_text_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="prompt has escapes"):
        unescaped(text, "prompt")
