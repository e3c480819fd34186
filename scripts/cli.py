"""Command lines of the scripts: help from the docstring, option types, bad input as one line and exit 2."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

EXIT_USAGE = 2


class BadInput(Exception):
    """An argument or file that cannot be used; the message says which and why, in one line."""


class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """The description as written, and the default of every option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or isinstance(action.default, bool):
            return action.help
        return super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message} (see --help)\n")


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the docstring of the script; `--threads` defaults to all cores unless it has a
    default.
    """
    spec = sys.modules["__main__"].__spec__
    prog = f"python -m {spec.name.removesuffix('.__main__')}" if spec else None
    usage = argparse.SUPPRESS if "usage:" in (doc or "") else None
    p = Parser(prog, usage, description=doc, formatter_class=Help, allow_abbrev=False)
    p.set_defaults(threads=os.cpu_count() or 1)
    return p


def whole(least: int) -> Callable[[str], int]:
    """An option's type: a whole number of at least `least`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is less than {least}")
        return value

    return parse


def whole_list(least: int) -> Callable[[str], list[int]]:
    """An option's type: whole numbers of at least `least`, "1,2,8-11", sorted and without repeats."""
    number = whole(least)

    def parse(text: str) -> list[int]:
        found = set[int]()
        for part in filter(None, (part.strip() for part in text.split(","))):
            low, _, high = part.partition("-")
            found.update(range(number(low), number(high or low) + 1))
        if not found:
            raise argparse.ArgumentTypeError(f"{text!r} is not a list such as 1,2,8-11")
        return sorted(found)

    return parse


def gguf_file(path: Path) -> Path:
    """The path, if it is a GGUF file. Raises BadInput."""
    try:
        with path.open("rb") as f:
            magic = f.read(4)
    except OSError as e:
        raise BadInput(f"{path}: {e.strerror}") from None
    if magic != b"GGUF":
        raise BadInput(f"{path}: not a GGUF file")
    return path


def run(main: Callable[[], None], *errors: type[Exception]) -> None:
    """Runs `main`; BadInput and `errors` end it with their message and exit code 2, Ctrl-C with 130."""
    expected: tuple[type[Exception], ...] = (BadInput, *errors)
    try:
        main()
    except expected as e:
        print(f"{Path(sys.argv[0]).name}: {e}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except KeyboardInterrupt:
        sys.exit(130)
