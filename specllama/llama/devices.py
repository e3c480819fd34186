"""The devices and buffer types that this build of llama.cpp can use."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from specllama.errors import UsageError, option
from specllama.llama.library import ggml

_GPU_TYPES = (1, 2)  # ggml_backend_dev_type: GPU, integrated GPU


@dataclass(frozen=True, slots=True)
class Device:
    """A device of this build.

    gpu: llama.cpp counts an RPC worker as one, whatever its hardware. remote: the device of an RPC worker,
    whose description is the worker's address. free, total: bytes of memory. handle: ggml_backend_dev_t.
    """

    name: str
    description: str
    gpu: bool
    remote: bool
    free: int
    total: int
    handle: int


def devices() -> list[Device]:
    """All devices of the build, the CPU among them, and those of the RPC workers that were added."""
    listed = []
    for i in range(ggml.ggml_backend_dev_count()):
        dev = ggml.ggml_backend_dev_get(i)
        free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
        ggml.ggml_backend_dev_memory(dev, ctypes.byref(free), ctypes.byref(total))
        name = ggml.ggml_backend_dev_name(dev).decode()
        about = ggml.ggml_backend_dev_description(dev).decode()
        gpu = ggml.ggml_backend_dev_type(dev) in _GPU_TYPES
        remote = ggml.ggml_backend_reg_name(ggml.ggml_backend_dev_backend_reg(dev)) == b"RPC"
        listed.append(Device(name, about, gpu, remote, free.value, total.value, dev))
    return listed


def buffer_type(name: str) -> int:
    """The ggml_backend_buffer_type_t with this name. Raises UsageError listing the known names."""
    known = {}
    for device in devices():
        handle = ggml.ggml_backend_dev_buffer_type(device.handle)
        known[ggml.ggml_backend_buft_name(handle).decode()] = handle
    if name not in known:
        raise UsageError(
            f"no buffer type {name!r} for {option('override_tensor')}", f"there are: {', '.join(known)}"
        )
    return int(known[name])
