"""What the scripts' command lines share: help with defaults; bad input is one line and exit 2."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

EXIT_USAGE = 2


class BadInput(Exception):
    """What the caller gave cannot be used; the message says what and why, in one line."""


class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """The description as written, and every option with its default, where it has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False:
            return action.help
        return super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """A parser that says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message} (--help says what is possible)\n")


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the script's own docstring; `--threads` is all cores unless given."""
    p = Parser(description=doc, formatter_class=Help, allow_abbrev=False)
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


def gguf_file(path: Path) -> Path:
    """The path, if a GGUF file is there. Raises BadInput."""
    try:
        with path.open("rb") as f:
            magic = f.read(4)
    except OSError as e:
        raise BadInput(f"{path}: {e.strerror}") from None
    if magic != b"GGUF":
        raise BadInput(f"{path}: not a GGUF file")
    return path


def run(main: Callable[[], None], *errors: type[Exception]) -> None:
    """Run `main`; BadInput and `errors` end it with their message and exit 2, Ctrl-C with 130."""
    expected: tuple[type[Exception], ...] = (BadInput, *errors)
    try:
        main()
    except expected as e:
        print(f"{Path(sys.argv[0]).name}: {e}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except KeyboardInterrupt:
        sys.exit(130)
