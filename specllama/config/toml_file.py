"""TOML files that users and projects write: read within bounds, and with the line of every key.

tomllib gives no lines, and is quadratic in the parts of a dotted key: these are bounded before.
"""

from __future__ import annotations

import functools
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specllama.config.text_file import TextProblem, decoded
from specllama.errors import ConfigError
from specllama.json_types import JsonObject
from specllama.regular_file import NotRegularError, open_regular

MAX_BYTES = 256 << 10  # of a file
MAX_PARTS = 8  # of a dotted key
_MAX_DIGITS = 1000  # of a number; more are in no range
_DIGITS = re.compile(rf"[0-9][0-9_]{{{_MAX_DIGITS},}}")
_MAX_SEARCHED = 1 << 20  # characters that are parsed to find lines
KeyPath = tuple[str | int, ...]
"""Keys from the top: ("models", "8B", "repo"); the n-th table of an array by its index, ("pairs", 0)."""

# Strings, also without an end, and comments: dots mean nothing there. Each alternative of a group begins with
# other characters, so that matching stays linear.
_QUOTED = re.compile(
    r"""
    "{3}(?:[^"\\]|\\[\s\S]|"(?!""))*(?:"{3,5}|\\?\Z) | '{3}(?:[^']|'(?!''))*(?:'{3,5}|\Z)
    | "(?:[^"\\\n]|\\.)*(?:"|\\?$) | '[^'\n]*'? | \#[^\n]*
    """,
    re.VERBOSE | re.MULTILINE,
)
_MANY_PARTS = re.compile(rf"(?<![\w-])(?:[\w-]+[ \t]*\.[ \t]*){{{MAX_PARTS}}}", re.ASCII)


@dataclass(frozen=True)
class TomlFile:
    path: Path
    text: str
    data: JsonObject

    def where(self, *keys: str | int) -> str:
        """The file and the line of a key, or of the nearest table around it, to start a message."""
        while keys and keys not in self.lines:
            keys = keys[:-1]
        return f"{self.path}, line {self.lines.get(keys, 1)}"

    @functools.cached_property
    def lines(self) -> Mapping[KeyPath, int]:
        """By key, the line of the key or of its table's header; none after a value of very many lines."""
        lines: dict[KeyPath, int] = {}
        table: KeyPath = ()
        n_tables: dict[KeyPath, int] = {}  # of each array of tables so far
        statement, first, searched = "", 1, 0
        for number, line in enumerate(self.text.split("\n"), 1):
            if not statement:
                first = number
            statement += f"{line}\n"
            searched += len(statement)
            if searched > _MAX_SEARCHED:
                break
            try:
                part, keys = tomllib.loads(statement), list[str]()
            except ValueError:
                continue  # a value of several lines
            while isinstance(part, dict) and part:
                keys.append(next(iter(part)))
                part = part[keys[-1]]
            if statement.lstrip().startswith("["):
                table = ()
                for n, key in enumerate(keys, 1):
                    table = (*table, key)
                    if n == len(keys) and isinstance(part, list):
                        n_tables[table] = n_tables.get(table, 0) + 1
                    if table in n_tables:
                        table = (*table, n_tables[table] - 1)
                keys = []
            for n in range(1, len((*table, *keys)) + 1):
                lines.setdefault((*table, *keys)[:n], first)
            statement = ""
        return lines


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
    keys = _QUOTED.sub(lambda quoted: "q" + "\n" * quoted[0].count("\n"), text)
    if match := _MANY_PARTS.search(keys):
        line = keys.count("\n", 0, match.start()) + 1
        raise ConfigError(f"{path}, line {line}: a key has more than {MAX_PARTS} parts")
    try:
        return TomlFile(path, text, tomllib.loads(text))
    except RecursionError:
        raise ConfigError(f"{path} is not TOML: it is nested too deep") from None
    except ValueError as error:
        if not isinstance(error, tomllib.TOMLDecodeError):  # a number of thousands of digits
            # Shorter, it is still in no range: who reads its key then names that.
            return parse_toml(path, _DIGITS.sub(lambda digits: digits[0][:_MAX_DIGITS].rstrip("_"), text))
        end = f"at the end, line {text.count(chr(10)) + 1}"
        raise ConfigError(f"{path} is not TOML: {error}".replace("at end of document", end)) from None
