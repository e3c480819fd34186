"""What crosses the pipes between a front and its engine process: one JSON object a line. Knows neither
end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Load:
    """To the engine: load these models (LoadSettings as a dict). verbose: llama.cpp's log goes to stderr."""

    settings: dict[str, Any]
    verbose: bool = False


@dataclass(frozen=True, slots=True)
class Generate:
    """To the engine: answer `messages` through the chat template, or go on behind `prompt`, or behind `ids`.

    params: what the user set of SamplingParams, the model's own defaults fill in. speculate: False decodes
    plainly.
    """

    id: int
    messages: list[dict[str, Any]] | None = None
    prompt: str | None = None
    ids: list[int] | None = None
    params: dict[str, Any] = field(default_factory=dict)
    speculate: bool = True
    variables: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cancel:
    """To the engine: end this generation, its text so far stays."""

    id: int


@dataclass(frozen=True, slots=True)
class Calibrate:
    """To the engine, when idle: measure for at most `seconds` what is not known yet."""

    seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Loading:
    """From the engine: the share of a model's file that is loaded. model: "target" or "draft"."""

    model: str
    share: float


@dataclass(frozen=True, slots=True)
class Ready:
    """From the engine: the models are loaded. info: see host.py."""

    info: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Started:
    """From the engine: a generation is queued. params: all of SamplingParams as used, the seed included."""

    id: int
    n_prompt: int
    params: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Prefilled:
    """From the engine: tokens of the prompt evaluated so far."""

    id: int
    n_done: int
    n_prompt: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """From the engine, once a round: for each sequence that went on [id, text, ids, drafted, accepted]."""

    items: list[list[Any]]


@dataclass(frozen=True, slots=True)
class Done:
    """From the engine: a generation ended. stats: RunStats as a dict; extra: what else the read-out needs."""

    id: int
    text: str
    reason: str
    stats: dict[str, Any]
    extra: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Failed:
    """From the engine: a request (or, without id, the load) failed. error: SpecllamaError.to_dict()."""

    error: dict[str, Any]
    id: int | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """From the engine: a line that the user should see."""

    text: str


@dataclass(frozen=True, slots=True)
class Calibrated:
    """From the engine: what a Calibrate found."""

    found: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Beat:
    """From the engine, every half second: how long the step at hand has run and how long it may, in
    seconds.
    """

    busy_for: float
    allowed: float


Message = (
    Load
    | Generate
    | Cancel
    | Calibrate
    | Loading
    | Ready
    | Started
    | Prefilled
    | Tokens
    | Done
    | Failed
    | Notice
    | Calibrated
    | Beat
)
_KINDS: Mapping[str, type[Message]] = {
    cls.__name__: cls
    for cls in (
        Load, Generate, Cancel, Calibrate, Loading, Ready, Started, Prefilled, Tokens, Done, Failed, Notice,
        Calibrated, Beat,
    )
}  # fmt: skip


def encode(message: Message) -> bytes:
    """One line, without a newline inside."""
    kind = type(message).__name__
    body = {"items": message.items} if isinstance(message, Tokens) else asdict(message)
    return json.dumps([kind, body], separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The inverse of `encode`. Raises ValueError for what no end of the pipe wrote."""
    try:
        kind, body = json.loads(line)
        return _KINDS[kind](**body)
    except (KeyError, TypeError) as error:
        raise ValueError(f"no message: {error}") from None
