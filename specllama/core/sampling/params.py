"""How a request wants its tokens chosen and where it ends. Plain data: importing this loads no numpy."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from specllama.errors import UsageError

UNTIL_STOP, UNTIL_CONTEXT_FULL = -1, -2  # values of max_tokens
MAX_BIAS = 1e6
MAX_LOGPROBS = 20  # of the likeliest tokens, beside the emitted one


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The parameters of one generation; the defaults are the one table of the project.

    temperature: 0 chooses the likeliest token. top_k: 0 switches it off. max_tokens: -1 until an end token
    or stop string, -2 until the context is full (end tokens are not chosen). repeat_last_n: tokens of
    history that penalties look at, -1 for all. seed: None for a random one, which is reported. json_schema:
    only JSON of this schema is written, a JSON text or what json.loads makes of one. grammar: only text of
    this grammar, GBNF or Lark. logprobs: how many of the likeliest tokens are reported beside each emitted
    one, 0 for that one alone, None for nothing. Raises UsageError naming the field.
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
    json_schema: str | Mapping[str, Any] | bool | None = None
    grammar: str | None = None
    logprobs: int | None = None

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or (isinstance(value, float) and not math.isfinite(value)):
                raise UsageError(f"{name} must be a number, not {value!r}")
            if not low <= value <= high:
                raise UsageError(f"{name} must be between {low} and {high}, not {value!r}")
            if name in ("top_k", "repeat_last_n", "max_tokens") and not isinstance(value, int):
                raise UsageError(f"{name} must be a whole number, not {value!r}")
        if self.max_tokens == 0:
            raise UsageError(
                "max_tokens must be 1 or more, -1 (until stop) or -2 (until the context is full), not 0"
            )
        seed = self.seed
        if seed is not None and (
            isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64
        ):
            raise UsageError(f"seed must be a whole number from 0 to 2**64 - 1, not {seed!r}")
        if not isinstance(self.ignore_eos, bool):
            raise UsageError(f"ignore_eos must be true or false, not {self.ignore_eos!r}")
        n = self.logprobs
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= MAX_LOGPROBS):
            raise UsageError(f"logprobs must be a whole number from 0 to {MAX_LOGPROBS}, not {n!r}")
        if self.json_schema is not None and self.grammar is not None:
            raise UsageError("json_schema and grammar are both given")
        object.__setattr__(self, "json_schema", _schema(self.json_schema))
        if self.grammar is not None and (not isinstance(self.grammar, str) or not self.grammar.strip()):
            raise UsageError("grammar must be a text that is not empty")
        object.__setattr__(self, "stop", _stops(self.stop))
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))

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
        """Build from mappings; the first that has a field (not None) wins. Raises for unknown ones."""
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


def _schema(given: Any) -> str | None:
    """The schema as one JSON text; whether it can be obeyed is for grammar.py to say."""
    if given is None or isinstance(given, str):
        return given
    if not isinstance(given, (Mapping, bool)):
        raise UsageError(f"json_schema must be a JSON object, true or false, not {type(given).__name__}")
    try:
        return json.dumps(dict(given) if isinstance(given, Mapping) else given)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"json_schema is no JSON: {error}") from None


def _stops(given: Any) -> tuple[str, ...]:
    stop = (given,) if isinstance(given, str) else given
    if not isinstance(stop, (list, tuple)) or not all(isinstance(s, str) and s for s in stop):
        raise UsageError(f"stop must be texts that are not empty, not {given!r}")
    return tuple(stop)


def _biases(given: Any) -> dict[int, float]:
    """JSON has texts for keys: "5" is token 5."""
    if not isinstance(given, Mapping):
        raise UsageError(f"logit_bias must map token ids to numbers, not {given!r}")
    found = {}
    for key, bias in given.items():
        digits = isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 12
        token = int(key) if digits else key
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < 2**31:
            raise UsageError(f"logit_bias must map token ids to numbers, not {key!r}")
        number = isinstance(bias, (int, float)) and not isinstance(bias, bool)
        if not number or not (bias == -math.inf or -MAX_BIAS <= bias <= MAX_BIAS):
            raise UsageError(
                f"logit_bias of token {token} must be -inf or within ±{MAX_BIAS:g}, not {bias!r}"
            )
        found[token] = float(bias)
    return found


_RANGES = (
    ("temperature", 0, 10_000),
    ("top_k", 0, 2**31 - 1),
    ("top_p", 0, 1),
    ("min_p", 0, 1),
    ("repeat_penalty", 0.01, 100),
    ("repeat_last_n", -1, 2**31 - 1),
    ("presence_penalty", -100, 100),
    ("frequency_penalty", -100, 100),
    ("max_tokens", -2, 2**31 - 1),
)
