"""How a request wants its tokens chosen and where it ends. Plain data: importing this loads no numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from specllama.errors import UsageError

UNTIL_STOP, UNTIL_CONTEXT_FULL = -1, -2  # values of max_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The parameters of one generation; the defaults are the one table of the project.

    temperature: 0 chooses the likeliest token. top_k: 0 switches it off. max_tokens: -1 until an end token or stop
    string, -2 until the context is full (end tokens are not chosen). repeat_last_n: tokens of history that penalties
    look at, -1 for all. seed: None for a random one, which is reported. Raises UsageError naming the field.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int = UNTIL_STOP
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise UsageError(f"{name} must be a number, not {value!r}")
            if not low <= value <= high:
                raise UsageError(f"{name} must be between {low:g} and {high:g}, not {value:g}")
        for name in ("top_k", "repeat_last_n", "max_tokens"):
            if not isinstance(getattr(self, name), int):
                raise UsageError(f"{name} must be a whole number, not {getattr(self, name)!r}")
        if self.max_tokens == 0:
            raise UsageError(
                "max_tokens must be 1 or more, -1 (until stop) or -2 (until the context is full), not 0"
            )
        seed = self.seed
        if seed is not None and (
            isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64
        ):
            raise UsageError(f"seed must be a whole number from 0 to 2**64 - 1, not {seed!r}")
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if not all(isinstance(s, str) and s for s in stop):
            raise UsageError("stop strings must not be empty")
        object.__setattr__(self, "stop", stop)
        for token, bias in self.logit_bias.items():
            if not isinstance(token, int) or token < 0 or math.isnan(bias):
                raise UsageError(f"logit_bias must map token ids to numbers, not {token!r} to {bias!r}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def penalised(self) -> bool:
        """Whether the choice depends on the history."""
        return self.repeat_last_n != 0 and (
            self.repeat_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0
        )

    @classmethod
    def merge(cls, *layers: Mapping[str, Any]) -> SamplingParams:
        """Build from mappings, the first that has a field (and not None) wins; unknown fields raise UsageError."""
        known = {f.name for f in fields(cls)}
        values: dict[str, Any] = {}
        for layer in reversed(layers):
            for name, value in layer.items():
                if name not in known:
                    raise UsageError(
                        f"unknown sampling parameter {name!r}", f"known: {', '.join(sorted(known))}"
                    )
                if value is not None:
                    values[name] = value
        return cls(**values)


_RANGES = (
    ("temperature", 0, 1e4),
    ("top_k", 0, 2**31 - 1),
    ("top_p", 0, 1),
    ("min_p", 0, 1),
    ("repeat_penalty", 0.01, 100),
    ("repeat_last_n", -1, 2**31 - 1),
    ("presence_penalty", -100, 100),
    ("frequency_penalty", -100, 100),
    ("max_tokens", -2, 2**31 - 1),
)
