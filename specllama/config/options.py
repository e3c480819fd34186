"""The options of the commands: one table, from which flags, environment variables and TOML keys are made.

Spellings are llama.cpp's. Every default is None: what nobody set is decided in settings.py and params.py
alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specllama.cli.completion import GGUF, LIST
from specllama.config.load import CACHE_TYPES, DRAFTERS


@dataclass(frozen=True, slots=True)
class Option:
    """One option. kind: the type of its value; many: may be given several times; stored: allowed in files and
    environment. completes: what a shell offers behind the flag: words, GGUF for such files, LIST in front of
    words that are joined by commas; () leaves it to the shell, which offers files.
    """

    name: str
    flags: tuple[str, ...]
    kind: type
    help: str
    panel: str
    metavar: str | None = None
    many: bool = False
    stored: bool = True
    completes: tuple[str, ...] = ()


_COMPLETES: Mapping[str, tuple[str, ...]] = {
    "model": (GGUF,),
    "workloads": (LIST, "explain", "source", "json", "edit", "free"),
    "lora": (GGUF,),
    "lora_scaled": (GGUF,),
    "draft_model": (GGUF, "auto", "none"),
    "draft_models": (GGUF, "auto", "none"),
    "devices": ("none",),
    "devices_draft": ("none",),
    "n_gpu_layers": ("auto", "all"),
    "n_gpu_layers_draft": ("auto", "all"),
    "split_mode": ("none", "layer", "row", "tensor"),
    "cache_type_k": CACHE_TYPES,
    "cache_type_v": CACHE_TYPES,
    "cache_type_k_draft": CACHE_TYPES,
    "cache_type_v_draft": CACHE_TYPES,
    "flash_attn": ("on", "off", "auto"),
    "rope_scaling": ("none", "linear", "yarn"),
    "reasoning": ("on", "off", "auto"),
    "drafters": (LIST, *DRAFTERS, "none"),
    "draft_max": ("auto",),
}


def table(panel: str, *rows: tuple[Any, ...], stored: bool = True) -> list[Option]:
    options = []
    for name, flags, kind, text, *rest in rows:
        metavar = rest[0] if rest else None
        many = kind is list
        completes = _COMPLETES.get(name, ())
        kind = str if many else kind
        options.append(
            Option(name, tuple(flags.split()), kind, text, panel, metavar, many, stored, completes)
        )
    return options


PROMPT = table(
    "Prompt",
    ("prompt", "-p --prompt", str, "the prompt; without -p and -f it is read from standard input", "TEXT"),
    ("file", "-f --file", str, "read the prompt from a file", "FILE"),
    ("system_prompt", "-sys --system-prompt", str, "the system message", "TEXT"),
    ("raw", "--raw", bool, "no chat template; control tokens in the prompt are parsed"),
    stored=False,
)
TEMPLATE = table(
    "Prompt",
    ("chat_template", "--chat-template", str, "a Jinja template instead of the model's own", "TEXT"),
    ("chat_template_file", "--chat-template-file", str, "the same from a file", "FILE"),
    ("reasoning", "--reasoning", str, "on, off or auto: let the model think before it answers", "MODE"),
)
MODEL = table(
    "Model",
    (
        "model",
        "-m --model",
        str,
        "the target: a GGUF file, a name (specllama models) or user/repo:QUANT (default: the embedded pair)",
        "MODEL",
    ),
    ("hf_repo", "-hf -hfr --hf-repo", str, "the target from the hub: user/repo[:QUANT]", "REPO"),
    (
        "n_ctx",
        "-c --ctx-size",
        int,
        "context in tokens (default: what the model has, 8192 at most, what fits)",
        "N",
    ),
    ("n_batch", "-b --batch-size", int, "most tokens of one decode (default 2048)", "N"),
    ("n_ubatch", "-ub --ubatch-size", int, "tokens computed at once (default 512)", "N"),
    ("n_threads", "-t --threads", int, "threads (default: physical cores)", "N"),
    ("n_threads_batch", "-tb --threads-batch", int, "threads for batches (default: -t)", "N"),
    (
        "n_gpu_layers",
        "-ngl --gpu-layers --n-gpu-layers",
        str,
        "layers on the GPU: a number, auto or all",
        "N",
    ),
    ("devices", "-dev --device", str, "devices, separated by commas; none for the CPU alone", "NAMES"),
    ("tensor_split", "-ts --tensor-split", str, "share of each device, separated by commas", "A,B,..."),
    ("split_mode", "-sm --split-mode", str, "how to split over devices: none, layer, row, tensor", "MODE"),
    ("main_gpu", "-mg --main-gpu", int, "the device for -sm none", "N"),
    ("rpc", "--rpc", str, "RPC workers for the target: host:port, separated by commas", "LIST"),
    (
        "override_tensor",
        "-ot --override-tensor",
        list,
        "PATTERN=BUFFER: where tensors of this name go",
        "P=B",
    ),
    ("cpu_moe", "-cmoe --cpu-moe", bool, "keep all experts on the CPU"),
    ("n_cpu_moe", "-ncmoe --n-cpu-moe", int, "keep the experts of the first N layers on the CPU", "N"),
    ("cache_type_k", "-ctk --cache-type-k", str, "type of the K cache: f16, q8_0, ...", "TYPE"),
    ("cache_type_v", "-ctv --cache-type-v", str, "type of the V cache", "TYPE"),
    ("flash_attn", "-fa --flash-attn", str, "flash attention: on, off or auto", "MODE"),
    ("no_mmap", "--no-mmap", bool, "read the file instead of mapping it"),
    ("mlock", "--mlock", bool, "keep the model in memory"),
    ("rope_scaling", "--rope-scaling", str, "none, linear or yarn", "KIND"),
    ("rope_scale", "--rope-scale", float, "context scaling factor", "N"),
    ("rope_freq_base", "--rope-freq-base", float, "RoPE base frequency", "N"),
    ("rope_freq_scale", "--rope-freq-scale", float, "RoPE frequency scale", "N"),
    ("yarn_orig_ctx", "--yarn-orig-ctx", int, "YaRN: the original context", "N"),
    ("yarn_ext_factor", "--yarn-ext-factor", float, "YaRN: extrapolation mix", "N"),
    ("yarn_attn_factor", "--yarn-attn-factor", float, "YaRN: attention factor", "N"),
    ("yarn_beta_slow", "--yarn-beta-slow", float, "YaRN: high correction dimension", "N"),
    ("yarn_beta_fast", "--yarn-beta-fast", float, "YaRN: low correction dimension", "N"),
    ("lora", "--lora", list, "a LoRA adapter for the target", "FILE"),
    ("lora_scaled", "--lora-scaled", list, "FILE:SCALE, a LoRA adapter with a scale", "FILE:N"),
)
DRAFT = table(
    "Speculation",
    (
        "draft_model",
        "-md --model-draft --spec-draft-model",
        str,
        "the draft: as -m, auto (default: the known one if it is on disk) or none",
        "MODEL",
    ),
    ("hf_repo_draft", "-hfd -hfrd --hf-repo-draft", str, "the draft from the hub: user/repo[:QUANT]", "REPO"),
    ("force", "--force", bool, "download a pair although the check of its headers is against it"),
    ("drafters", "--drafters", str, "who drafts (default model,copy,grammar); none for nobody", "NAMES"),
    (
        "draft_max",
        "--draft-max --draft --draft-n --spec-draft-n-max",
        str,
        "draft tokens of a round; auto (default) decides by measured cost, 0 switches drafts off",
        "N",
    ),
    (
        "draft_min",
        "--draft-min --draft-n-min --spec-draft-n-min",
        int,
        "verify no draft shorter than this",
        "N",
    ),
    ("draft_p_min", "--draft-p-min --spec-draft-p-min", float, "stop a draft below this confidence", "P"),
    (
        "n_ctx_draft",
        "-cd --ctx-size-draft --spec-draft-ctx-size",
        int,
        "context of the draft (default: -c)",
        "N",
    ),
    ("n_threads_draft", "-td --threads-draft", int, "threads of the draft (default: -t)", "N"),
    ("n_threads_batch_draft", "-tbd --threads-batch-draft", int, "threads for the draft's batches", "N"),
    (
        "n_gpu_layers_draft",
        "-ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl",
        str,
        "layers of the draft on the GPU",
        "N",
    ),
    ("devices_draft", "-devd --device-draft --spec-draft-device", str, "devices of the draft", "NAMES"),
    ("override_tensor_draft", "-otd --override-tensor-draft", list, "PATTERN=BUFFER for the draft", "P=B"),
    ("cpu_moe_draft", "-cmoed --cpu-moe-draft", bool, "keep all experts of the draft on the CPU"),
    ("n_cpu_moe_draft", "-ncmoed --n-cpu-moe-draft", int, "keep experts of the draft on the CPU", "N"),
    ("cache_type_k_draft", "-ctkd --cache-type-k-draft", str, "type of the draft's K cache", "TYPE"),
    ("cache_type_v_draft", "-ctvd --cache-type-v-draft", str, "type of the draft's V cache", "TYPE"),
    ("exact", "--exact", bool, "decide near-ties on rows decoded alone, always"),
    ("no_calibrate", "--no-calibrate", bool, "measure nothing after the answer, store nothing"),
    ("no_memory", "--no-memory", bool, "draft from this request alone, not from earlier ones of the process"),
)
SAMPLING = table(
    "Sampling",
    (
        "max_tokens",
        "-n --predict --n-predict",
        int,
        "tokens; -1 until it stops, -2 until the context is full",
        "N",
    ),
    ("seed", "-s --seed", int, "seed (default, or -1: a random one, reported)", "N"),
    ("temperature", "--temp --temperature", float, "0 takes the likeliest token (default 0.8)", "T"),
    ("top_k", "--top-k", int, "likeliest tokens kept (default 40, 0 off)", "N"),
    ("top_p", "--top-p", float, "share of probability kept (default 0.95, 1 off)", "P"),
    ("min_p", "--min-p", float, "least probability, relative to the best (default 0.05, 0 off)", "P"),
    (
        "repeat_penalty",
        "--repeat-penalty",
        float,
        "divides the logits of recent tokens (default 1, off)",
        "N",
    ),
    ("repeat_last_n", "--repeat-last-n", int, "tokens that penalties look back (default 64, -1 all)", "N"),
    (
        "presence_penalty",
        "--presence-penalty",
        float,
        "taken from the logits of recent tokens (default 0)",
        "N",
    ),
    ("frequency_penalty", "--frequency-penalty", float, "the same for each occurrence (default 0)", "N"),
    ("logit_bias", "-l --logit-bias", list, "ID+BIAS or ID-BIAS", "ID+B"),
    ("ignore_eos", "--ignore-eos", bool, "never choose an end token"),
    ("sampling_seq", "--sampling-seq --sampler-seq", str, "steps used, of ekpmt (default ekpmt)", "LETTERS"),
    ("stop", "-r --reverse-prompt --stop", list, "a text that ends the answer", "TEXT"),
)
STRUCTURE = table(
    "Structured output",
    ("json_schema", "-j --json-schema", str, "only JSON of this schema", "SCHEMA"),
    ("json_schema_file", "-jf --json-schema-file", str, "the same, the schema from a file", "FILE"),
    ("grammar", "--grammar", str, "only text of this GBNF (or Lark) grammar", "TEXT"),
    ("grammar_file", "--grammar-file", str, "the same, the grammar from a file", "FILE"),
    ("logprobs", "--logprobs", int, "log probabilities with the N likeliest tokens (with --json)", "N"),
    stored=False,
)
OUTPUT = table(
    "Output",
    ("json", "--json", bool, "one JSON object on stdout instead of the text"),
    ("compare", "--compare", bool, "decode again without drafts and compare"),
    ("verbose", "-v --verbose", bool, "show llama.cpp's log"),
    ("log_file", "--log-file", str, "write llama.cpp's log to a file", "FILE"),
    ("debug", "--debug", bool, "show tracebacks"),
    stored=False,
)
CHATTING = table(
    "Chat",
    ("system_prompt", "-sys --system-prompt", str, "the system message", "TEXT"),
    ("show_draft", "--show-draft", bool, "colour the text that came from a draft"),
    ("load", "--load", str, "go on with a conversation that /save wrote", "FILE"),
    ("verbose", "-v --verbose", bool, "show llama.cpp's log"),
    ("log_file", "--log-file", str, "write llama.cpp's log to a file", "FILE"),
    ("debug", "--debug", bool, "show tracebacks"),
    stored=False,
)
RUN = [*PROMPT, *TEMPLATE, *MODEL, *DRAFT, *SAMPLING, *STRUCTURE, *OUTPUT]
CHAT = [*CHATTING, *TEMPLATE, *MODEL, *DRAFT, *SAMPLING, *STRUCTURE]
