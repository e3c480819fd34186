"""The sampling parameters of a request: how its tokens are chosen and where it ends. The only table of
them.

A field of SamplingParams defines the Python argument, the flag, the TOML key, the environment variable
and the field of the HTTP APIs, with range, default and help: to add a parameter, add a field here and
use it in sampler.py. Plain data: importing this loads no numpy.
"""

from __future__ import annotations

import copy
import functools
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from typing import Any

from specllama.errors import UsageError, option, quoted
from specllama.option import Option, Scope, option_field, options_of

MAX_BIAS = 1e6
_parameter = functools.partial(option_field, panel="Sampling", scope=Scope.PROJECT, low=0, high=2**31 - 1)


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
    """The checked value of seed: None for -1, for which one is drawn; others below 0 as one below 2^53, which
    programs whose numbers are all floats can send back.
    """
    return None if value == -1 else value % 2**53 if value < 0 else value


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


UNTIL_STOP, UNTIL_CONTEXT_FULL = -1, -2  # values of max_tokens
STEP_NAMES: Mapping[str, str] = {
    "e": "penalties", "d": "dry", "s": "top_n_sigma", "k": "top_k", "y": "typ_p", "p": "top_p", "m": "min_p",
    "x": "xtc", "t": "temperature", "i": "infill", "a": "adaptive_p",
}  # fmt: skip
"""The sampling steps, the usual ones first, in their order: letters of --sampling-seq, llama.cpp's names."""
STEPS, DEFAULT_STEPS = "".join(STEP_NAMES), "edskypmxt"
DEFAULT_SAMPLERS = tuple(STEP_NAMES[letter] for letter in DEFAULT_STEPS)
MAX_STEPS, MAX_BREAKERS = 32, 64
_BY_NAME = {name.replace("_", ""): name for name in STEP_NAMES.values()} | {
    "nucleus": "top_p", "temp": "temperature", "typ": "typ_p", "typicalp": "typ_p", "typical": "typ_p"
}  # fmt: skip
_SWITCH = {
    "dry_": "dry_multiplier", "xtc_": "xtc_probability", "mirostat_": "mirostat",
    "dynatemp_": "dynatemp_range", "adaptive_": "adaptive_target",
}  # fmt: skip
"""The parameters without which the others that begin so have no effect."""


def step_name(text: str) -> str:
    """The step that llama.cpp reads a name as, "" where there is none."""
    return _BY_NAME.get(text.lower().replace("-", "").replace("_", ""), "")


def step_names(given: Any) -> tuple[str, ...]:
    """The checked value of samplers: names, as llama.cpp reads them, or texts of names separated by ";".
    Raises UsageError.
    """
    texts = (given,) if isinstance(given, str) else given
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise UsageError(f"must be names of sampling steps, not {quoted(given)}", option="samplers")
    names = [name.strip() for text in texts for name in text.split(";") if name.strip()]
    steps = [step_name(name) for name in names]
    if "" in steps:
        unknown = names[steps.index("")][:40]
        raise UsageError(f"has {unknown!r}, only {', '.join(STEP_NAMES.values())}", option="samplers")
    if len(steps) > MAX_STEPS:
        raise UsageError(f"has {len(steps)} steps; {MAX_STEPS} are allowed", option="samplers")
    return tuple(steps)


def steps_of(letters: str, name: str = "sampling_seq") -> tuple[str, ...]:
    """The steps of letters. name: of the option, in errors. Raises UsageError."""
    if unknown := next((letter for letter in letters if letter not in STEP_NAMES), None):
        raise UsageError(f"must be letters of {STEPS}, not {unknown!r}", option=name)
    return tuple(STEP_NAMES[letter] for letter in letters)


def break_texts(given: Any) -> tuple[str, ...]:
    """The checked value of dry_sequence_breakers; one may be given by itself, and empty ones break nothing.
    Raises UsageError.
    """
    texts = (given,) if isinstance(given, str) else given
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        raise UsageError(f"must be texts, not {quoted(given)}", option="dry_sequence_breakers")
    if len(texts) > MAX_BREAKERS:
        many = f"has {len(texts)} texts; {MAX_BREAKERS} are allowed"
        raise UsageError(many, option="dry_sequence_breakers")
    return tuple(text for text in texts if text)


def base_from_one(value: float) -> float:
    """The checked value of dry_base, for which llama.cpp takes its default below 1."""
    return value if value >= 1 else 1.75


