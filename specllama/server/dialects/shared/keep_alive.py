"""The time that a model stays loaded after a request, in the form of Ollama's clients."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST = 64  # characters
_PART = r"(\d{1,12}(?:\.\d{0,9})?|\.\d{1,9})"
_DURATION = re.compile(rf"[-+]?(?:{_PART}|(?:{_PART}(?:ns|us|µs|ms|s|m|h)){{1,8}})")
_UNIT = re.compile(_PART + r"(ns|us|µs|ms|s|m|h)")


def seconds(duration: str) -> float:
    """Seconds of a duration such as "5m", "1h30m" or "-1"; negative for ever. Raises ValueError."""
    text = duration.strip()
    if not _DURATION.fullmatch(text):
        raise ValueError(f'must be seconds or a duration such as "5m", not {text[:40]!r}')
    parts = _UNIT.findall(text)
    if not parts:
        return float(text)
    sign = -1.0 if text.startswith("-") else 1.0
    return sign * sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _read(value: Any) -> Any:
    return seconds(value) if isinstance(value, str) and len(value) <= _LONGEST else value


KeepAlive = Annotated[float | None, BeforeValidator(_read)]
"""The annotation of keep_alive; its value is seconds."""
