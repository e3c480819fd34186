"""Load settings: how models are loaded and how drafting works. The only table of load options.

A field of ModelSettings or LoadSettings defines its options (flag, TOML key, environment variable, help, the
draft's own), its argument in Python and its range, and crosses the pipe to the engine process: to add a load
option, add a field here, use it, and run `python -m scripts.options_page`. Errors name the option at fault.
Knows no model names or command line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specllama.config.defaults import CACHE_TYPE, DRAFTERS, KEPT_SECONDS, N_BATCH, N_UBATCH, SERVED_SLOTS
from specllama.config.option import (
    ADAPTERS,
    DISK_BYTES,
    DRAFT_TOKENS,
    DRAFTER_NAMES,
    ENDPOINTS,
    GGUF,
    LAYERS,
    LIST,
    NAMES,
    NEGATED,
    OVERRIDES,
    RAM_BYTES,
    SHARES,
    TEMPLATE,
    TREE,
    Scope,
    Setting,
    adapters,
    argument,
    experts_on_cpu,
    row,
    setting,
    settings_of,
    template,
)
from specllama.config.option import ALL_LAYERS as ALL_LAYERS
from specllama.config.option import AUTO as AUTO
from specllama.drafters import copies, wants_draft_model
from specllama.errors import UsageError, option

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
DRAFT_VOCABS = ("auto", "strict")
MAX_THREADS = 512  # GGML_MAX_N_THREADS: with more ggml may abort the process
MAX_DRAFT = 512  # tokens of a draft
MAX_TREE = 64  # second candidates of a draft
MAX_SLOTS = 256  # LLAMA_MAX_SEQ
# Keeps the buffer after the logits aligned to cache lines; otherwise AMX is 1.5 times slower (Q4_0, Q8_0).
_OUTPUT_MULTIPLE = 16
_MOST_BYTES = 2**60
_PROJECT, _USER, _MODEL = Scope.PROJECT, Scope.USER, Scope.MODEL
# Panels of --help.
_MODELS, _DRAFTING, _HARDWARE, _PROMPT = "Models", "Drafting", "Hardware", "Prompt"
_ROPE_NUMBERS = (
    "rope_scale", "rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor",
    "yarn_beta_slow", "yarn_beta_fast",
)  # fmt: skip


def _rope(flag: str, help_: str, kind: type = float, **more: Any) -> Any:
    """A field of RoPE scaling; None for the model's own value."""
    metavar = "KIND" if kind is str else "N"
    return setting(None, kind, flag, help_, metavar, panel=_MODELS, scope=_MODEL, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """The settings of one model and its context. Raises UsageError.

    path: a GGUF file; before models/prepare.py has resolved it, the model's name, "" for the default model.
    n_ctx: tokens, 0 for automatic. n_threads, n_threads_batch: 0 for the physical cores. n_gpu_layers: -1 for
    all that fit, -2 for all. devices: names, () for all, ("none",) for the CPU only. tensor_parallel_size:
    split over the first so many of them, 0 for all. n_cpu_moe: layers whose experts stay on the CPU, -1 for
    all. swa_full: keep all cells of layers with a sliding window; None: where partial states
    do not serve as well (models/memory/cost.py). override_tensor: (pattern, buffer type). lora:
    (path, scale). rope_*, yarn_*: None for the model's own values.
    """

    path: str
    n_ctx: int = setting(
        0,
        int,
        "-c --ctx-size",
        "context in tokens (default: the model's, at most 8192, as far as memory allows)",
        "N",
        panel=_MODELS,
        draft=("-cd --ctx-size-draft --spec-draft-ctx-size", "context of the draft (default: -c)"),
        scope=_PROJECT,
        argument="max_model_len",
        low=0,
    )
    lora: tuple[tuple[str, float], ...] = setting(
        (),
        list,
        "--lora",
        "a LoRA adapter for the target",
        "FILE",
        panel=_MODELS,
        completes=(GGUF,),
        also=(
            row(
                "lora_scaled",
                "--lora-scaled",
                list,
                "FILE:SCALE, a LoRA adapter with a scale",
                "FILE:N",
                (GGUF,),
            ),
        ),
        scope=_MODEL,
        form=ADAPTERS,
        merge=adapters,
    )
    rope_scaling: str | None = _rope(
        "--rope-scaling", "none, linear or yarn", str, choices=("none", "linear", "yarn")
    )
    rope_scale: float | None = _rope("--rope-scale", "context scaling factor")
    rope_freq_base: float | None = _rope("--rope-freq-base", "RoPE base frequency")
    rope_freq_scale: float | None = _rope("--rope-freq-scale", "RoPE frequency scale")
    yarn_orig_ctx: int | None = _rope("--yarn-orig-ctx", "YaRN: the original context", int, low=0)
    yarn_ext_factor: float | None = _rope("--yarn-ext-factor", "YaRN: extrapolation mix")
    yarn_attn_factor: float | None = _rope("--yarn-attn-factor", "YaRN: attention factor")
    yarn_beta_slow: float | None = _rope("--yarn-beta-slow", "YaRN: high correction dimension")
    yarn_beta_fast: float | None = _rope("--yarn-beta-fast", "YaRN: low correction dimension")
    n_threads: int = setting(
        0,
        int,
        "-t --threads",
        "threads (default: physical cores)",
        "N",
        panel=_HARDWARE,
        draft=("-td --threads-draft", "threads of the draft (default: -t)"),
        scope=_PROJECT,
        inherited=True,
        low=0,
        high=MAX_THREADS,
    )
    n_threads_batch: int = setting(
        0,
        int,
        "-tb --threads-batch",
        "threads for batches (default: -t)",
        "N",
        panel=_HARDWARE,
        draft=("-tbd --threads-batch-draft", "threads for the draft's batches"),
        scope=_PROJECT,
        inherited=True,
        low=0,
        high=MAX_THREADS,
    )
    n_batch: int = setting(
        N_BATCH,
        int,
        "-b --batch-size",
        f"most tokens per decode (default {N_BATCH})",
        "N",
        panel=_HARDWARE,
        inherited=True,
        low=1,
    )
    n_ubatch: int = setting(
        N_UBATCH,
        int,
        "-ub --ubatch-size",
        f"tokens computed at once (default {N_UBATCH})",
        "N",
        panel=_HARDWARE,
        inherited=True,
        low=1,
    )
    n_gpu_layers: int = setting(
        AUTO,
        str,
        "-ngl --gpu-layers --n-gpu-layers",
        "layers on the GPU: a number, auto or all",
        "N",
        panel=_HARDWARE,
        draft=(
            "-ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl",
            "layers of the draft on the GPU",
        ),
        completes=("auto", "all"),
        scope=_PROJECT,
        form=LAYERS,
        low=ALL_LAYERS,
    )
    devices: tuple[str, ...] = setting(
        (),
        str,
        "-dev --device",
        "devices, separated by commas; none for the CPU only",
        "NAMES",
        panel=_HARDWARE,
        draft=("-devd --device-draft --spec-draft-device", "devices of the draft"),
        completes=("none",),
        form=NAMES,
    )
    tensor_split: tuple[float, ...] = setting(
        (),
        str,
        "-ts --tensor-split",
        "share of each device, separated by commas",
        "A,B,...",
        panel=_HARDWARE,
        form=SHARES,
    )
    split_mode: str = setting(
        "layer",
        str,
        "-sm --split-mode",
        "how to split over devices: none, layer, row, tensor",
        "MODE",
        panel=_HARDWARE,
        choices=("none", "layer", "row", "tensor"),
    )
    tensor_parallel_size: int = setting(
        0,
        int,
        "--tensor-parallel-size",
        "vLLM's name for -sm layer over the first N GPUs",
        "N",
        panel=_HARDWARE,
        low=0,
    )
    main_gpu: int = setting(0, int, "-mg --main-gpu", "the device for -sm none", "N", panel=_HARDWARE, low=0)
    override_tensor: tuple[tuple[str, str], ...] = setting(
        (),
        list,
        "-ot --override-tensor",
        "PATTERN=BUFFER: the buffer type of tensors with such a name",
        "P=B",
        panel=_HARDWARE,
        draft=("-otd --override-tensor-draft", "PATTERN=BUFFER for the draft"),
        scope=_MODEL,
        form=OVERRIDES,
    )
    n_cpu_moe: int = setting(
        0,
        int,
        "-ncmoe --n-cpu-moe",
        "keep the experts of the first N layers on the CPU",
        "N",
        panel=_HARDWARE,
        draft=("-ncmoed --n-cpu-moe-draft", "keep experts of the draft on the CPU"),
        also=(
            row("cpu_moe", "-cmoe --cpu-moe", bool, "keep all experts on the CPU", argument="n_cpu_moe"),
            row(
                "cpu_moe_draft",
                "-cmoed --cpu-moe-draft",
                bool,
                "keep all experts of the draft on the CPU",
                argument="n_cpu_moe_draft",
            ),
        ),
        scope=_PROJECT,
        merge=experts_on_cpu,
        low=-1,
    )
    cache_type_k: str = setting(
        CACHE_TYPE,
        str,
        "-ctk --cache-type-k",
        "type of the K cache: f16, q8_0, ...",
        "TYPE",
        panel=_HARDWARE,
        draft=("-ctkd --cache-type-k-draft", "type of the draft's K cache"),
        choices=CACHE_TYPES,
    )
    cache_type_v: str = setting(
        CACHE_TYPE,
        str,
        "-ctv --cache-type-v",
        "type of the V cache",
        "TYPE",
        panel=_HARDWARE,
        draft=("-ctvd --cache-type-v-draft", "type of the draft's V cache"),
        choices=CACHE_TYPES,
    )
    flash_attn: str = setting(
        "auto",
        str,
        "-fa --flash-attn",
        "flash attention: on, off or auto",
        "MODE",
        panel=_HARDWARE,
        inherited=True,
        choices=("on", "off", "auto"),
    )
    swa_full: bool | None = setting(
        None,
        bool,
        "--swa-full",
        "keep all cells of layers with a sliding window (default: those of the window, where texts stay the "
        "same)",
        panel=_HARDWARE,
    )
    use_mmap: bool = setting(
        True,
        bool,
        "--no-mmap",
        "read the file instead of mapping it",
        panel=_HARDWARE,
        option="no_mmap",
        inherited=True,
        form=NEGATED,
    )
    use_mlock: bool = setting(
        False,
        bool,
        "--mlock",
        "keep the model in memory",
        panel=_HARDWARE,
        option="mlock",
        inherited=True,
    )

    def __post_init__(self) -> None:
        for name, entry in MODEL_SETTINGS.items():
            entry.check(getattr(self, name))
        if self.tensor_parallel_size and self.split_mode != "layer":
            raise UsageError(
                f"splits by layers, and {option('split_mode', self.split_mode)} does not",
                f"omit one of them, or name the devices: {option('devices')}",
                option="tensor_parallel_size",
            )
        if not all(math.isfinite(part) and part >= 0 for part in self.tensor_split):
            raise UsageError(f"must be shares from 0, not {list(self.tensor_split)}", option="tensor_split")
        for name in _ROPE_NUMBERS:
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise UsageError(f"must be a number, not {value!r}", option=name)
        for name in ("rope_scale", "rope_freq_base", "rope_freq_scale"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UsageError(f"must be above 0, not {value:g}", option=name)
        if self.flash_attn == "off" and self.cache_type_v not in ("f32", "f16", "bf16"):
            raise UsageError(
                f"{self.cache_type_v} needs flash attention",
                f"omit {option('flash_attn', 'off')}",
                option="cache_type_v",
            )


MODEL_SETTINGS: Mapping[str, Setting] = settings_of(ModelSettings)
"""The entry of each field of ModelSettings but `path`, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """The settings of a target, an optional draft, and drafting. Raises UsageError.

    n_slots: sequences at once. drafters: those that may draft. draft_max: most draft tokens per round;
    None decides by measured costs, 0 switches drafting off. draft_vocab: "auto" translates the tokens of a
    draft model whose vocabulary does not fit, "strict" refuses it. draft_tree: second candidates that are
    verified with a draft; None decides by measured costs, 0 verifies none. draft_min, draft_p_min: the
    shortest draft to verify, and the confidence below which a draft ends. exact: the same text with and
    without drafts, whatever it costs. exact_width: rows of every decode then; None: measured where one width
    is needed. calibrate: measure what is missing after the first answer, and store it with what was learnt.
    chat_template: overrides the model's own. tool_format: how the model writes tool calls, by name; "auto":
    by its chat template. rpc: workers that hold the target, "host:port" each. memory: let "copy" also draft
    from earlier texts of the process. schema_open: objects of JSON schemas may have properties that the
    schemas do not name, where they do not say. cache_disk: bytes on disk for evaluated prompts, AUTO decides
    by the free disk, 0 keeps and reads none. kept_seconds: that reading a prompt again would take, from which
    on it is kept there. cache_ram: bytes of memory for evaluated prompts, AUTO for a quarter of what is free.
    ctx_checkpoints: most partial states of a text, None for as many as are worth their memory.
    """

    target: ModelSettings
    draft: ModelSettings | None = None
    n_slots: int = setting(
        1,
        int,
        "-np --parallel",
        f"texts generated at once (default {SERVED_SLOTS})",
        "N",
        panel="Server",
        argument="max_num_seqs",
        low=1,
        high=MAX_SLOTS,
    )
    drafters: tuple[str, ...] = setting(
        DRAFTERS,
        str,
        "--drafters",
        f"the drafters to use (default {','.join(DRAFTERS)}), or none",
        "NAMES",
        panel=_DRAFTING,
        completes=(LIST, *DRAFTERS, "none"),
        scope=_PROJECT,
        form=DRAFTER_NAMES,
    )
    draft_max: int | None = setting(
        None,
        str,
        "--draft-max --draft --draft-n --spec-draft-n-max",
        "draft tokens per round; auto (default) decides by measured costs, 0 switches drafting off",
        "N",
        panel=_DRAFTING,
        completes=("auto",),
        scope=_PROJECT,
        form=DRAFT_TOKENS,
        argument="num_speculative_tokens",
        low=0,
        high=MAX_DRAFT,
    )
    draft_vocab: str = setting(
        "strict",
        str,
        "--draft-vocab",
        "a draft with another vocabulary: strict (default) refuses it, auto translates its tokens",
        "MODE",
        panel=_DRAFTING,
        scope=_PROJECT,
        choices=DRAFT_VOCABS,
    )
    draft_tree: int | None = setting(
        None,
        str,
        "--draft-tree",
        "second candidates verified with a draft: N, or auto (default) or off for none; "
        "models with sliding windows need --swa-full",
        "N",
        panel=_DRAFTING,
        completes=("auto", "off"),
        scope=_PROJECT,
        form=TREE,
        low=0,
        high=MAX_TREE,
    )
    draft_min: int = setting(
        0,
        int,
        "--draft-min --draft-n-min --spec-draft-n-min",
        "do not verify drafts shorter than this",
        "N",
        panel=_DRAFTING,
        scope=_PROJECT,
        low=0,
        high=MAX_DRAFT,
    )
    draft_p_min: float = setting(
        0.0,
        float,
        "--draft-p-min --spec-draft-p-min",
        "stop a draft below this confidence",
        "P",
        panel=_DRAFTING,
        scope=_PROJECT,
    )
    exact: bool = setting(
        False,
        bool,
        "--exact",
        "the same text with and without drafts on every device, at a cost",
        panel=_DRAFTING,
        scope=_PROJECT,
    )
    exact_width: int | None = setting(
        None,
        int,
        "--exact-width",
        "rows of every decode; implies --exact (default: measured once)",
        "N",
        panel=_DRAFTING,
        scope=_PROJECT,
        low=1,
        high=MAX_DRAFT,
    )
    calibrate: bool = setting(
        True,
        bool,
        "--no-calibrate",
        "do not measure after the answer, and store nothing",
        panel=_DRAFTING,
        option="no_calibrate",
        scope=_PROJECT,
        form=NEGATED,
    )
    memory: bool = setting(
        True,
        bool,
        "--no-memory",
        "draft only from this request, not from earlier ones of the process",
        panel=_DRAFTING,
        option="no_memory",
        scope=_PROJECT,
        form=NEGATED,
    )
    chat_template: str | None = setting(
        None,
        str,
        "--chat-template",
        "a Jinja template, or llama.cpp's name of one, instead of the model's own",
        "TEXT",
        panel=_PROMPT,
        also=(row("chat_template_file", "--chat-template-file", str, "the same from a file", "FILE"),),
        scope=_MODEL,
        form=TEMPLATE,
        merge=template,
    )
    tool_format: str = setting(
        "auto",
        str,
        "--tool-format",
        "how the model writes tool calls: auto (by its template), or a format's name (docs/tools.md)",
        "NAME",
        panel=_PROMPT,
        scope=_MODEL,
    )
    rpc: tuple[str, ...] = setting(
        (),
        str,
        "--rpc",
        "RPC workers for the target: host:port, separated by commas",
        "LIST",
        panel=_HARDWARE,
        form=ENDPOINTS,
    )
    schema_open: bool = setting(
        False,
        bool,
        "--schema-open",
        "objects may have properties that JSON schemas do not name",
        panel="Sampling",
        scope=_PROJECT,
    )
    cache_disk: int = setting(
        0,
        str,
        "--cache-disk",
        "room on disk for evaluated prompts, as 8G or 500M; auto (default): 8G or a tenth of what is free, "
        "if that is less; 0 keeps none",
        "SIZE",
        panel=_HARDWARE,
        completes=("auto", "0"),
        form=DISK_BYTES,
        measuring=False,
        low=AUTO,
        high=_MOST_BYTES,
    )
    kept_seconds: float = argument(KEPT_SECONDS)
    cache_ram: int = setting(
        AUTO,
        str,
        "-cram --cache-ram",
        "memory for evaluated prompts that are not in use, as 8G, or a number of MiB; auto (default): a "
        "quarter of what is free; 0 keeps none, -1 is no limit",
        "SIZE",
        panel=_HARDWARE,
        completes=("auto", "0"),
        form=RAM_BYTES,
        measuring=False,
        low=AUTO,
        high=_MOST_BYTES,
    )
    ctx_checkpoints: int | None = setting(
        None,
        int,
        "-ctxcp --ctx-checkpoints --swa-checkpoints",
        "most states that are kept of a text of recurrent and hybrid models and sliding windows (default: as "
        "many as are worth their memory)",
        "N",
        panel=_HARDWARE,
        measuring=False,
        low=0,
    )

    def __post_init__(self) -> None:
        for name in self.drafters:
            if name not in DRAFTERS:
                raise UsageError(f"must be one of {', '.join(DRAFTERS)}, not {name!r}", option="drafters")
        for name, entry in LOAD_SETTINGS.items():
            entry.check(getattr(self, name))
        if self.exact_width is not None:
            object.__setattr__(self, "exact", True)
        kept = self.kept_seconds
        if isinstance(kept, bool) or not isinstance(kept, (int, float)) or not 0 <= kept <= 1e9:
            raise UsageError(f"must be seconds from 0, not {kept!r}", option="kept_seconds")
        if self.draft_max and self.draft_min > self.draft_max:
            more = f"{self.draft_min} is more than {option('draft_max')} {self.draft_max}"
            raise UsageError(more, option="draft_min")
        p_min = self.draft_p_min
        if isinstance(p_min, bool) or not isinstance(p_min, (int, float)) or not 0 <= p_min <= 1:
            raise UsageError(f"must be a number from 0 to 1, not {p_min!r}", option="draft_p_min")

    @property
    def wants_draft_model(self) -> bool:
        """Whether one of the drafters is a draft model."""
        return wants_draft_model(self.drafters)

    @property
    def copies(self) -> bool:
        """Whether one of the drafters copies from texts."""
        return copies(self.drafters)


LOAD_SETTINGS: Mapping[str, Setting] = settings_of(LoadSettings)
"""The entry of each field of LoadSettings but the models, by name."""


def reserved_outputs(n_outputs_max: int) -> int:
    """The rows of logits that a context reserves if a decode has at most `n_outputs_max`."""
    return -(-n_outputs_max // _OUTPUT_MULTIPLE) * _OUTPUT_MULTIPLE
