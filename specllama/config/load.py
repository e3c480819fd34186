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
from functools import partial

from specllama.config.defaults import CACHE_TYPE, DRAFTERS, KEPT_SECONDS, N_BATCH, N_UBATCH, SERVED_SLOTS
from specllama.config.forms import (
    ADAPTERS,
    DISK_BYTES,
    DRAFT_TOKENS,
    DRAFTER_NAMES,
    ENDPOINTS,
    LAYERS,
    MOST_BYTES,
    NAMES,
    NEGATED,
    OVERRIDES,
    PATHS,
    PROJECTOR,
    RAM_BYTES,
    SHARES,
    TEMPLATE,
    TREE,
    adapters,
    experts_on_cpu,
    template,
)
from specllama.config.forms import ALL_LAYERS as ALL_LAYERS
from specllama.config.forms import AUTO as AUTO
from specllama.drafters import copies, wants_draft_model
from specllama.errors import UsageError, option
from specllama.option import GGUF, LIST, Option, Scope, option_field, options_of, row

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
DRAFT_VOCABS = ("auto", "strict")
POOLINGS = ("auto", "none", "mean", "cls", "last", "rank")
MAX_THREADS = 512  # GGML_MAX_N_THREADS: with more ggml may abort the process
MAX_DRAFT = 512  # tokens of a draft
MAX_TREE = 64  # second candidates of a draft
MAX_IMAGE = 16384  # tokens of an image
MAX_SLOTS = 256  # LLAMA_MAX_SEQ
# Keeps the buffer after the logits aligned to cache lines; otherwise AMX is 1.5 times slower (Q4_0, Q8_0).
_OUTPUT_MULTIPLE = 16
_PROJECT, _MODEL = Scope.PROJECT, Scope.MODEL
_models = partial(option_field, panel="Models", scope=_MODEL)
_prompt = partial(option_field, panel="Prompt", scope=_MODEL)
_drafting = partial(option_field, panel="Drafting", scope=_PROJECT)
_hardware = partial(option_field, panel="Hardware")
_images = partial(option_field, panel="Images", measuring=False)


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
    # fmt: off
    n_ctx: int = _models(
        0, "-c --ctx-size", "context in tokens (default: the model's, at most 8192, as far as memory allows)",
        "N", draft=("-cd --ctx-size-draft --spec-draft-ctx-size", "context of the draft (default: -c)"),
        scope=_PROJECT, argument="max_model_len", low=0)
    lora: tuple[tuple[str, float], ...] = _models(
        (), "--lora", "a LoRA adapter for the target", "FILE", completes=(GGUF,), form=ADAPTERS,
        merge=adapters, also=(
            row("lora_scaled", "--lora-scaled", list, "FILE:SCALE, a LoRA adapter with a scale", "FILE:N",
                (GGUF,)),))
    rope_scaling: str | None = _models(
        None, "--rope-scaling", "none, linear or yarn", "KIND", choices=("none", "linear", "yarn"))
    rope_scale: float | None = _models(None, "--rope-scale", "context scaling factor", "N")
    rope_freq_base: float | None = _models(None, "--rope-freq-base", "RoPE base frequency", "N")
    rope_freq_scale: float | None = _models(None, "--rope-freq-scale", "RoPE frequency scale", "N")
    yarn_orig_ctx: int | None = _models(None, "--yarn-orig-ctx", "YaRN: the original context", "N", low=0)
    yarn_ext_factor: float | None = _models(None, "--yarn-ext-factor", "YaRN: extrapolation mix", "N")
    yarn_attn_factor: float | None = _models(None, "--yarn-attn-factor", "YaRN: attention factor", "N")
    yarn_beta_slow: float | None = _models(None, "--yarn-beta-slow", "YaRN: high correction dimension", "N")
    yarn_beta_fast: float | None = _models(None, "--yarn-beta-fast", "YaRN: low correction dimension", "N")
    n_threads: int = _hardware(
        0, "-t --threads", "threads (default: physical cores)", "N",
        draft=("-td --threads-draft", "threads of the draft (default: -t)"), scope=_PROJECT, inherited=True,
        low=0, high=MAX_THREADS)
    n_threads_batch: int = _hardware(
        0, "-tb --threads-batch", "threads for batches (default: -t)", "N",
        draft=("-tbd --threads-batch-draft", "threads for the draft's batches"), scope=_PROJECT,
        inherited=True, low=0, high=MAX_THREADS)
    n_batch: int = _hardware(
        N_BATCH, "-b --batch-size", f"most tokens per decode (default {N_BATCH})", "N", inherited=True, low=1)
    n_ubatch: int = _hardware(
        N_UBATCH, "-ub --ubatch-size", f"tokens computed at once (default {N_UBATCH})", "N", inherited=True,
        low=1)
    n_gpu_layers: int = _hardware(
        AUTO, "-ngl --gpu-layers --n-gpu-layers", "layers on the GPU: a number, auto or all", "N",
        draft=("-ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl",
        "layers of the draft on the GPU"), completes=("auto", "all"), scope=_PROJECT, form=LAYERS,
        low=ALL_LAYERS)
    devices: tuple[str, ...] = _hardware(
        (), "-dev --device", "devices, separated by commas; none for the CPU only", "NAMES",
        draft=("-devd --device-draft --spec-draft-device", "devices of the draft"), completes=("none",),
        form=NAMES)
    tensor_split: tuple[float, ...] = _hardware(
        (), "-ts --tensor-split", "share of each device, separated by commas", "A,B,...", form=SHARES)
    split_mode: str = _hardware(
        "layer", "-sm --split-mode", "how to split over devices: none, layer, row, tensor", "MODE",
        choices=("none", "layer", "row", "tensor"))
    tensor_parallel_size: int = _hardware(
        0, "--tensor-parallel-size", "vLLM's name for -sm layer over the first N GPUs", "N", low=0)
    main_gpu: int = _hardware(0, "-mg --main-gpu", "the device for -sm none", "N", low=0)
    override_tensor: tuple[tuple[str, str], ...] = _hardware(
        (), "-ot --override-tensor", "PATTERN=BUFFER: the buffer type of tensors with such a name", "P=B",
        draft=("-otd --override-tensor-draft", "PATTERN=BUFFER for the draft"), scope=_MODEL, form=OVERRIDES)
    n_cpu_moe: int = _hardware(
        0, "-ncmoe --n-cpu-moe", "keep the experts of the first N layers on the CPU", "N",
        draft=("-ncmoed --n-cpu-moe-draft", "keep experts of the draft on the CPU"),
        scope=_PROJECT, merge=experts_on_cpu, low=-1, also=(
            row("cpu_moe", "-cmoe --cpu-moe", bool, "keep all experts on the CPU", argument="n_cpu_moe"),
            row("cpu_moe_draft", "-cmoed --cpu-moe-draft", bool, "keep all experts of the draft on the CPU",
                argument="n_cpu_moe_draft")))
    cache_type_k: str = _hardware(
        CACHE_TYPE, "-ctk --cache-type-k", "type of the K cache: f16, q8_0, ...", "TYPE",
        draft=("-ctkd --cache-type-k-draft", "type of the draft's K cache"), choices=CACHE_TYPES)
    cache_type_v: str = _hardware(
        CACHE_TYPE, "-ctv --cache-type-v", "type of the V cache", "TYPE",
        draft=("-ctvd --cache-type-v-draft", "type of the draft's V cache"), choices=CACHE_TYPES)
    flash_attn: str = _hardware(
        "auto", "-fa --flash-attn", "flash attention: on, off or auto", "MODE", inherited=True,
        choices=("on", "off", "auto"))
    swa_full: bool | None = _hardware(
        None, "--swa-full",
        "keep all cells of layers with a sliding window (default: those of the window, where texts stay "
        "the same)")
    use_mmap: bool = _hardware(
        True, "--no-mmap", "read the file instead of mapping it", name="no_mmap", inherited=True,
        form=NEGATED)
    use_mlock: bool = _hardware(False, "--mlock", "keep the model in memory", name="mlock", inherited=True)
    # fmt: on

    def __post_init__(self) -> None:
        for name, entry in MODEL_SETTINGS.items():
            entry.checked(getattr(self, name))
        if self.tensor_parallel_size and self.split_mode != "layer":
            raise UsageError(
                f"splits by layers, and {option('split_mode', self.split_mode)} does not",
                f"omit one of them, or name the devices: {option('devices')}",
                option="tensor_parallel_size",
            )
        if not all(math.isfinite(part) and part >= 0 for part in self.tensor_split):
            raise UsageError(f"must be shares from 0, not {list(self.tensor_split)}", option="tensor_split")
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


