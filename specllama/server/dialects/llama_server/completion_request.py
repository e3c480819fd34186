"""The body of llama-server's native /completion, as sent by its own clients and by other front ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, ClassVar

from pydantic import Field

from specllama.client import protocol
from specllama.server.dialects.shared.fields import WHOLE_ITEMS, AtMost, Body, FieldError
from specllama.server.dialects.shared.prompts import MAX_CHOICES, MAX_PROMPTS, Ids
from specllama.server.dialects.shared.sampling_fields import MAX_N, SamplingFields

MAX_PARTS, MAX_TEXTS = 4096, 256  # of a prompt in parts
MAX_RESPONSE_FIELDS, MAX_FIELD_CHARS = 64, 128
Id = Annotated[int, Field(ge=0, lt=2**31)]
Mixed = Ids | Annotated[list[str | Id], AtMost(MAX_PARTS, 1), WHOLE_ITEMS]
_ALIASES = {
    "max_new_tokens": "n_predict",
    "max_completion_tokens": "n_predict",
    "stopping_strings": "stop",
    "stop_sequence": "stop",
    "sampler_seed": "seed",
    "rep_pen": "repeat_penalty",
    "rep_pen_range": "repeat_last_n",
    "repetition_penalty_range": "repeat_last_n",
    "typical": "typical_p",
    "typ_p": "typical_p",
    "tfs": "tfs_z",
    "mirostat_mode": "mirostat",
    "nsigma": "top_n_sigma",
    "ban_eos_token": "ignore_eos",
    "grammar_string": "grammar",
    "n": "n_cmpl",
}
"""Names of other front ends, and older ones of llama-server, with those that count if both are given."""


class PromptObject(Body):
    """A prompt whose text is in a field; images and sound are not supported."""

    prompt_string: str | Mixed
    multimodal_data: Annotated[list[Any], AtMost(0)] | None = None


Prompts = Annotated[list[str | Id | PromptObject | Mixed], AtMost(MAX_PARTS, 1), WHOLE_ITEMS]


class NativeRequest(SamplingFields):
    """prompt: a text, ids, a list mixing texts and ids, or a list of such prompts with an answer each.
    n_cmpl: answers per prompt. response_fields: those of the answer to send, "a/b" for field b of object a.
    """

    prompt: str | Ids | PromptObject | Prompts
    n_cmpl: Annotated[int, Field(ge=1, le=MAX_N)] = 1
    post_sampling_probs: bool = False
    return_tokens: bool = False
    response_fields: (
        Annotated[list[Annotated[str, Field(max_length=MAX_FIELD_CHARS)]], AtMost(MAX_RESPONSE_FIELDS)] | None
    ) = None
    aliases: ClassVar[Mapping[str, str]] = {**SamplingFields.aliases, **_ALIASES}

    def shows(self, field: str) -> bool:
        """Whether the answer includes this field."""
        return not self.response_fields or field in self.response_fields

    def generations(self, defaults: Mapping[str, Any]) -> list[protocol.Generate]:
        """The engine's request for each prompt. defaults: of the server. Raises FieldError."""
        limits = self.limits
        params = {**defaults, **self.sampling(logprobs=self.n_logprobs, **limits.params)}
        inputs = self.inputs()
        if len(inputs) > MAX_PROMPTS or len(inputs) * self.n_cmpl > MAX_CHOICES:
            most = f"{MAX_PROMPTS} prompts and {MAX_CHOICES} answers"
            raise FieldError(f"prompt: at most {most}", "prompt")
        return [
            protocol.Generate(
                -1,
                one,
                params=params,
                strict_schema=limits.strict,
                **self.engine_fields(),
                show_prompt=self.shows("prompt"),
                progress=self.shows_progress,
                final_probs=self.post_sampling_probs,
            )
            for one in inputs
        ]

    @property
    def supersedes(self) -> str:
        """See Service.start."""
        return ""

    @property
    def shown(self) -> Any:
        """The prompt as logged."""
        return self.prompt

    def inputs(self) -> Sequence[protocol.PromptInput]:
        """The prompts. Raises FieldError."""
        return [_input(prompt) for prompt in self._prompts()]

    def _prompts(self) -> list[str | list[Any]]:
        """Each a text, or a list of texts and ids."""
        given: Any = self.prompt
        if not isinstance(given, list) or any(isinstance(item, int) for item in given):
            given = [given]
        prompts = [one.prompt_string if isinstance(one, PromptObject) else one for one in given]
        for one in prompts:
            if isinstance(one, list) and not all(isinstance(item, (int, str)) for item in one):
                raise FieldError("prompt: ids can be mixed with texts only", "prompt")
            if isinstance(one, list) and sum(isinstance(item, str) for item in one) > MAX_TEXTS:
                raise FieldError(f"prompt: at most {MAX_TEXTS} texts among ids", "prompt")
        return prompts


def _input(prompt: str | list[Any]) -> protocol.PromptInput:
    if isinstance(prompt, str):
        return protocol.TextInput(prompt)
    if all(isinstance(item, int) for item in prompt):
        return protocol.TokenInput(prompt)
    return protocol.MixedInput(list(_parts(prompt)))


def _parts(prompt: list[Any]) -> Iterable[str | list[int]]:
    """The texts, and the ids between them as lists."""
    for is_text, items in groupby(prompt, key=lambda item: isinstance(item, str)):
        if is_text:
            yield from items
        else:
            yield list(items)
