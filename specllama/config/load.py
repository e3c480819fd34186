"""Load settings: how models are loaded and how drafting works. The only table of load options.

A field of ModelSettings or LoadSettings defines its options (TOML key, environment variable; flags and help,
the draft's too, are in load.toml), its argument in Python and its range, and crosses the pipe to the engine
process: to add a load option, add a field here, use it, and run `python -m scripts.options_page`. Errors
name the option at fault. Knows no model names or command line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from specllama.config import forms
from specllama.config.defaults import CACHE_TYPE, DRAFTERS, KEPT_SECONDS, N_BATCH, N_UBATCH, SERVED_SLOTS
from specllama.config.forms import ALL_LAYERS as ALL_LAYERS
from specllama.config.forms import AUTO as AUTO
from specllama.drafters import copies, wants_draft_model
from specllama.errors import UsageError, option
from specllama.option import GGUF, LIST, Option, Scope, option_field, options_of, tables
from specllama.regular_file import table_of

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
_TABLE = table_of(__file__)
_ALSO = {o.name: o for o in tables({"": _TABLE["also"]}, stored=True)}
_NUMBERS = {"N_BATCH": N_BATCH, "N_UBATCH": N_UBATCH, "SERVED_SLOTS": SERVED_SLOTS}
_WORDS = {**_NUMBERS, "DRAFTERS": ",".join(DRAFTERS)}
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
    n_ctx: int = _models(0, scope=_PROJECT, argument="max_model_len", low=0)
    lora: tuple[tuple[str, float], ...] = _models(
        (), completes=(GGUF,), form=forms.ADAPTERS, merge=forms.adapters, also=(_ALSO["lora_scaled"],)
    )
    rope_scaling: str | None = _models(None, choices=("none", "linear", "yarn"))
    rope_scale: float | None = _models(None)
    rope_freq_base: float | None = _models(None)
    rope_freq_scale: float | None = _models(None)
    yarn_orig_ctx: int | None = _models(None, low=0)
    yarn_ext_factor: float | None = _models(None)
    yarn_attn_factor: float | None = _models(None)
    yarn_beta_slow: float | None = _models(None)
    yarn_beta_fast: float | None = _models(None)
    n_threads: int = _hardware(0, scope=_PROJECT, inherited=True, low=0, high=MAX_THREADS)
    n_threads_batch: int = _hardware(0, scope=_PROJECT, inherited=True, low=0, high=MAX_THREADS)
    n_batch: int = _hardware(N_BATCH, inherited=True, low=1)
    n_ubatch: int = _hardware(N_UBATCH, inherited=True, low=1)
    n_gpu_layers: int = _hardware(
        AUTO, completes=("auto", "all"), scope=_PROJECT, form=forms.LAYERS, low=ALL_LAYERS
    )
    devices: tuple[str, ...] = _hardware((), completes=("none",), form=forms.NAMES)
    tensor_split: tuple[float, ...] = _hardware((), form=forms.SHARES)
    split_mode: str = _hardware("layer", choices=("none", "layer", "row", "tensor"))
    tensor_parallel_size: int = _hardware(0, low=0)
    main_gpu: int = _hardware(0, low=0)
    override_tensor: tuple[tuple[str, str], ...] = _hardware((), scope=_MODEL, form=forms.OVERRIDES)
    n_cpu_moe: int = _hardware(
        0, scope=_PROJECT, merge=forms.experts_on_cpu, low=-1, also=(_ALSO["cpu_moe"], _ALSO["cpu_moe_draft"])
    )
    cache_type_k: str = _hardware(CACHE_TYPE, choices=CACHE_TYPES)
    cache_type_v: str = _hardware(CACHE_TYPE, choices=CACHE_TYPES)
    flash_attn: str = _hardware("auto", inherited=True, choices=("on", "off", "auto"))
    swa_full: bool | None = _hardware(None)
    use_mmap: bool = _hardware(True, name="no_mmap", inherited=True, form=forms.NEGATED)
    use_mlock: bool = _hardware(False, name="mlock", inherited=True)

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
MODEL_SETTINGS: Mapping[str, Option] = options_of(ModelSettings, _TABLE["fields"], _WORDS)
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
    n_slots: int = option_field(1, panel="Server", argument="max_num_seqs", low=1, high=MAX_SLOTS)
    drafters: tuple[str, ...] = _drafting(DRAFTERS, completes=(LIST, *DRAFTERS, "none"), form=forms.DRAFTERS)
    draft_max: int | None = _drafting(
        None, completes=("auto",), form=forms.TOKENS, argument="num_speculative_tokens", low=0, high=MAX_DRAFT
    )
    draft_vocab: str = _drafting("strict", choices=DRAFT_VOCABS)
    draft_tree: int | None = _drafting(None, completes=("auto", "off"), form=forms.TREE, low=0, high=MAX_TREE)
    draft_min: int = _drafting(0, low=0, high=MAX_DRAFT)
    draft_p_min: float = _drafting(0.0, low=0, high=1)
    exact: bool = _drafting(False)
    exact_width: int | None = _drafting(None, low=1, high=MAX_DRAFT)
    calibrate: bool = _drafting(True, name="no_calibrate", form=forms.NEGATED)
    memory: bool = _drafting(True, name="no_memory", form=forms.NEGATED)
    memory_from: tuple[str, ...] = _drafting((), scope=Scope.USER, form=forms.PATHS)
    chat_template: str | None = _prompt(
        None, also=(_ALSO["chat_template_file"],), form=forms.TEMPLATE, merge=forms.template
    )
    tool_format: str = _prompt("auto")
    rpc: tuple[str, ...] = _hardware((), form=forms.ENDPOINTS)
    schema_open: bool = option_field(False, panel="Sampling", scope=_PROJECT)
    cache_disk: int = _hardware(
        0, completes=("auto", "0"), form=forms.DISK_BYTES, measuring=False, low=AUTO, high=forms.MOST_BYTES
    )
    kept_seconds: float = option_field(KEPT_SECONDS, low=0, high=10**9)
    cache_ram: int = _hardware(
        AUTO, completes=("auto", "0"), form=forms.RAM_BYTES, measuring=False, low=AUTO, high=forms.MOST_BYTES
    )
    ctx_checkpoints: int | None = _hardware(None, measuring=False, low=0)
    mmproj: str = _images("", scope=_MODEL, completes=(GGUF,), form=forms.PROJECTOR)
    mmproj_offload: bool = _images(True, name="no_mmproj_offload", form=forms.NEGATED)
    image_min_tokens: int = _images(0, scope=_PROJECT, low=0, high=MAX_IMAGE)
    image_max_tokens: int = _images(0, scope=_PROJECT, low=0, high=MAX_IMAGE)
    pooling: str | None = option_field(None, choices=POOLINGS)
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


LOAD_SETTINGS: Mapping[str, Option] = options_of(LoadSettings, _TABLE["fields"], _WORDS)
"""The entry of each field of LoadSettings but the models, by name."""


def reserved_outputs(n_outputs_max: int) -> int:
    """The rows of logits that a context reserves if a decode has at most `n_outputs_max`."""
    return -(-n_outputs_max // _OUTPUT_MULTIPLE) * _OUTPUT_MULTIPLE
