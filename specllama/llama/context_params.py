"""llama.cpp's parameters for a context, from the settings of its model."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from typing import Any

from specllama.config.load import ALL_LAYERS, AUTO, ModelSettings, reserved_outputs
from specllama.errors import UsageError, option
from specllama.llama.batches import CELLS_MULTIPLE, MORE_THAN_STATES
from specllama.llama.library import buffer_type, devices, llama
from specllama.models.memory.available import physical_cores
from specllama.models.memory.cost import tensor_overrides

_GGML_TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30,
}  # fmt: skip
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
    yarn = ("orig_ctx", "ext_factor", "attn_factor", "beta_slow", "beta_fast")
    for name in ("rope_freq_base", "rope_freq_scale", *(f"yarn_{name}" for name in yarn)):
        value = getattr(s, name)
        if value is not None:
            setattr(p, name, value)
    return p


# llama.cpp's parameters for loading a model, from its settings.


_SPLIT = {"none": 0, "layer": 1, "row": 2, "tensor": 3}  # llama_split_mode
# llama_load_mode, by (use_mmap, use_mlock)
_LOAD_MODE = {(False, False): 0, (True, False): 1, (False, True): 2, (True, True): 3}


class _TensorOverride(ctypes.Structure):
    """llama_model_tensor_buft_override, which llama-cpp-python does not declare."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p))


class ModelParams:
    """params: for llama_model_load_from_file; valid as long as this object, which holds what they point to.

    progress: called with the fraction loaded, 0 to 1. vocab_only: load no weights. Raises UsageError for
    settings that this build does not support.
    """

    def __init__(
        self,
        s: ModelSettings,
        progress: Callable[[float], None] | None = None,
        vocab_only: bool = False,
    ) -> None:
        self._kept: list[object] = []  # objects that llama.cpp keeps pointers to
        self.params = params = llama.llama_model_default_params()
        params.vocab_only = vocab_only
        params.load_mode = _LOAD_MODE[s.use_mmap, s.use_mlock]
        params.n_gpu_layers = -1 if s.n_gpu_layers in (AUTO, ALL_LAYERS) else s.n_gpu_layers
        if s.split_mode == "tensor" and not any(d.gpu for d in devices()):
            raise UsageError(
                f"{option('split_mode', 'tensor')} needs a GPU that this build of llama.cpp can use"
            )
        params.split_mode, params.main_gpu = _SPLIT[s.split_mode], s.main_gpu
        if s.devices:
            params.devices = self._keep(_device_list(s.devices))
        if s.tensor_split:
            n = llama.llama_max_devices()
            if len(s.tensor_split) > n:
                raise UsageError(
                    f"tensor_split has {len(s.tensor_split)} parts, llama.cpp accepts at most {n}"
                )
            params.tensor_split = (ctypes.c_float * n)(*s.tensor_split)
            self._kept.append(params.tensor_split)
        if overrides := tensor_overrides(s):
            params.tensor_buft_overrides = self._keep(_override_list(overrides))
        if progress is not None:
            report = progress
            callback = llama.llama_progress_callback(lambda share, _user: report(share) or True)
            params.progress_callback = callback
            self._kept.append(callback)

    def _keep(self, array: ctypes.Array[Any]) -> int:
        self._kept.append(array)
        return ctypes.addressof(array)


def _device_list(names: Sequence[str]) -> ctypes.Array[ctypes.c_void_p]:
    known = {d.name: d.handle for d in devices()}
    wanted = [] if tuple(names) == ("none",) else list(names)
    for name in wanted:
        if name not in known:
            raise UsageError(
                f"no device {name!r} in this build of llama.cpp", f"there are: {', '.join(known)}"
            )
    return (ctypes.c_void_p * (len(wanted) + 1))(*[known[n] for n in wanted], None)


def _override_list(overrides: Sequence[tuple[str, str]]) -> ctypes.Array[Any]:
    array = (_TensorOverride * (len(overrides) + 1))()
    for i, (pattern, buft) in enumerate(overrides):
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(
                f": pattern {pattern!r} is not a regular expression: {error}", option="override_tensor"
            ) from None
        array[i].pattern, array[i].buft = pattern.encode(), buffer_type(buft)
    return array
