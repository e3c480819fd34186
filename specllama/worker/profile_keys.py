"""The keys under which a ModelProfile is stored: everything that the measured times and the learnt acceptance
depend on. After a change of a key everything is measured again.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

from specllama.config.load import ModelSettings
from specllama.core.interfaces import Drafter
from specllama.drafters import words_of
from specllama.gguf.header import Header
from specllama.llama.context import LlamaContext
from specllama.llama.devices import devices
from specllama.llama.library import compiled
from specllama.models.memory.available import physical_cores


def model_key(header: Header, s: ModelSettings, context: LlamaContext) -> dict[str, Any]:
    """A model and the settings that affect its speed, in types that JSON preserves.

    The size of the context is not part of the key: only the length in use matters, and there is a cost curve
    for each range of lengths.
    """
    placed = [s.split_mode, s.main_gpu, list(s.devices), list(s.tensor_split), s.n_cpu_moe]
    overrides = [list(override) for override in s.override_tensor]
    return {
        "model": [header.name, header.architecture, header.quant, header.n_params, header.file_bytes],
        "lora": [list(one) for one in s.lora],
        "n_gpu_layers": s.n_gpu_layers,
        "placed": [*placed, overrides],
        "threads": [context.n_threads, context.n_threads_batch],
        "cache": [s.cache_type_k, s.cache_type_v, s.flash_attn, s.swa_full],
    }


def target_key(header: Header, s: ModelSettings, context: LlamaContext) -> dict[str, Any]:
    """The target, the machine and the build of llama.cpp."""
    return {
        **model_key(header, s, context),
        "machine": [platform.machine(), platform.processor(), physical_cores()],
        "compiled": compiled(),
        "devices": [["" if d.remote else d.name, d.description] for d in devices()],
    }


def pair_key(
    draft: Mapping[str, Any] | None, head: Mapping[str, Any] | None, drafters: Sequence[Drafter]
) -> dict[str, Any]:
    """The key of a pair: the keys of the draft model and of the head, and the drafters. The request history
    is not part of it, since it has an acceptance table of its own.
    """
    second = {"head": head} if draft is not None and head is not None else {}
    return {"draft": head if draft is None else draft, **second, "drafters": words_of(drafters)}