EMBEDDER_FIELDS = (
    *("n_threads", "n_threads_batch", "n_ubatch", "n_gpu_layers", "devices", "tensor_split", "split_mode"),
    *("main_gpu", "flash_attn", "use_mmap", "use_mlock"),
)
"""The fields of ModelSettings that an embedding model has in common with the chat model next to it."""
MODEL_SETTINGS: Mapping[str, Option] = options_of(ModelSettings)
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
    by its chat template. rpc: workers that hold the target, "host:port" each. memory: "copy" also drafts from
    earlier texts; memory_from: and from these files and folders. schema_open: objects of JSON schemas may
    have properties that the schemas do not name, where they do not say. cache_disk: bytes on disk for
    evaluated prompts, AUTO decides by the free disk, 0 keeps and reads none. kept_seconds: that reading a
    prompt again would take, from which on it is kept there. cache_ram: bytes of memory for evaluated prompts,
    AUTO for a quarter of what is free. ctx_checkpoints: most partial states of a text, None for as many as
    are worth their memory. pooling: load the target as an embedding model, whose rows become one vector in
    this way; "auto" as its file says; None for a model that writes texts.
    """

    target: ModelSettings
    draft: ModelSettings | None = None
    # fmt: off
    n_slots: int = option_field(
        1, "-np --parallel", f"texts generated at once (default {SERVED_SLOTS})", "N", panel="Server",
        argument="max_num_seqs", low=1, high=MAX_SLOTS)
    drafters: tuple[str, ...] = _drafting(
        DRAFTERS, "--drafters", f"the drafters to use (default {','.join(DRAFTERS)}), or none", "NAMES",
        completes=(LIST, *DRAFTERS, "none"), form=DRAFTER_NAMES)
    draft_max: int | None = _drafting(
        None, "--draft-max --draft --draft-n --spec-draft-n-max",
        "draft tokens per round; auto (default) decides by measured costs, 0 switches drafting off", "N",
        completes=("auto",), form=DRAFT_TOKENS, argument="num_speculative_tokens", low=0, high=MAX_DRAFT)
    draft_vocab: str = _drafting(
        "strict", "--draft-vocab",
        "a draft with another vocabulary: strict (default) refuses it, auto translates its tokens", "MODE",
        choices=DRAFT_VOCABS)
    draft_tree: int | None = _drafting(
        None, "--draft-tree",
        "second candidates verified with a draft: N, or auto (default) or off for none; models with "
        "sliding windows need --swa-full", "N", completes=("auto", "off"), form=TREE, low=0, high=MAX_TREE)
    draft_min: int = _drafting(
        0, "--draft-min --draft-n-min --spec-draft-n-min", "do not verify drafts shorter than this", "N",
        low=0, high=MAX_DRAFT)
    draft_p_min: float = _drafting(
        0.0, "--draft-p-min --spec-draft-p-min", "stop a draft below this confidence", "P", low=0, high=1)
    exact: bool = _drafting(
        False, "--exact", "the same text with and without drafts on every device, at a cost")
    exact_width: int | None = _drafting(
        None, "--exact-width", "rows of every decode; implies --exact (default: measured once)", "N", low=1,
        high=MAX_DRAFT)
    calibrate: bool = _drafting(
        True, "--no-calibrate", "do not measure after the answer, and store nothing", name="no_calibrate",
        form=NEGATED)
    memory: bool = _drafting(
        True, "--no-memory", "draft only from this request, not from earlier ones",
        name="no_memory", form=NEGATED)
    memory_from: tuple[str, ...] = _drafting(
        (), "--memory-from",
        "also draft from this file, folder or repository, read while nothing is asked; may be repeated",
        "PATH", scope=Scope.USER, form=PATHS)
    chat_template: str | None = _prompt(
        None, "--chat-template", "a Jinja template, or llama.cpp's name of one, instead of the model's own",
        "TEXT",
        also=(row("chat_template_file", "--chat-template-file", str, "the same from a file", "FILE"),),
        form=TEMPLATE, merge=template)
    tool_format: str = _prompt(
        "auto", "--tool-format",
        "how the model writes tool calls: auto (by its template), or a format's name (docs/tools.md)", "NAME")
    rpc: tuple[str, ...] = _hardware(
        (), "--rpc", "RPC workers for the target: host:port, separated by commas", "LIST", form=ENDPOINTS)
    schema_open: bool = option_field(
        False, "--schema-open", "objects may have properties that JSON schemas do not name",
        panel="Sampling", scope=_PROJECT)
    cache_disk: int = _hardware(
        0, "--cache-disk",
        "room on disk for evaluated prompts, as 8G or 500M; auto (default): 8G or a tenth of what is "
        "free, if that is less; 0 keeps none", "SIZE", completes=("auto", "0"), form=DISK_BYTES,
        measuring=False, low=AUTO, high=MOST_BYTES)
    kept_seconds: float = option_field(KEPT_SECONDS, low=0, high=10**9)
    cache_ram: int = _hardware(
        AUTO, "-cram --cache-ram",
        "memory for evaluated prompts that are not in use, as 8G, or a number of MiB; auto (default): a "
        "quarter of what is free; 0 keeps none, -1 is no limit", "SIZE", completes=("auto", "0"),
        form=RAM_BYTES, measuring=False, low=AUTO, high=MOST_BYTES)
    ctx_checkpoints: int | None = _hardware(
        None, "-ctxcp --ctx-checkpoints --swa-checkpoints",
        "most states that are kept of a text of recurrent and hybrid models and sliding windows "
        "(default: as many as are worth their memory)", "N", measuring=False, low=0)
    mmproj: str = _images(
        "", "-mm --mmproj",
        "the projector with which the model reads images (default: the mmproj-*.gguf next to the model)",
        "FILE", scope=_MODEL, completes=(GGUF,), form=PROJECTOR)
    mmproj_offload: bool = _images(
        True, "--no-mmproj-offload", "keep the projector off the GPU", name="no_mmproj_offload", form=NEGATED)
    image_min_tokens: int = _images(
        0, "--image-min-tokens",
        "least tokens of an image, where its size decides (default 0: the projector's own)", "N",
        scope=_PROJECT, low=0, high=MAX_IMAGE)
    image_max_tokens: int = _images(
        0, "--image-max-tokens",
        "most tokens of an image, where its size decides (default 0: the projector's own)", "N",
        scope=_PROJECT, low=0, high=MAX_IMAGE)
    pooling: str | None = option_field(None, choices=POOLINGS)
    # fmt: on
    mmproj_found: bool = False

    def __post_init__(self) -> None:
        for name in self.drafters:
            if name not in DRAFTERS:
                hint = f"there are: {', '.join(DRAFTERS)}; or none"
                raise UsageError(f": no drafter {name!r}", hint, option="drafters")
        for name, entry in LOAD_SETTINGS.items():
            entry.checked(getattr(self, name))
        if self.exact_width is not None:
            object.__setattr__(self, "exact", True)
        if self.draft_max and self.draft_min > self.draft_max:
            more = f"{self.draft_min} is more than {option('draft_max')} {self.draft_max}"
            raise UsageError(more, option="draft_min")
        if 0 < self.image_max_tokens < self.image_min_tokens:
            more = f"{self.image_min_tokens} is more than {option('image_max_tokens', self.image_max_tokens)}"
            raise UsageError(more, option="image_min_tokens")

    @property
    def projector(self) -> str:
        """The file of the projector once models/prepare.py has found it, "" without one."""
        return "" if self.mmproj == "none" else self.mmproj

    @property
    def wants_draft_model(self) -> bool:
        return wants_draft_model(self.drafters)

    @property
    def copies(self) -> bool:
        return copies(self.drafters)


LOAD_SETTINGS: Mapping[str, Option] = options_of(LoadSettings)
"""The entry of each field of LoadSettings but the models, by name."""


def reserved_outputs(n_outputs_max: int) -> int:
    """The rows of logits that a context reserves if a decode has at most `n_outputs_max`."""
    return -(-n_outputs_max // _OUTPUT_MULTIPLE) * _OUTPUT_MULTIPLE