MAX_CHOICES = 128
MAX_LOGPROBS = 20  # most likely tokens reported in addition to the emitted one


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The parameters of one generation, with the defaults that hold everywhere.

    temperature: 0 chooses the most likely token. top_k: 0 switches it off. max_tokens: -1 until an end token
    or stop string, -2 until the context is full (end tokens are not chosen). repeat_last_n: tokens of history
    to which penalties apply, -1 for all. seed: None for a random one, which is reported. json_schema: the
    output is JSON of this schema, given as JSON text or as the result of json.loads. grammar: the output
    follows this grammar, GBNF or Lark. logprobs: how many of the most likely tokens are reported with each
    emitted one, 0 for the emitted one alone, None for no log probabilities. min_tokens: before so many, no
    end token and none of stop_token_ids is chosen, and no stop string counts. reasoning_budget: tokens of
    reasoning after which its end is written (text/reasoning_budget.py), -1 for any number;
    reasoning_budget_message: the text before that end. n: texts for each prompt; it is
    for the Python API, the engine writes one. repetition_penalty: another name of repeat_penalty. None stands
    for the default of any of them. Raises UsageError, which names the field.
    """

    # fmt: off
    max_tokens: int = _parameter(
        UNTIL_STOP, "-n --predict --n-predict", "tokens; -1 until it stops, -2 until the context is full",
        "N", low=UNTIL_CONTEXT_FULL, check=token_limit, api_names="n_predict")
    seed: int | None = _parameter(
        None, "--seed -s", "seed (default, or -1: a random one, reported)", "N", low=-(2**63),
        high=2**64 - 1, check=random_seed)
    temperature: float = _parameter(
        0.8, "--temp --temperature", "0 takes the likeliest token (default {default})", "T", high=10_000,
        step="t", file_key="temp")
    top_k: int = _parameter(
        40, "--top-k", "likeliest tokens kept (default {default}, 0 off)", "N", low=-1, check=off_below_zero,
        step="k", file_key="top_k")
    top_p: float = _parameter(
        0.95, "--top-p", "share of probability kept (default {default}, 1 off)", "P", high=1, step="p",
        file_key="top_p")
    min_p: float = _parameter(
        0.05, "--min-p", "least probability, relative to the best (default {default}, 0 off)", "P", high=1,
        step="m", file_key="min_p")
    top_n_sigma: float = _parameter(
        -1.0, "--top-nsigma --top-n-sigma", "standard deviations below the best (default {default}, off)",
        "N", low=-100, high=100, step="s")
    typical_p: float = _parameter(
        1.0, "--typical --typical-p", "share of probability kept, typical tokens first (default {default})",
        "P", high=1, step="y", api_names="typ_p")
    xtc_probability: float = _parameter(
        0.0, "--xtc-probability", "chance that the likeliest tokens go (default {default}, off)", "P", high=1,
        step="x", file_key="xtc_probability")
    xtc_threshold: float = _parameter(
        0.1, "--xtc-threshold", "least probability of those (default {default}, over 0.5 off)", "P", high=1,
        step="x", file_key="xtc_threshold")
    dynatemp_range: float = _parameter(
        0.0, "--dynatemp-range", "how far the temperature follows the entropy (default {default}, off)", "N",
        high=10_000, step="t")
    dynatemp_exponent: float = _parameter(
        1.0, "--dynatemp-exp", "exponent of the entropy for that (default {default})", "N", high=100,
        step="t")
    repeat_penalty: float = _parameter(
        1.0, "--repeat-penalty", "divides the logits of recent tokens (default {default}, off)", "N",
        low=0.01, high=100, step="e", api_names="repetition_penalty", file_key="penalty_repeat")
    repeat_last_n: int = _parameter(
        64, "--repeat-last-n", "tokens that penalties look back (default {default}, -1 all)", "N", low=-1,
        file_key="penalty_last_n")
    presence_penalty: float = _parameter(
        0.0, "--presence-penalty", "subtracted from the logits of recent tokens (default {default})", "N",
        low=-100, high=100, step="e")
    frequency_penalty: float = _parameter(
        0.0, "--frequency-penalty", "the same for each occurrence (default {default})", "N", low=-100,
        high=100, step="e")
    dry_multiplier: float = _parameter(
        0.0, "--dry-multiplier", "lowers what would continue a repetition (default {default}, off)", "N",
        high=100, step="d")
    dry_base: float = _parameter(
        1.75, "--dry-base", "the more by this factor for each repeated token (default {default})", "N",
        high=100, step="d", check=base_from_one)
    dry_allowed_length: int = _parameter(
        2, "--dry-allowed-length", "tokens that may be repeated (default {default})", "N", step="d")
    dry_penalty_last_n: int = _parameter(
        64, "--dry-penalty-last-n", "tokens that DRY looks back (default {default}, -1 all)", "N", low=-1,
        step="d")
    dry_sequence_breakers: tuple[str, ...] = _parameter(
        ("\n", ":", '"', "*"), "--dry-sequence-breaker", "a text that no repetition crosses, none for none",
        "TEXT", many=True, step="d", check=break_texts)
    mirostat: int = _parameter(
        0, "--mirostat", "1 or 2: Mirostat, after the temperature alone (default {default}, off)", "N",
        high=2, file_key="mirostat")
    mirostat_eta: float = _parameter(
        0.1, "--mirostat-lr", "Mirostat's learning rate (default {default})", "N", high=100,
        file_key="mirostat_eta")
    mirostat_tau: float = _parameter(
        5.0, "--mirostat-ent", "its target entropy, in bits (default {default})", "N", high=1000,
        file_key="mirostat_tau")
    adaptive_target: float = _parameter(
        -1.0, "--adaptive-target", "adaptive-p prefers this probability (default {default}, off below 0)",
        "P", low=-100, high=1, step="a")
    adaptive_decay: float = _parameter(
        0.9, "--adaptive-decay", "how long it looks back (default {default})", "P", high=0.99, step="a")
    min_keep: int = _parameter(
        0, "--min-keep", "tokens that a step leaves at least (default {default})", "N")
    samplers: tuple[str, ...] = _parameter(
        DEFAULT_SAMPLERS, "--samplers", "the sampling steps in their order, separated by ;", "NAMES",
        many=True, check=step_names)
    logit_bias: Mapping[int, float] = _parameter(
        {}, "--logit-bias -l", "ID+BIAS or ID-BIAS", "ID+B", many=True, check=token_biases)
    ignore_eos: bool = _parameter(False, "--ignore-eos", "never choose an end token")
    infill_sampling: bool = _parameter(
        False, "--infill-sampling", "llama.cpp's infill step, which ends texts early; for filling gaps",
        step="i")
    stop: tuple[str, ...] = _parameter(
        (), "--stop -r --reverse-prompt", "a text that ends the answer", "TEXT", many=True, check=stop_texts)
    json_schema: str | Mapping[str, Any] | bool | None = _parameter(
        None, "-j --json-schema", "only JSON of this schema", "SCHEMA", stored=False, check=schema_text)
    grammar: str | None = _parameter(
        None, "--grammar", "only text of this GBNF (or Lark) grammar", "TEXT", stored=False,
        check=grammar_text)
    reasoning_budget: int = _parameter(
        -1, "--reasoning-budget", "tokens of reasoning, after which its end is written (-1: no limit)", "N",
        low=-1, api_names="reasoning_budget_tokens thinking_budget_tokens thinking_budget")
    reasoning_budget_message: str = _parameter(
        "", "--reasoning-budget-message", "what is written before that end", "TEXT")
    logprobs: int | None = _parameter(
        None, "--logprobs", "log probabilities with the N likeliest tokens (with --json)", "N",
        high=MAX_LOGPROBS, stored=False, api_names=None)
    stop_token_ids: Sequence[int] = _parameter(
        (), "", "tokens that end the answer", kind=int, many=True, stored=False, check=token_ids)
    min_tokens: int = _parameter(0, "", "tokens before which nothing ends it", stored=False)
    skip_special_tokens: bool = _parameter(True, "", "leave control tokens out", stored=False)
    n: int = _parameter(1, "", "texts", low=1, high=MAX_CHOICES, stored=False, api_names=None)
    # fmt: on
    repetition_penalty: InitVar[float | None] = None

    def __post_init__(self, repetition_penalty: float | None) -> None:
        if repetition_penalty is not None:
            object.__setattr__(self, "repeat_penalty", repetition_penalty)
        if self.json_schema is not None and self.grammar is not None:
            raise UsageError(f"and {option('grammar')} are both given", option="json_schema")
        for name, entry in PARAMETERS.items():
            value = getattr(self, name)
            checked = copy.copy(entry.default) if value is None else entry.checked(value)
            object.__setattr__(self, name, checked)
        steps = list(self.samplers)
        if self.infill_sampling and "infill" not in steps:
            steps.insert(steps.index("temperature") if "temperature" in steps else len(steps), "infill")
            object.__setattr__(self, "samplers", tuple(steps))
        object.__setattr__(self, "infill_sampling", "infill" in steps)
        if self.min_tokens > self.max_tokens > 0:
            raise UsageError(
                f"must not exceed {option('max_tokens')}: {self.min_tokens} is more than {self.max_tokens}",
                option="min_tokens",
            )

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token of those left is chosen."""
        uses = self.mirostat > 0 or ("temperature" in self.samplers and self.dynatemp_range == 0)
        return self.temperature == 0 and uses

    @property
    def penalised(self) -> bool:
        """Whether the penalties depend on the history."""
        return self.repeat_last_n != 0 and (
            self.repeat_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0
        )

    def without_effect(self, given: Collection[str]) -> list[str]:
        """What has no effect of the parameters that are given by name, a sentence for each reason."""
        reasons: dict[str, list[str]] = {}
        for name in (n for n in given if getattr(self, n) != PARAMETERS[n].default):
            switch = next((s for begin, s in _SWITCH.items() if name.startswith(begin) and name != s), "")
            if reason := self._why_idle(name, switch):
                reasons.setdefault(reason, []).append(option(name))
        sentences = []
        for reason, names in reasons.items():
            listed = ", ".join(names[:-1]) + " and " * (len(names) > 1) + names[-1]
            sentences.append(f"{listed} {'have' if len(names) > 1 else 'has'} no effect{reason}")
        return sentences

    def _why_idle(self, name: str, switch: str) -> str:
        """Why a parameter has no effect, "" where it has one. switch: the one that it needs, "" for none."""
        step = STEP_NAMES.get(PARAMETERS[name].step, "")
        of_steps = name in ("samplers", "min_keep", "repeat_last_n") or (step and name != "temperature")
        if self.mirostat and of_steps:
            return f" with {option('mirostat')}"
        if step and step not in self.samplers and not self.mirostat:
            return f": {step} is not among the samplers"
        if switch and getattr(self, switch) == PARAMETERS[switch].default:
            return f" without {option(switch)}"
        return ": above 0.5 xtc is off" if name == "xtc_threshold" and self.xtc_threshold > 0.5 else ""

    @classmethod
    def merge(cls, *layers: Mapping[str, Any]) -> SamplingParams:
        """Build from mappings; the first with a value other than None for a field wins. Raises UsageError for
        unknown names and invalid values.
        """
        values: dict[str, Any] = {}
        for layer in reversed(layers):
            values |= {name: v for name, v in layer.items() if v is not None or name not in values}
        _check_names(values)
        return cls(**values)


