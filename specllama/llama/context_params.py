"""llama.cpp's parameters for a context, from the settings of its model."""

from __future__ import annotations

from specllama.config.load import ModelSettings, reserved_outputs
from specllama.llama.decode_limits import CELLS_MULTIPLE, MORE_THAN_STATES
from specllama.llama.library import llama
from specllama.models.memory.available import physical_cores

_GGML_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "iq4_nl": 20,
    "bf16": 30,
}
_FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}  # llama_flash_attn_type
_ROPE_SCALING = {"none": 0, "linear": 1, "yarn": 2}  # llama_rope_scaling_type


def context_params(
    s: ModelSettings, n_ctx: int, n_seq_max: int, n_outputs_max: int, n_rs_seq: int
) -> llama.llama_context_params:
    """llama.cpp's parameters for a context; see `LlamaContext`."""
    p = llama.llama_context_default_params()
    p.n_ctx = -(-n_ctx // CELLS_MULTIPLE) * CELLS_MULTIPLE
    p.n_batch, p.n_ubatch = min(s.n_batch, p.n_ctx), min(s.n_ubatch, s.n_batch)
    outputs = reserved_outputs(n_outputs_max)
    n_rs_seq = min(n_rs_seq, p.n_ctx - MORE_THAN_STATES)
    least = max(n_rs_seq + MORE_THAN_STATES, outputs) if n_rs_seq else 1
    p.n_batch, p.n_ubatch = max(p.n_batch, outputs, least), max(p.n_ubatch, least)
    p.n_seq_max, p.kv_unified, p.swa_full, p.n_rs_seq = n_seq_max, True, s.swa_full is not False, n_rs_seq
    p.n_outputs_max = p.n_outputs_max_per_seq = outputs
    p.n_threads = s.n_threads or physical_cores()
    p.n_threads_batch = s.n_threads_batch or p.n_threads
    p.type_k, p.type_v = _GGML_TYPES[s.cache_type_k], _GGML_TYPES[s.cache_type_v]
    p.flash_attn_type = _FLASH_ATTN[s.flash_attn]
    if s.rope_scaling is not None:
        p.rope_scaling_type = _ROPE_SCALING[s.rope_scaling]
    if s.rope_scale is not None:
        p.rope_freq_scale = 1.0 / s.rope_scale
    for name in (
        "rope_freq_base",
        "rope_freq_scale",
        "yarn_orig_ctx",
        "yarn_ext_factor",
        "yarn_attn_factor",
        "yarn_beta_slow",
        "yarn_beta_fast",
    ):
        value = getattr(s, name)
        if value is not None:
            setattr(p, name, value)
    return p
