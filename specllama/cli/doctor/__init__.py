"""`specllama doctor`: each module makes a part of the report, as plain data and problems."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong and what to do about it. exit_code: with which `run` ends for it, 0 if it works."""

    what: str
    do: str
    exit_code: int = 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
