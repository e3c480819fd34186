"""llama.cpp's parameters for loading a model, from its settings."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from typing import Any

from specllama.config.load import ALL_LAYERS, AUTO, ModelSettings
from specllama.errors import UsageError, option
from specllama.llama.devices import buffer_type, devices
from specllama.llama.library import llama
from specllama.models.memory.overrides import tensor_overrides

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
