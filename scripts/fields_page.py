"""Writes docs/fields.md: every field of llama-server's routes and every option of Ollama's API, and what it
does here. The table has the fields and why; whether a field has an effect is asked of the server's own code.

python -m scripts.fields_page            writes it
python -m scripts.fields_page --check    exit code 1 if it is not up to date, or the code has a field more
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from specllama.images import MEDIA_MARKER
from specllama.server.dialects.llama_server.completion import InfillRequest, NativeRequest
from specllama.server.dialects.ollama import OllamaChatRequest, OllamaGenerateRequest, OllamaOptions
from specllama.server.dialects.openai.routes import ChatRequest
from specllama.server.dialects.shared.fields import FieldError, RequestBody, checked

PAGE = Path(__file__).parent.parent / "docs" / "fields.md"
_HEAD = """# Fields of llama-server and Ollama

Every field that llama-server documents or reads in its routes (llama.cpp's `tools/server`, as of
llama-cpp-python 0.3.36) and every one of Ollama's API, and what it does here. *Honoured*: it has the effect
that it has there. *Refused*: it would change the text, and there is an error that names it. *Without effect*:
it changes neither the text nor the form of the answer. *Named*: without effect, and listed in the answer's
`ignored_fields`. A value that switches a refused field off is accepted. [Fields of all
APIs](serve.md#fields) says where else they may stand.

This page is generated: `python -m scripts.fields_page`.
"""


class Section(NamedTuple):
    """A route. base: the least body. inside: whether the fields stand in `options`."""

    title: str
    model: type[RequestBody]
    base: Mapping[str, Any]
    rows: str
    inside: bool = False


# A field, a value that differs from its default (Python), and a remark.
_SAMPLING = """
temperature | 0.5 |
dynatemp_range | 0.5 |
dynatemp_exponent | 2.0 | with `dynatemp_range`
top_k | 5 |
top_p | 0.5 |
min_p | 0.2 |
top_n_sigma | 1.0 |
xtc_probability | 0.5 |
xtc_threshold | 0.2 | with `xtc_probability`
typical_p | 0.5 |
typ_p | 0.5 | as `typical_p`
repeat_last_n | 5 |
repeat_penalty | 1.2 |
presence_penalty | 0.5 |
frequency_penalty | 0.5 |
dry_multiplier | 0.8 |
dry_base | 2.0 | with `dry_multiplier`
dry_allowed_length | 3 | with `dry_multiplier`
dry_penalty_last_n | 7 | with `dry_multiplier`
dry_sequence_breakers | ["x"] | with `dry_multiplier`
mirostat | 2 |
mirostat_tau | 3.0 | with `mirostat`
mirostat_eta | 0.2 | with `mirostat`
adaptive_target | 0.5 |
adaptive_decay | 0.5 | with `adaptive_target`
samplers | ["top_k", "temperature"] |
min_keep | 2 |
seed | 7 |
ignore_eos | True |
logit_bias | [[5, 1.0]] |
grammar | 'root ::= "a"' |
json_schema | {"type": "object"} |
"""
_NATIVE = (
    """
prompt | "y" |
model | "m" |
stream | True |
n_predict | 5 | also `max_tokens`, `max_completion_tokens`
max_tokens | 5 |
max_completion_tokens | 5 |
n_indent | 2 |
n_keep | 5 | texts end where the context is full, and are not shifted
n_discard | 5 | as `n_keep`
n_cmpl | 2 | also `n`
n | 2 |
n_cache_reuse | 5 | what of a prompt was evaluated is reused by itself; no cells are shifted
stop | ["x"] |
"""
    + _SAMPLING
    + """
n_probs | 2 | also `logprobs`
logprobs | 2 |
post_sampling_probs | True |
t_max_prompt_ms | 5 |
t_max_predict_ms | 5 | with or without a line's end in the text
id_slot | 0 | the server chooses the slot
cache_prompt | False | `{"cache": {"reuse": false}}` evaluates all of the prompt
return_tokens | True |
timings_per_token | True |
return_progress | True |
sse_ping_interval | 5 | silent streams get a ping every 15 s
response_fields | ["content"] |
verbose | True |
include_usage | True | `stream_options.include_usage` is the field
stream_options | {"include_usage": True} |
lora | [{"id": 0, "scale": 0.5}] | adapters are loaded with the model (`--lora`)
backend_sampling | True | where sampling is computed
speculative.n_max | 4 | as `speculation.max`
speculative.n_min | 1 | the server decides the lengths of drafts by what they gain
speculative.p_min | 0.5 | as `speculative.n_min`
speculative.type | "draft" | the server drafts by what it has; `speculation.enabled` switches drafts off
speculative.ngram_size_n | 5 | as `speculative.type`
speculative.ngram_size_m | 5 | as `speculative.type`
speculative.ngram_min_hits | 5 | as `speculative.type`
echo | True |
preserved_tokens | ["x"] | control tokens of calls are shown by themselves
grammar_lazy | True | calls begin by themselves
grammar_triggers | [{"type": 1, "value": "x"}] | with `grammar_lazy`
reasoning_control | True |
reasoning_budget_tokens | 5 | where the prompt ends within reasoning
reasoning_budget_message | "x" |
reasoning_budget_start_tag | "<a>" | tags are those of the model's family
reasoning_budget_end_tags | ["</a>"] | as `reasoning_budget_start_tag`
reasoning_budget_end_tag | "</a>" | as `reasoning_budget_start_tag`
reasoning_format | "none" | texts are not split here
chat_format | "x" | calls and reasoning are read as the model's family writes them
chat_parser | "x" | as `chat_format`
generation_prompt | "x" | as `chat_format`
parse_tool_calls | True | texts have no calls here
continue_final_message | True | texts go on as they are
"""
)
_CHAT = """
messages | [{"role": "user", "content": "y"}] |
chat_template_kwargs | {"a": 1} |
reasoning_effort | "low" | a budget where the template knows no efforts
reasoning_format | "none" |
reasoning_control | True |
reasoning_budget_tokens | 5 | also `thinking_budget_tokens`
thinking_budget_tokens | 5 |
reasoning_budget_message | "x" |
generation_prompt | "x" | the chat template's own end
parse_tool_calls | False | `tools` is without
parallel_tool_calls | False | with `tools`
tools | [{"type": "function", "function": {"name": "f"}}] |
tool_choice | "none" | with `tools`
response_format | {"type": "json_object"} |
add_generation_prompt | False |
continue_final_message | False | of a last message of the assistant
logprobs | True |
top_logprobs | 2 | with `logprobs`
max_completion_tokens | 5 |
"""
_INFILL = """
input_prefix | "y" |
input_suffix | "z" |
input_extra | [{"text": "y"}] |
prompt | "y" |
id_slot | 0 | a newer request with this number ends the older one
"""
_OLLAMA = """
model | "m" |
stream | False |
format | "json" |
keep_alive | "5m" |
think | "low" | `"low"` and `"medium"` are budgets where the template knows no efforts
logprobs | True |
top_logprobs | 2 | with `logprobs`
truncate | False | a prompt that does not fit is an error
shift | False | texts end where the context is full
options | {"top_k": 5} | below
"""
_OLLAMA_CHAT = """
messages | [{"role": "user", "content": "y"}] |
tools | [{"type": "function", "function": {"name": "f"}}] |
"""
_OLLAMA_GENERATE = """
prompt | "y" |
suffix | "y" |
system | "y" |
raw | True |
images | ["aGk="] | with a model that reads [images](images.md); they stand before the prompt
template | "{{ .Prompt }}" | the model's own
context | [1] | send the conversation to `/api/chat`
"""
_OPTIONS = """
num_keep | 5 | texts end where the context is full, and are not shifted
seed | 7 |
num_predict | 5 | 0 and less: no limit, as in Ollama
draft_num_predict | 4 | as `speculation.max`; 0: no drafts
top_k | 5 |
top_p | 0.5 |
min_p | 0.2 |
typical_p | 0.5 |
tfs_z | 0.5 | llama.cpp has this sampler no more
repeat_last_n | 5 |
temperature | 0.5 |
repeat_penalty | 1.2 |
presence_penalty | 0.5 |
frequency_penalty | 0.5 |
mirostat | 1 |
mirostat_tau | 3.0 | with `mirostat`
mirostat_eta | 0.2 | with `mirostat`
penalize_newline | True | llama.cpp has this option no more
stop | ["x"] |
num_ctx | 64 | `-c` of the server; more than that is logged
num_batch | 64 | `-b` of the server
num_gpu | 1 | `-ngl` of the server
main_gpu | 1 | `--main-gpu` of the server
num_thread | 2 | `-t` of the server
num_gqa | 8 | in the model's file
numa | True | how the model is loaded
low_vram | True | how the model is loaded
f16_kv | False | `-ctk`, `-ctv` of the server
logits_all | True | how the model is loaded
vocab_only | False | how the model is loaded
use_mmap | False | how the model is loaded
use_mlock | True | how the model is loaded
embedding_only | False | how the model is loaded
rope_frequency_base | 1e6 | `--rope-freq-base` of the server
rope_frequency_scale | 0.5 | `--rope-freq-scale` of the server
"""
_Q = {"messages": [{"role": "user", "content": "x"}]}
SECTIONS = (
    Section("llama-server: `POST /completion`", NativeRequest, {"prompt": "x"}, _NATIVE),
    Section(
        "llama-server: `POST /v1/chat/completions`, besides those of `/completion`", ChatRequest, _Q, _CHAT
    ),
    Section(
        "llama-server: `POST /infill`, besides those of `/completion`",
        InfillRequest,
        {"input_prefix": "x", "input_suffix": "x"},
        _INFILL,
    ),
    Section("Ollama: `POST /api/chat`", OllamaChatRequest, _Q, _OLLAMA + _OLLAMA_CHAT),
    Section(
        "Ollama: `POST /api/generate`", OllamaGenerateRequest, {"prompt": "x"}, _OLLAMA + _OLLAMA_GENERATE
    ),
    Section("Ollama: `options` of both", OllamaChatRequest, _Q, _OPTIONS, inside=True),
)
_WITH: Mapping[str, Mapping[str, Any]] = {
    "top_logprobs": {"logprobs": True},
    "n_probs": {},
    "post_sampling_probs": {"n_probs": 1},
    "return_progress": {"stream": True},
    "parallel_tool_calls": {"tools": [{"type": "function", "function": {"name": "f"}}]},
    "tool_choice": {"tools": [{"type": "function", "function": {"name": "f"}}]},
    "continue_final_message": {
        "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    },
}
"""Fields that have to be there for another one to have an effect; chat alone has them."""
_OTHERS = {
    "speculation", "prediction", "cache", "keep_alive", "options", "num_ctx",
    "guided_choice", "guided_grammar", "guided_json", "guided_json_object", "guided_regex",
    "infill_sampling", "min_tokens", "output_config", "output_format", "reasoning_budget",
    "repetition_penalty", "structured_outputs", "skip_special_tokens", "stop_token_ids",
    "text", "thinking_budget",
}  # fmt: skip
"""Fields of this server and of other APIs, which docs/serve.md describes."""


def rows(section: Section) -> Iterator[tuple[str, Any, str]]:
    """Each field of a section with its value and its remark."""
    for line in section.rows.strip().splitlines():
        if line:
            name, value, remark = (part.strip() for part in line.split(" |", 2))
            yield name, eval(value), remark


def effect(section: Section, name: str, value: Any) -> str:
    """What a field does there."""
    base = dict(section.base)
    for other, needed in _WITH.get(name, {}).items():
        if section.model is ChatRequest or other in ("stream", "n_probs", "logprobs"):
            base[other] = needed
    with_it = base | ({"options": {name: value}} if section.inside else {name: value})
    try:
        before, after = checked(section.model, base), checked(section.model, with_it)
        facts = _facts(before), _facts(after)
    except FieldError:
        return "refused"
    if facts[0] != facts[1]:
        return "honoured"
    return "named" if after.ignored_fields else "without effect"


def _facts(body: Any) -> object:
    """What becomes of a body: the engine's requests, and the form of the answer."""
    if hasattr(body, "check"):
        body.check()
    if given := body.given_images:
        body.place_images({image.number: MEDIA_MARKER for image in given}, ())
    shown = body.answer_options("", created=0.0, request_id="")
    form = {name: getattr(shown, name) for name in shown.__slots__ if name != "ignored"}
    native = body.native_options(lambda: ((), ())) if isinstance(body, NativeRequest) else None
    return (
        body.generations({}, {}), form, body.stream, body.keep_alive, body.n_choices,
        body.shown_reasoning, body.supersedes,
        native and [getattr(native, name) for name in native.__slots__ if name != "model_facts"],
    )  # fmt: skip


def missing() -> list[str]:
    """The fields of the server's code that the table does not have."""
    here = {name for section in SECTIONS for name, _, _ in rows(section)}
    known = {field.alias or name for name, field in NativeRequest.model_fields.items()}
    options = {field.alias or name for name, field in OllamaOptions.model_fields.items()}
    return sorted((known | options) - here - _OTHERS)


def page() -> str:
    """The text of the page."""
    parts = [_HEAD]
    for section in SECTIONS:
        parts.append(f"\n## {section.title}\n\n| field | here | |\n|---|---|---|\n")
        for name, value, remark in rows(section):
            parts.append(f"| `{name}` | {effect(section, name, value)} | {remark} |\n")
    return "".join(parts)


if __name__ == "__main__":
    if forgotten := missing():
        sys.exit(f"not in the table of scripts/fields_page.py: {', '.join(forgotten)}")
    if sys.argv[1:] == ["--check"]:
        sys.exit(PAGE.read_text("utf-8") != page())
    PAGE.write_text(page(), "utf-8")
