"""The command lines of the long campaigns: `python -m tests.fuzz`, `tests.soak`, `tests.kernel_checks`."""

from __future__ import annotations

import argparse
from typing import NoReturn


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see --help)\n")


def command_parser(module: str, doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the docstring of the module, which has the usage."""
    return _Parser(
        f"python -m {module}",
        argparse.SUPPRESS,
        doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
