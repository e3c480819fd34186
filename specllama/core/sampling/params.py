"""How a request wants its tokens chosen and where it ends: the one table of sampling parameters.

From a field of SamplingParams come the Python argument, the flag, the TOML key, the environment variable and
the field of the HTTP APIs, with range, default and help: adding a parameter is adding a field here and using
it in sampler.py. Plain data: importing this loads no numpy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from specllama.errors import UsageError, option

UNTIL_STOP, UNTIL_CONTEXT_FULL = -1, -2  # values of max_tokens
MAX_BIAS = 1e6
MAX_LOGPROBS = 20  # of the likeliest tokens, next to the emitted one
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


def _parameter(
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


def _token_limit(value: int) -> int:
    if value == 0:
        raise UsageError(
            "must be 1 or more, -1 (until stop) or -2 (until the context is full), not 0", option="max_tokens"
        )
    return value


def _schema(given: Any) -> str | None:
    """The schema as one JSON text; whether it can be obeyed is for text/grammar.py to say."""
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


def _grammar(given: Any) -> str:
    if not isinstance(given, str) or not given.strip():
        raise UsageError("must be a text that is not empty", option="grammar")
    return given


def _stops(given: Any) -> tuple[str, ...]:
    stop = (given,) if isinstance(given, str) else given
    if not isinstance(stop, (list, tuple)) or not all(isinstance(s, str) and s for s in stop):
        raise UsageError(f"must be texts that are not empty, not {given!r}", option="stop")
    return tuple(stop)


def _biases(given: Any) -> dict[int, float]:
    """JSON has texts for keys: "5" is token 5."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The parameters of one generation; the defaults are the one table of the project.

    temperature: 0 chooses the likeliest token. top_k: 0 switches it off. max_tokens: -1 until an end token
    or stop string, -2 until the context is full (end tokens are not chosen). repeat_last_n: tokens of
    history that penalties look at, -1 for all. seed: None for a random one, which is reported. json_schema:
    only JSON of this schema is written, a JSON text or what json.loads makes of one. grammar: only text of
    this grammar, GBNF or Lark. logprobs: how many of the likeliest tokens are reported next to each emitted
    one, 0 for that one alone, None for nothing. Raises UsageError naming the field.
    """

    max_tokens: int = _parameter(
        UNTIL_STOP,
        int,
        "-n --predict --n-predict",
        "tokens; -1 until it stops, -2 until the context is full",
        metavar="N",
        low=UNTIL_CONTEXT_FULL,
        check=_token_limit,
        api_names="n_predict",
    )
    seed: int | None = _parameter(
        None,
        int,
        "-s --seed",
        "seed (default, or -1: a random one, reported)",
        metavar="N",
        high=2**64 - 1,
    )
    temperature: float = _parameter(
        0.8,
        float,
        "--temp --temperature",
        "0 takes the likeliest token (default {default})",
        metavar="T",
        high=10_000,
        step="t",
        off=1.0,
    )
    top_k: int = _parameter(
        40, int, "--top-k", "likeliest tokens kept (default {default}, 0 off)", metavar="N", step="k", off=0
    )
    top_p: float = _parameter(
        0.95,
        float,
        "--top-p",
        "share of probability kept (default {default}, 1 off)",
        metavar="P",
        high=1,
        step="p",
        off=1.0,
    )
    min_p: float = _parameter(
        0.05,
        float,
        "--min-p",
        "least probability, relative to the best (default {default}, 0 off)",
        metavar="P",
        high=1,
        step="m",
        off=0.0,
    )
    repeat_penalty: float = _parameter(
        1.0,
        float,
        "--repeat-penalty",
        "divides the logits of recent tokens (default {default}, off)",
        metavar="N",
        low=0.01,
        high=100,
        step="e",
        off=1.0,
        api_names="repetition_penalty",
    )
    repeat_last_n: int = _parameter(
        64,
        int,
        "--repeat-last-n",
        "tokens that penalties look back (default {default}, -1 all)",
        metavar="N",
        low=-1,
    )
    presence_penalty: float = _parameter(
        0.0,
        float,
        "--presence-penalty",
        "subtracted from the logits of recent tokens (default {default})",
        metavar="N",
        low=-100,
        high=100,
        step="e",
        off=0.0,
    )
    frequency_penalty: float = _parameter(
        0.0,
        float,
        "--frequency-penalty",
        "the same for each occurrence (default {default})",
        metavar="N",
        low=-100,
        high=100,
        step="e",
        off=0.0,
    )
    logit_bias: Mapping[int, float] = _parameter(
        {}, str, "-l --logit-bias", "ID+BIAS or ID-BIAS", metavar="ID+B", many=True, check=_biases
    )
    ignore_eos: bool = _parameter(False, bool, "--ignore-eos", "never choose an end token")
    stop: tuple[str, ...] = _parameter(
        (),
        str,
        "-r --reverse-prompt --stop",
        "a text that ends the answer",
        metavar="TEXT",
        many=True,
        check=_stops,
    )
    json_schema: str | Mapping[str, Any] | bool | None = _parameter(
        None,
        str,
        "-j --json-schema",
        "only JSON of this schema",
        metavar="SCHEMA",
        stored=False,
        check=_schema,
    )
    grammar: str | None = _parameter(
        None,
        str,
        "--grammar",
        "only text of this GBNF (or Lark) grammar",
        metavar="TEXT",
        stored=False,
        check=_grammar,
    )
    logprobs: int | None = _parameter(
        None,
        int,
        "--logprobs",
        "log probabilities with the N likeliest tokens (with --json)",
        metavar="N",
        high=MAX_LOGPROBS,
        stored=False,
        api_names=None,
    )

    def __post_init__(self) -> None:
        if self.json_schema is not None and self.grammar is not None:
            raise UsageError(f"and {option('grammar')} are both given", option="json_schema")
        for name, parameter in PARAMETERS.items():
            object.__setattr__(self, name, parameter.checked(getattr(self, name)))

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
        values: dict[str, Any] = {}
        for layer in reversed(layers):
            for name, value in layer.items():
                if name not in PARAMETERS:
                    raise UsageError(
                        f"unknown sampling parameter {name!r}", f"known: {', '.join(sorted(PARAMETERS))}"
                    )
                if value is not None:
                    values[name] = value
        return cls(**values)


def _named(parameter: Parameter, name: str) -> Parameter:
    return replace(parameter, name=name, api_fields=tuple(n or name for n in parameter.api_fields))


PARAMETERS: Mapping[str, Parameter] = {
    f.name: _named(f.metadata["parameter"], f.name) for f in fields(SamplingParams)
}
"""The table: every field of SamplingParams, by name."""
