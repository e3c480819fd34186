"""The keys under which a profile (profile.py) is stored: everything that the measured times and the learnt
acceptance depend on. After a change of a key everything is measured again.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence

from specllama.config.load import ModelSettings
from specllama.core.interfaces import Drafter
from specllama.drafters import words_of
from specllama.gguf.header import Header, content_of, identity
from specllama.heads.kind import HeadInfo
from specllama.json_types import JsonObject
from specllama.llama.context import LlamaContext
from specllama.llama.library import compiled, devices
from specllama.models.memory.available import physical_cores


def model_key(header: Header, s: ModelSettings, context: LlamaContext) -> JsonObject:
    """A model and the settings that affect its speed, in types that JSON preserves. lora: content and scale.
    The size of the context is not part of the key: only the length in use matters, and there is a cost curve
    for each range of lengths.
    """
    placed = [s.split_mode, s.main_gpu, list(s.devices), list(s.tensor_split), s.n_cpu_moe]
    overrides = [list(override) for override in s.override_tensor]
    return {
        "model": identity(header),
        "lora": [[content_of(path), scale] for path, scale in s.lora],
        "n_gpu_layers": s.n_gpu_layers,
        "placed": [*placed, overrides],
        "threads": [context.n_threads, context.n_threads_batch],
        "cache": [s.cache_type_k, s.cache_type_v, s.flash_attn],
    }


def target_key(header: Header, s: ModelSettings, context: LlamaContext) -> JsonObject:
    """The target, the machine and the build of llama.cpp."""
    return {
        **model_key(header, s, context),
        "machine": [platform.machine(), platform.processor(), physical_cores()],
        "compiled": compiled(),
        "devices": [["" if d.remote else d.name, d.description] for d in devices()],
    }


def head_key(head: HeadInfo) -> JsonObject:
    """A head, wherever its layers are, in types that JSON preserves."""
    return {"head": head.kind.name, "model": identity(head.header)}


def pair_key(
    draft: JsonObject | None, drafters: Sequence[Drafter], second: HeadInfo | None = None
) -> JsonObject:
    """The key of a pair: the key of the draft model or the head, and the drafters. second: the target's own
    head next to a draft model; its layers are where the target's are. The request history is not part of the
    key, since it has an acceptance table of its own.
    """
    own = {"head": head_key(second)} if second is not None else {}
    return {"draft": draft, "drafters": words_of(drafters), **own}
