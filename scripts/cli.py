"""Command lines of the scripts: help from the docstring, option types, bad input as one line and exit 2."""

from __future__ import annotations

import argparse
import math
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

EXIT_USAGE = 2


class BadInput(Exception):
    """An argument or file that cannot be used; the message says which and why, in one line."""


class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """The description as written, and the default and the least value of every option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        without = action.default is None or isinstance(action.default, bool)
        text = action.help if without else super()._get_help_string(action)
        least = getattr(action.type, "least", 0)
        return f"{text} (at least {least})" if least > 1 else text


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message} (see --help)\n")


def program() -> str:
    """How this script was started."""
    spec = sys.modules["__main__"].__spec__
    return f"python -m {spec.name.removesuffix('.__main__')}" if spec else Path(sys.argv[0]).name


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the docstring of the script; `--threads` defaults to all cores unless it has a
    default.
    """
    usage = argparse.SUPPRESS if "usage:" in (doc or "") else None
    p = Parser(program(), usage, description=doc, formatter_class=Help, allow_abbrev=False)
    p.set_defaults(threads=os.cpu_count() or 1)
    return p


def whole(least: int, most: float = math.inf) -> Callable[[str], int]:
    """An option's type: a whole number from `least` to `most`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is less than {least}")
        if value > most:
            raise argparse.ArgumentTypeError(f"{value} is more than {most}")
        return value

    parse.least = least  # type: ignore[attr-defined]
    return parse


def threads(text: str) -> int:
    """An option's type: a number of threads, at most one for each core."""
    value, cores = whole(1)(text), os.cpu_count() or 1
    if value > cores:
        raise argparse.ArgumentTypeError(f"{value} is more than the {cores} cores of this machine")
    return value


def seconds(text: str) -> float:
    """An option's type: seconds, up to an hour."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to 3600")
    return value


def folder(text: str) -> Path:
    """An option's type: a folder, which may be made."""
    if not text or (Path(text).exists() and not Path(text).is_dir()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a folder")
    return Path(text)


def output(text: str) -> Path:
    """An option's type: a file that can be written, which is found out before it is."""
    path = Path(text)
    if not os.access(path if path.exists() else path.parent, os.W_OK) or path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is not a file that can be written, in a folder that exists")
    return path


def write(path: Path, text: str) -> None:
    """Write an output. Raises BadInput if that fails, after it is printed: it may have taken hours."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        print(text)
        raise BadInput(f"{path} cannot be written ({error.strerror}); its content is above") from None


def check_kernels_variable() -> None:
    """For scripts that measure with the kernels and without. Raises BadInput where SPECLLAMA_KERNELS names
    others than the usual ones.
    """
    if (given := os.environ.get("SPECLLAMA_KERNELS") or "auto") not in ("auto", "on"):
        raise BadInput(f"SPECLLAMA_KERNELS is {given}, and both ways are measured: unset it")


def whole_list(least: int, most: float = math.inf) -> Callable[[str], list[int]]:
    """An option's type: whole numbers from `least` to `most`, "1,2,8-11", sorted and without repeats."""
    number = whole(least, most)

    def parse(text: str) -> list[int]:
        found = set[int]()
        for part in filter(None, (part.strip() for part in text.split(","))):
            ends = re.fullmatch(r"(\d+) *- *(\d+)", part)
            low, high = map(number, ends.groups() if ends else (part, part))
            if high < low:
                raise argparse.ArgumentTypeError(f"{part}: {high} is less than {low}")
            found.update(range(low, high + 1))
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
    """Runs `main`; BadInput and `errors` end it with their message and exit code 2, Ctrl-C with 130, SIGTERM
    with 143, after it has removed its temporary files.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    expected: tuple[type[Exception], ...] = (BadInput, *errors)
    try:
        main()
    except expected as e:
        print(f"{program()}: {e}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except KeyboardInterrupt:
        sys.exit(130)
