"""Errors of the file system as errors of the program."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from specllama.errors import SpecllamaError


@contextlib.contextmanager
def mapped_errors(kind: type[SpecllamaError], what: str, hint: str = "") -> Iterator[None]:
    """Raise an OSError or ValueError of the block as this kind of error: "`what`: the system's reason"."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise kind(f"{what}: {getattr(error, 'strerror', None) or error}", hint) from None
