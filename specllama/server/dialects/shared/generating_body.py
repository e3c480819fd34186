"""What the server reads of the bodies that request texts, in all APIs."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Protocol

from pydantic import BeforeValidator, Field

from specllama.json_types import JsonObject
from specllama.server.dialects.shared.fields import Body


class MemoryChoice(Protocol):
    """The part of `speculation` in a body that the server reads."""

    memory: bool


class CacheUse(Protocol):
    """The part of `cache` in a body that the server reads."""

    reuse: bool


class GeneratingBody(Protocol):
    """Fields of these bodies. kept: prompt and text may be written to disk.
    keep_alive: seconds, negative for ever.
    """

    @property
    def stream(self) -> bool: ...

    @property
    def speculation(self) -> MemoryChoice: ...

    @property
    def cache(self) -> CacheUse: ...

    @property
    def kept(self) -> bool: ...

    @property
    def keep_alive(self) -> float | None: ...

    @property
    def num_ctx(self) -> int | None: ...


# The time that a model stays loaded after a request, in the form of Ollama's clients.


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


# The field `speculation` of all bodies that generate text.


def _trace_choice(value: Any) -> Any:
    if isinstance(value, bool) or value == "full":
        return value
    raise ValueError('must be a valid boolean or "full"')


TraceChoice = Annotated[bool | Literal["full"], BeforeValidator(_trace_choice)]


class Speculation(Body):
    """enabled: False decodes plainly, to the same text. max: longest draft per round, in tokens. trace: the
    chunks of a stream name the drafters of their tokens; "full" includes rejected draft tokens. memory: False
    neither drafts from earlier requests nor lets later ones draft from this one. exact: the same text with
    and without drafts, on every device.
    """

    enabled: bool = True
    max: Annotated[int, Field(ge=0, le=512)] | None = None
    trace: TraceChoice = False
    memory: bool = True
    exact: bool = False

    def engine_fields(self) -> JsonObject:
        """The fields of protocol.Generate that these set."""
        full = self.trace == "full"
        return {
            "speculate": self.enabled, "draft_max": self.max, "exact": self.exact, "show_rejected": full,
        }  # fmt: skip
