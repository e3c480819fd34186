"""Load settings: how models are loaded and how drafting works, sent to the engine process as JSON.

Checks ranges and nothing else: knows no files, model names or command line. Errors name the option at fault.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from specllama.config.defaults import CACHE_TYPE, DRAFTERS, KEPT_SECONDS, N_BATCH, N_UBATCH
from specllama.drafters import copies, wants_draft_model
from specllama.errors import UsageError, option

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
AUTO, ALL_LAYERS = -1, -2  # n_gpu_layers: all that fit, all; cache_disk: by the free disk
DRAFT_VOCABS = ("auto", "strict")
MAX_THREADS = 512  # GGML_MAX_N_THREADS: with more ggml may abort the process
MAX_DRAFT = 512  # tokens of a draft
MAX_TREE = 64  # second candidates of a draft
MAX_SLOTS = 256  # LLAMA_MAX_SEQ
# Keeps the buffer after the logits aligned to cache lines; otherwise AMX is 1.5 times slower (Q4_0, Q8_0).
_OUTPUT_MULTIPLE = 16
_HIGHEST, _MOST_BYTES = 2**31 - 1, 2**60
_ROPE_NUMBERS = (
    "rope_scale", "rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor",
    "yarn_beta_slow", "yarn_beta_fast",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """The settings of one model and its context. Raises UsageError.

    path: a GGUF file; before models/prepare.py has resolved it, the model's name, "" for the default model.
    n_ctx: tokens, 0 for automatic. n_threads, n_threads_batch: 0 for the physical cores. n_gpu_layers: -1 for
    all that fit, -2 for all. devices: names, () for all, ("none",) for the CPU only. tensor_parallel_size:
    split over the first so many of them, 0 for all. n_cpu_moe: layers whose experts stay on the CPU, -1 for
    all. swa_full: keep all cells of layers with a sliding window; None: where partial states
    do not serve as well (models/memory/windows.py). override_tensor: (pattern, buffer type). lora:
    (path, scale). rope_*, yarn_*: None for the model's own values.
    """

    path: str
    n_ctx: int = 0
    n_batch: int = N_BATCH
    n_ubatch: int = N_UBATCH
    n_threads: int = 0
    n_threads_batch: int = 0
    n_gpu_layers: int = AUTO
    devices: tuple[str, ...] = ()
    split_mode: str = "layer"
    tensor_split: tuple[float, ...] = ()
    main_gpu: int = 0
    tensor_parallel_size: int = 0
    override_tensor: tuple[tuple[str, str], ...] = ()
    n_cpu_moe: int = 0
    cache_type_k: str = CACHE_TYPE
    cache_type_v: str = CACHE_TYPE
    flash_attn: str = "auto"
    swa_full: bool | None = None
    use_mmap: bool = True
    use_mlock: bool = False
    lora: tuple[tuple[str, float], ...] = ()
    rope_scaling: str | None = None
    rope_scale: float | None = None
    rope_freq_base: float | None = None
    rope_freq_scale: float | None = None
    yarn_orig_ctx: int | None = None
    yarn_ext_factor: float | None = None
    yarn_attn_factor: float | None = None
    yarn_beta_slow: float | None = None
    yarn_beta_fast: float | None = None

    def __post_init__(self) -> None:
        for name in ("n_ctx", "main_gpu", "tensor_parallel_size"):
            _at_least(name, getattr(self, name), 0)
        for name in ("n_threads", "n_threads_batch"):
            _at_least(name, getattr(self, name), 0)
            if getattr(self, name) > MAX_THREADS:
                raise UsageError(f"must be {MAX_THREADS} at most, not {getattr(self, name)}", option=name)
        for name in ("n_batch", "n_ubatch"):
            _at_least(name, getattr(self, name), 1)
        _at_least("n_gpu_layers", self.n_gpu_layers, ALL_LAYERS)
        _at_least("n_cpu_moe", self.n_cpu_moe, -1)
        _one_of("split_mode", self.split_mode, ("none", "layer", "row", "tensor"))
        if self.tensor_parallel_size and self.split_mode != "layer":
            raise UsageError(
                f"splits by layers, and {option('split_mode', self.split_mode)} does not",
                f"omit one of them, or name the devices: {option('devices')}",
                option="tensor_parallel_size",
            )
        _one_of("flash_attn", self.flash_attn, ("on", "off", "auto"))
        _one_of("cache_type_k", self.cache_type_k, CACHE_TYPES)
        _one_of("cache_type_v", self.cache_type_v, CACHE_TYPES)
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
        if self.yarn_orig_ctx is not None:
            _at_least("yarn_orig_ctx", self.yarn_orig_ctx, 0)
        if self.rope_scaling is not None:
            _one_of("rope_scaling", self.rope_scaling, ("none", "linear", "yarn"))
        if self.flash_attn == "off" and self.cache_type_v not in ("f32", "f16", "bf16"):
            raise UsageError(
                f"{self.cache_type_v} needs flash attention",
                f"omit {option('flash_attn', 'off')}",
                option="cache_type_v",
            )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModelSettings:
        """From the dict of `asdict`, with tuples for JSON's lists; unknown names are ignored."""
        known = {f.name for f in fields(cls)}
        return cls(**{k: _tupled(v) for k, v in data.items() if k in known})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """The settings of a target, an optional draft, and drafting. Raises UsageError.

    n_slots: sequences at once. drafters: those that may draft. draft_max: most draft tokens per round;
    None decides by measured costs, 0 switches drafting off. draft_vocab: "auto" translates the tokens of a
    draft model whose vocabulary does not fit, "strict" refuses it. draft_tree: second candidates of a draft
    that are verified with it; None decides by measured costs, 0 verifies none. draft_min, draft_p_min: the
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
    n_slots: int = 1
    drafters: tuple[str, ...] = DRAFTERS
    draft_max: int | None = None
    draft_vocab: str = "strict"
    draft_tree: int | None = None
    draft_min: int = 0
    draft_p_min: float = 0.0
    exact: bool = False
    exact_width: int | None = None
    calibrate: bool = True
    chat_template: str | None = None
    tool_format: str = "auto"
    rpc: tuple[str, ...] = ()
    memory: bool = True
    schema_open: bool = False
    cache_disk: int = 0
    kept_seconds: float = KEPT_SECONDS
    cache_ram: int = AUTO
    ctx_checkpoints: int | None = None

    def __post_init__(self) -> None:
        _at_least("n_slots", self.n_slots, 1, MAX_SLOTS)
        for name in self.drafters:
            _one_of("drafters", name, DRAFTERS)
        if self.draft_max is not None:
            _at_least("draft_max", self.draft_max, 0, MAX_DRAFT)
        _one_of("draft_vocab", self.draft_vocab, DRAFT_VOCABS)
        if self.draft_tree is not None:
            _at_least("draft_tree", self.draft_tree, 0, MAX_TREE)
        _at_least("draft_min", self.draft_min, 0, MAX_DRAFT)
        if self.exact_width is not None:
            _at_least("exact_width", self.exact_width, 1, MAX_DRAFT)
            object.__setattr__(self, "exact", True)
        _at_least("cache_disk", self.cache_disk, AUTO, _MOST_BYTES)
        _at_least("cache_ram", self.cache_ram, AUTO, _MOST_BYTES)
        if self.ctx_checkpoints is not None:
            _at_least("ctx_checkpoints", self.ctx_checkpoints, 0)
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

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LoadSettings:
        """The inverse of `to_dict`, with tuples for JSON's lists."""
        values = {k: _tupled(v) for k, v in data.items()}
        values["target"] = ModelSettings.from_dict(data["target"])
        values["draft"] = ModelSettings.from_dict(data["draft"]) if data.get("draft") else None
        return cls(**values)


def reserved_outputs(n_outputs_max: int) -> int:
    """The rows of logits that a context reserves if a decode has at most `n_outputs_max`."""
    return -(-n_outputs_max // _OUTPUT_MULTIPLE) * _OUTPUT_MULTIPLE


def _tupled(value: Any) -> Any:
    return tuple(_tupled(v) for v in value) if isinstance(value, list) else value


def _at_least(name: str, value: int, low: int, high: int = _HIGHEST) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        limit = "" if high == _HIGHEST else f" to {high}"
        raise UsageError(f"must be a whole number from {low}{limit}, not {value!r}", option=name)


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"must be one of {', '.join(allowed)}, not {value!r}", option=name)
