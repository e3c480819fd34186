"""TOML files that users and projects write: read within bounds, and with the line of every key.

tomllib gives no lines, and is quadratic in the parts of a dotted key: size and nesting are bounded before it
works on a text.
"""

from __future__ import annotations

import contextlib
import os
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specllama.config.text_file import TextProblem, decoded
from specllama.errors import ConfigError
from specllama.json_types import JsonObject
from specllama.regular_file import NotRegularError, open_regular

MAX_BYTES = 256 << 10  # of a file
MAX_PARTS = 8  # of a dotted key
MAX_DEPTH = 16  # of arrays and inline tables
_MAX_SHOWN = 80  # characters of a value in a message
KeyPath = tuple[str | int, ...]
"""Keys from the top: ("models", "8B", "repo"); the n-th table of an array by its index, ("pairs", 0)."""

# No possessive quantifier after a group: Python before 3.11.5 matches too little there (gh-106052). Each
# alternative of a group begins with other characters, so that matching stays linear.
_TOKEN = re.compile(
    r"""
    (?P<blank>[ \t\r]++|\#[^\n]*+)
    | (?P<newline>\n)
    | (?P<text>"{3}(?:[^"\\]|\\[\s\S]|"(?!""))*"{3,5} | '{3}(?:[^']|'(?!''))*'{3,5})
    | (?P<open>"{3}|'{3})
    | (?P<key>"(?:[^"\\\n]|\\.)*" | '[^'\n]*+' | [A-Za-z0-9_+:-]++)
    | (?P<stray>["'])
    | (?P<other>.)
    """,
    re.VERBOSE,
)


@dataclass(frozen=True)
class TomlFile:
    """A file, its text and what it says. lines: by key, that of the key or of the header of its table."""

    path: Path
    text: str
    data: JsonObject
    lines: dict[KeyPath, int]

    def where(self, *keys: str | int) -> str:
        """The file and the line of a key, or of the nearest table around it, to start a message."""
        while keys and keys not in self.lines:
            keys = keys[:-1]
        return f"{self.path}, line {self.lines.get(keys, 1)}"


def read_toml(path: Path, links: bool = True) -> TomlFile:
    """Read a file. links: whether a symbolic link may lead to it. Raises ConfigError."""
    return parse_toml(path, read_text(path, links))


def read_text(path: Path, links: bool = True) -> str:
    """The text of a file of at most MAX_BYTES. Raises ConfigError for anything else under that name."""
    try:
        if not links and path.is_symlink():
            raise ConfigError(
                f"{path} is a symbolic link, which is not followed in a project", "replace it by a file"
            )
        data = _start(path, 0 if links else getattr(os, "O_NOFOLLOW", 0))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    if data is None:
        raise ConfigError(f"{path} cannot be read: it is not a file", "rename or remove it")
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path} cannot be read: it is longer than {MAX_BYTES >> 10} KiB")
    try:
        return decoded(data).replace("\r\n", "\n")
    except TextProblem as problem:
        raise ConfigError(f"{path} cannot be read: {problem}", "save it as UTF-8") from None


def read_start(path: Path) -> bytes | None:
    """The first MAX_BYTES of a file; None for what is no file, or cannot be read."""
    try:
        return _start(path, 0)
    except OSError:
        return None


def _start(path: Path, flags: int) -> bytes | None:
    """The first bytes of a file, one more than allowed; None for what is no regular file. Raises OSError."""
    try:
        with open_regular(path, flags) as file:
            return file.read(MAX_BYTES + 1)
    except NotRegularError:
        return None


def parse_toml(path: Path, text: str) -> TomlFile:
    """The content of a text. path: for messages. Raises ConfigError."""
    lines = dict(_lines(path, text))
    try:
        return TomlFile(path, text, tomllib.loads(text), lines)
    except (ValueError, RecursionError) as error:  # ValueError: tomllib's, and of numbers without end
        end = f"at the end, line {text.count(chr(10)) + 1}"
        raise ConfigError(f"{path} is not TOML: {error}".replace("at end of document", end)) from None


def quoted(value: Any) -> str:
    """A value for a message, shortened."""
    try:
        text = repr(value)
    except ValueError:  # a number with too many digits
        return "a number with thousands of digits"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _lines(path: Path, text: str) -> dict[KeyPath, int]:
    """The line of each key. Raises ConfigError for too deep nesting; stops where the text cannot be TOML."""
    lines: dict[KeyPath, int] = {}
    for line, keys in _Statements(path, text):
        for n in range(1, len(keys) + 1):
            lines.setdefault(keys[:n], line)
    return lines


class _Statements:
    """Iterates over a text's statements, headers and assignments: (line, keys from the top)."""

    def __init__(self, path: Path, text: str) -> None:
        self._path, self._text = path, text
        self._table: KeyPath = ()
        self._counts: dict[KeyPath, int] = {}  # tables of each array of tables so far

    def __iter__(self) -> Iterator[tuple[int, KeyPath]]:
        line, keys, brackets, depth, n_parts, was_dot = 1, list[str](), 0, 0, 0, False
        in_value = False
        for token in _TOKEN.finditer(self._text):
            kind, text = token.lastgroup, token[0]
            if kind in ("open", "stray"):
                return  # a text without an end: tomllib gets no further either
            if kind == "blank":
                continue
            if kind in ("key", "text"):
                n_parts, was_dot = n_parts + 1 if was_dot else 1, False
                if n_parts > MAX_PARTS:
                    self._fail(line, f"a key has more than {MAX_PARTS} parts")
                if not in_value and kind == "key":
                    keys.append(_unquoted(text))
            elif text == ".":
                was_dot = True
            elif text in "[{":
                depth += 1
                if depth > MAX_DEPTH:
                    self._fail(line, f"arrays are nested more than {MAX_DEPTH} deep")
                brackets += not in_value and not keys
            elif text in "]}":
                depth -= depth > 0
            elif text == "=" and not in_value:
                in_value = True
                if keys:
                    yield line, (*self._table, *keys)
            elif kind == "newline" and depth == 0:
                if not in_value and brackets and keys:
                    yield line, self._header(keys, brackets == 2)
                keys, brackets, in_value = [], 0, False
            line += text.count("\n")
        if not in_value and brackets and keys and depth == 0:
            yield line, self._header(keys, brackets == 2)

    def _header(self, keys: list[str], array: bool) -> KeyPath:
        """Open a table, or one more of an array of tables."""
        table: KeyPath = ()
        for n, key in enumerate(keys, 1):
            table = (*table, key)
            if array and n == len(keys):
                self._counts[table] = self._counts.get(table, 0) + 1
            if table in self._counts:
                table = (*table, self._counts[table] - 1)
        self._table = table
        return table

    def _fail(self, line: int, reason: str) -> None:
        raise ConfigError(f"{self._path}, line {line}: {reason}")


def _unquoted(key: str) -> str:
    if key[0] in "\"'":
        with contextlib.suppress(ValueError):
            return str(tomllib.loads(f"k = {key}")["k"])
    return key
