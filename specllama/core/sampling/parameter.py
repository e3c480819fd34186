"""What a sampling parameter is for all fronts, and checks of single values. Knows no parameter by itself: the
table is SamplingParams in params.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from specllama.errors import UsageError

MAX_BIAS = 1e6
_MAX_INT = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A sampling parameter as all fronts see it. name: the Python field, the TOML key, and the environment
    variable after SPECLLAMA_.

    kind: the type of its value on a command line, of one value where there may be many. flags: on command
    lines, the preferred one first. low, high: the range of a number. default, random: what holds where nobody
    sets it. api_fields: its names in request bodies, the preferred one first; () where each API has its own
    form. step, off: the letter of --sampling-seq that it belongs to and the value that switches that step
    off. stored: whether files and the environment may set it. check: the value in its final form, or
    UsageError.
    """

    name: str = ""
    kind: type
    default: Any
    flags: tuple[str, ...]
    help: str
    metavar: str | None = None
    low: float = 0
    high: float = _MAX_INT
    many: bool = False
    stored: bool = True
    api_fields: tuple[str, ...] = ()
    step: str = ""
    off: Any = None
    check: Callable[[Any], Any] | None = None

    def checked(self, value: Any) -> Any:
        """The value as SamplingParams holds it. Raises UsageError."""
        if value is None and self.default is None:
            return None
        if self.kind in (int, float) and not self.many:
            self._check_number(value)
        elif self.kind is bool and not isinstance(value, bool):
            raise UsageError(f"must be true or false, not {value!r}", option=self.name)
        return value if self.check is None else self.check(value)

    def _check_number(self, value: Any) -> None:
        whole = self.kind is int
        number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if not number or not self.low <= value <= self.high:  # NaN is in no range
            kind = "a whole number" if whole else "a number"
            raise UsageError(
                f"must be {kind} from {self.low} to {self.high}, not {value!r}", option=self.name
            )


def parameter(
    default: Any, kind: type, flags: str, help_: str, *, api_names: str | None = "", **more: Any
) -> Any:
    """A dataclass field with its Parameter. api_names: names in request bodies after the field's own; None:
    each API has its own form.
    """
    names = () if api_names is None else ("", *api_names.split())
    made = Parameter(
        default=default, kind=kind, flags=tuple(flags.split()), help=help_, api_fields=names, **more
    )
    if isinstance(default, dict):
        return field(default_factory=dict, metadata={"parameter": made})
    return field(default=default, metadata={"parameter": made})


def token_limit(value: int) -> int:
    """max_tokens. Raises UsageError."""
    if value == 0:
        raise UsageError(
            "must be 1 or more, -1 (until stop) or -2 (until the context is full), not 0", option="max_tokens"
        )
    return value


def schema_text(given: Any) -> str | None:
    """json_schema as one JSON text; text/grammar.py decides whether it can be obeyed. Raises UsageError."""
    if isinstance(given, str):
        return given
    if not isinstance(given, (Mapping, bool)):
        raise UsageError(
            f"must be a JSON object, true or false, not {type(given).__name__}", option="json_schema"
        )
    try:
        return json.dumps(dict(given) if isinstance(given, Mapping) else given)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"is not JSON: {error}", option="json_schema") from None


def grammar_text(given: Any) -> str:
    """grammar. Raises UsageError."""
    if not isinstance(given, str) or not given.strip():
        raise UsageError("must be a text that is not empty", option="grammar")
    return given


def stop_texts(given: Any) -> tuple[str, ...]:
    """stop, one text or several. Raises UsageError."""
    stop = (given,) if isinstance(given, str) else given
    if not isinstance(stop, (list, tuple)) or not all(isinstance(s, str) and s for s in stop):
        raise UsageError(f"must be texts that are not empty, not {given!r}", option="stop")
    return tuple(stop)


def token_biases(given: Any) -> dict[int, float]:
    """logit_bias, with JSON's texts for keys too: "5" is token 5. Raises UsageError."""
    if not isinstance(given, Mapping):
        raise UsageError(f"must map token ids to numbers, not {given!r}", option="logit_bias")
    found = {}
    for key, bias in given.items():
        digits = isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 12
        token = int(key) if digits else key
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < 2**31:
            raise UsageError(f"must map token ids to numbers, not {key!r}", option="logit_bias")
        number = isinstance(bias, (int, float)) and not isinstance(bias, bool)
        if not number or not (bias == -math.inf or -MAX_BIAS <= bias <= MAX_BIAS):
            raise UsageError(
                f"of token {token} must be -inf or within ±{MAX_BIAS:g}, not {bias!r}", option="logit_bias"
            )
        found[token] = float(bias)
    return found
