"""What the parts of `doctor` share: problems, and figures in words."""

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


def size(n_bytes: int | None) -> str:
    """Bytes as people read them; "?" where they are not known."""
    if n_bytes is None:
        return "?"
    value, unit = float(n_bytes), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{n_bytes} bytes" if unit == "bytes" else f"{value:.1f} {unit}"
