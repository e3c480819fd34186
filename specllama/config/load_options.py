"""The types of load options in Python. Generated: python -m scripts.options_page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

Layers = int | Literal["auto", "all"]


class LoadOptions(TypedDict, total=False):
    """Load options besides the named arguments, named as the fields of ModelSettings and LoadSettings, which
    describe them. Names that end in `_draft` are the draft's, whose threads and batch sizes default to the
    target's.
    """

    lora: Sequence[tuple[str, float]]
    rope_scaling: str | None
    rope_scale: float | None
    rope_freq_base: float | None
    rope_freq_scale: float | None
    yarn_orig_ctx: int | None
    yarn_ext_factor: float | None
    yarn_attn_factor: float | None
    yarn_beta_slow: float | None
    yarn_beta_fast: float | None
    n_threads: int
    n_threads_batch: int
    n_batch: int
    n_ubatch: int
    devices: Sequence[str] | str
    tensor_split: Sequence[float] | str
    split_mode: str
    tensor_parallel_size: int
    main_gpu: int
    override_tensor: Sequence[tuple[str, str]]
    n_cpu_moe: int
    cache_type_k: str
    cache_type_v: str
    flash_attn: str
    swa_full: bool | None
    use_mmap: bool
    use_mlock: bool
    n_ctx_draft: int
    n_threads_draft: int
    n_threads_batch_draft: int
    n_gpu_layers_draft: Layers
    devices_draft: Sequence[str] | str
    override_tensor_draft: Sequence[tuple[str, str]]
    n_cpu_moe_draft: int
    cache_type_k_draft: str
    cache_type_v_draft: str
    draft_vocab: str
    draft_tree: int | Literal["auto", "off"]
    draft_min: int
    draft_p_min: float
    exact_width: int | None
    calibrate: bool
    memory: bool
    memory_from: Sequence[str] | str
    tool_format: str
    rpc: Sequence[str] | str
    schema_open: bool
    cache_disk: int | str
    kept_seconds: float
    cache_ram: int | str
    ctx_checkpoints: int | None
    mmproj: str | bool | None
    mmproj_offload: bool
    image_min_tokens: int
    image_max_tokens: int
    pooling: str | None
