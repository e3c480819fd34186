"""The sampling parameters of a request: how its tokens are chosen and where it ends. The only table of them.

A field of SamplingParams defines the Python argument, the flag, the TOML key, the environment variable and
the field of the HTTP APIs, with range, default and help: to add a parameter, add a field here and use it in
sampler.py. Plain data: importing this loads no numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, fields, replace
from typing import Any

from specllama.core.sampling.parameter import (
    Parameter,
    grammar_text,
    off_below_zero,
    parameter,
    random_seed,
    schema_text,
    stop_texts,
    token_biases,
    token_ids,
    token_limit,
)
from specllama.errors import UsageError, option

UNTIL_STOP, UNTIL_CONTEXT_FULL = -1, -2  # values of max_tokens
STEP_NAMES: Mapping[str, str] = {
    "e": "penalties", "k": "top_k", "p": "top_p", "m": "min_p", "i": "infill", "t": "temperature"
}  # fmt: skip
"""The sampling steps in their order: letters of --sampling-seq, and llama.cpp's names."""
STEPS = "".join(STEP_NAMES)
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
    end token and none of stop_token_ids is chosen, and no stop string counts. n: texts for each prompt; it is
    for the Python API, the engine writes one. repetition_penalty: another name of repeat_penalty. None stands
    for the default of any of them. Raises UsageError, which names the field.
    """

    max_tokens: int = parameter(
        UNTIL_STOP,
        int,
        "-n --predict --n-predict",
        "tokens; -1 until it stops, -2 until the context is full",
        metavar="N",
        low=UNTIL_CONTEXT_FULL,
        check=token_limit,
        api_names="n_predict",
    )
    seed: int | None = parameter(
        None,
        int,
        "--seed -s",
        "seed (default, or -1: a random one, reported)",
        metavar="N",
        low=-1,
        high=2**64 - 1,
        check=random_seed,
    )
    temperature: float = parameter(
        0.8,
        float,
        "--temp --temperature",
        "0 takes the likeliest token (default {default})",
        metavar="T",
        high=10_000,
        step="t",
        off=1.0,
        file_key="temp",
    )
    top_k: int = parameter(
        40,
        int,
        "--top-k",
        "likeliest tokens kept (default {default}, 0 off)",
        metavar="N",
        low=-1,
        check=off_below_zero,
        step="k",
        off=0,
        file_key="top_k",
    )
    top_p: float = parameter(
        0.95,
        float,
        "--top-p",
        "share of probability kept (default {default}, 1 off)",
        metavar="P",
        high=1,
        step="p",
        off=1.0,
        file_key="top_p",
    )
    min_p: float = parameter(
        0.05,
        float,
        "--min-p",
        "least probability, relative to the best (default {default}, 0 off)",
        metavar="P",
        high=1,
        step="m",
        off=0.0,
        file_key="min_p",
    )
    repeat_penalty: float = parameter(
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
        file_key="penalty_repeat",
    )
    repeat_last_n: int = parameter(
        64,
        int,
        "--repeat-last-n",
        "tokens that penalties look back (default {default}, -1 all)",
        metavar="N",
        low=-1,
        file_key="penalty_last_n",
    )
    presence_penalty: float = parameter(
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
    frequency_penalty: float = parameter(
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
    logit_bias: Mapping[int, float] = parameter(
        {}, str, "--logit-bias -l", "ID+BIAS or ID-BIAS", metavar="ID+B", many=True, check=token_biases
    )
    ignore_eos: bool = parameter(False, bool, "--ignore-eos", "never choose an end token")
    infill_sampling: bool = parameter(
        False,
        bool,
        "--infill-sampling",
        "llama.cpp's infill step, which ends texts early; for filling gaps",
        step="i",
        off=False,
        on=True,
    )
    stop: tuple[str, ...] = parameter(
        (),
        str,
        "--stop -r --reverse-prompt",
        "a text that ends the answer",
        metavar="TEXT",
        many=True,
        check=stop_texts,
    )
    json_schema: str | Mapping[str, Any] | bool | None = parameter(
        None,
        str,
        "-j --json-schema",
        "only JSON of this schema",
        metavar="SCHEMA",
        stored=False,
        check=schema_text,
    )
    grammar: str | None = parameter(
        None,
        str,
        "--grammar",
        "only text of this GBNF (or Lark) grammar",
        metavar="TEXT",
        stored=False,
        check=grammar_text,
    )
    logprobs: int | None = parameter(
        None,
        int,
        "--logprobs",
        "log probabilities with the N likeliest tokens (with --json)",
        metavar="N",
        high=MAX_LOGPROBS,
        stored=False,
        api_names=None,
    )
    stop_token_ids: Sequence[int] = parameter(
        (), int, "", "tokens that end the answer", many=True, stored=False, check=token_ids
    )
    min_tokens: int = parameter(0, int, "", "tokens before which nothing ends it", stored=False)
    skip_special_tokens: bool = parameter(True, bool, "", "leave control tokens out", stored=False)
    n: int = parameter(1, int, "", "texts", low=1, high=MAX_CHOICES, stored=False, api_names=None)
    repetition_penalty: InitVar[float | None] = None

    def __post_init__(self, repetition_penalty: float | None) -> None:
        if repetition_penalty is not None:
            object.__setattr__(self, "repeat_penalty", repetition_penalty)
        if self.json_schema is not None and self.grammar is not None:
            raise UsageError(f"and {option('grammar')} are both given", option="json_schema")
        for name, entry in PARAMETERS.items():
            object.__setattr__(self, name, entry.checked(getattr(self, name)))
        if self.min_tokens > self.max_tokens > 0:
            raise UsageError(
                f"must not exceed {option('max_tokens')}: {self.min_tokens} is more than {self.max_tokens}",
                option="min_tokens",
            )

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
        """Build from mappings; the first with a value other than None for a field wins. Raises UsageError for
        unknown names and invalid values.
        """
        values: dict[str, Any] = {}
        for layer in reversed(layers):
            for name, value in layer.items():
                if name not in PARAMETERS and name != "repetition_penalty":
                    raise UsageError(
                        f"unknown sampling parameter {name!r}", f"known: {', '.join(sorted(PARAMETERS))}"
                    )
                if value is not None:
                    values[name] = value
        return cls(**values)


def with_steps(letters: str) -> dict[str, object]:
    """The parameters that switch the sampling steps off that are missing in `letters`, and those on that only
    run where they are asked for. letters: some of STEPS. Raises ValueError for others, and another order.
    """
    if "".join(c for c in STEPS if c in letters) != letters:
        raise ValueError(f"must be letters of {STEPS} in that order, not {letters!r}")
    off = {name: p.off for name, p in PARAMETERS.items() if p.step and p.step not in letters}
    return off | {name: p.on for name, p in PARAMETERS.items() if p.on is not None and p.step in letters}


def _named(entry: Parameter, name: str) -> Parameter:
    return replace(entry, name=name, api_fields=tuple(n or name for n in entry.api_fields))


PARAMETERS: Mapping[str, Parameter] = {
    f.name: _named(f.metadata["parameter"], f.name) for f in fields(SamplingParams)
}
"""The entry of each field of SamplingParams, by name."""
DEFAULT_STEPS = "".join(
    letter for letter in STEPS if all(p.on is None for p in PARAMETERS.values() if p.step == letter)
)
"""The steps that are used unless --sampling-seq says otherwise."""