PARAMETERS: Mapping[str, Option] = options_of(SamplingParams)
"""The entry of each field of SamplingParams, by name."""
_init = SamplingParams.__init__


def _check_names(names: Iterable[Any]) -> None:
    """Raises UsageError for a name that is unknown."""
    for name in names:
        if name not in PARAMETERS and name != "repetition_penalty":
            from difflib import get_close_matches

            close = get_close_matches(str(name)[:100], PARAMETERS, n=3)
            near = f"did you mean {' or '.join(close)}?"
            hint = near if close else f"known: {', '.join(sorted(PARAMETERS))}"
            raise UsageError(f"unknown sampling parameter {quoted(name)}", hint)


@functools.wraps(_init)
def _checked_init(self: SamplingParams, *args: Any, **given: Any) -> None:
    _check_names(given)  # of which Python would make a TypeError
    _init(self, *args, **given)


SamplingParams.__init__ = _checked_init  # type: ignore[method-assign]


# Deriving seeds from seeds, in plain integers: fronts use this without importing numpy.


_MASK64, _MASK53 = (1 << 64) - 1, (1 << 53) - 1
GOLDEN = 0x9E3779B97F4A7C15


def splitmix64(x: int) -> int:
    """The mixing function of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), from 64 bits to 64 bits."""
    x = (x + GOLDEN) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def nth_seed(seed: int, n: int) -> int:
    """The seed of the n-th text of a request, counted from 0; `seed` itself for the first. The others are
    below 2^53, so that programs whose numbers are all floats can send them back.
    """
    return seed if n == 0 else splitmix64(seed ^ splitmix64(n)) & _MASK53
