"""The description of a sampling parameter for all fronts, and checks of single values. The parameters
themselves are in the table SamplingParams in params.py.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specllama.errors import UsageError

MAX_BIAS = 1e6
_MAX_INT = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A sampling parameter as all fronts see it. name: the Python field, the TOML key, and the environment
    variable after SPECLLAMA_.

    kind: the type of its value on a command line, of a single value where there may be many. flags: on
    command lines, the preferred one first; () where programs alone give it. low, high: the range of a number.
    api_fields: its names in request bodies, the preferred one first; () where each API has its own form.
    step, off, on: the letter of --sampling-seq for the sampling step that it controls, the value that
    switches that step off, and the one that switches it on where its default does not. file_key: its key in a
    model's file, after general.sampling., "" for none. stored: whether files and the environment may set it.
    check: returns the value in its final form or raises UsageError.
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
    on: Any = None
    file_key: str = ""
    check: Callable[[Any], Any] | None = None

    @property
    def has_plain_value(self) -> bool:
        """Whether a form can ask for it: a number, a switch or texts that files may set."""
        return self.stored and not isinstance(self.default, Mapping)

    @property
    def is_number(self) -> bool:
        return self.kind in (int, float) and not self.many

    def checked(self, value: Any) -> Any:
        """The value as SamplingParams holds it; None stands for the default. Raises UsageError."""
        if value is None:
            return copy.copy(self.default)
        if self.is_number:
            self._check_number(value)
        elif self.kind is bool and not isinstance(value, bool):
            raise UsageError(f"must be true or false, not {value!r}", option=self.name)
        return value if self.check is None else self.check(value)

    def _check_number(self, value: Any) -> None:
        integer = self.kind is int
        valid = isinstance(value, int if integer else (int, float)) and not isinstance(value, bool)
        if not valid or not self.low <= value <= self.high:  # NaN is in no range
            kind = "a whole number" if integer else "a number"
            raise UsageError(
                f"must be {kind} from {self.low} to {self.high}, not {value!r}", option=self.name
            )


def parameter(
    default: Any, kind: type, flags: str, help_: str, *, api_names: str | None = "", **more: Any
) -> Any:
    """A dataclass field with its Parameter. flags, api_names: separated by spaces. api_names: more names in
    request bodies, after the field's own; None: each API has its own form.
    """
    names = () if api_names is None else ("", *api_names.split())
    entry = Parameter(
        default=default, kind=kind, flags=tuple(flags.split()), help=help_, api_fields=names, **more
    )
    if isinstance(default, dict):
        return field(default_factory=dict, metadata={"parameter": entry})
    return field(default=default, metadata={"parameter": entry})


def token_limit(value: int) -> int:
    """The checked value of max_tokens. Raises UsageError."""
    if value == 0:
        raise UsageError(
            "must be 1 or more, -1 (until stop) or -2 (until the context is full), not 0", option="max_tokens"
        )
    return value


def off_below_zero(value: int) -> int:
    """The checked value of top_k, which -1 switches off too."""
    return max(0, value)


def random_seed(value: int) -> int | None:
    """The checked value of seed: None for -1, for which one is drawn."""
    return None if value == -1 else value


def token_ids(given: Any) -> tuple[int, ...]:
    """The checked value of stop_token_ids. Raises UsageError."""
    listed = isinstance(given, Sequence) and not isinstance(given, (str, bytes))
    if not listed or not all(type(i) is int and 0 <= i < 2**31 for i in given):
        raise UsageError(f"must be a list of token ids, not {given!r}", option="stop_token_ids")
    return tuple(given)


def schema_text(given: Any) -> str | None:
    """json_schema as JSON text; text/grammar.py decides whether it is supported. Raises UsageError."""
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
    """The checked value of grammar. Raises UsageError."""
    if not isinstance(given, str) or not given.strip():
        raise UsageError("must be a text that is not empty", option="grammar")
    return given


def stop_texts(given: Any) -> tuple[str, ...]:
    """The stop strings as a tuple; one may be given by itself. Raises UsageError."""
    stop = (given,) if isinstance(given, str) else given
    if not isinstance(stop, (list, tuple)) or not all(isinstance(s, str) and s for s in stop):
        raise UsageError(f"must be texts that are not empty, not {given!r}", option="stop")
    return tuple(stop)


def token_biases(given: Any) -> dict[int, float]:
    """logit_bias by token id; ids may be strings, as the keys of JSON objects are. Raises UsageError."""
    if not isinstance(given, Mapping):
        raise UsageError(f"must map token ids to numbers, not {given!r}", option="logit_bias")
    biases = {}
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
        biases[token] = float(bias)
    return biases
