"""`specllama doctor`: each module produces a part of the report, as plain data and problems."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from specllama.errors import SpecllamaError
from specllama.json_types import JsonObject


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong and what to do about it. exit_code: of `run` because of it, 0 if `run` works."""

    what: str
    do: str
    exit_code: int = 0

    def to_dict(self) -> JsonObject:
        return asdict(self)


@contextlib.contextmanager
def reported(problems: list[Problem], do: str, prefix: str = "") -> Iterator[list[str]]:
    """Add an error of the block to the problems instead of raising it.

    do: what to do about an error without a hint. prefix: of the problem's text. Yields a list that gets the
    error's message.
    """
    messages: list[str] = []
    try:
        yield messages
    except SpecllamaError as error:
        messages.append(error.message)
        problems.append(Problem(prefix + error.message, error.hint or do, error.exit_code))
