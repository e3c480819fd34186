"""The keys under which a ModelProfile is stored: everything that the measured times and the learnt acceptance
depend on. After a change of a key everything is measured again.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import NotRequired, TypedDict

from specllama.config.load import ModelSettings
from specllama.core.interfaces import Drafter
from specllama.drafters import words_of
from specllama.gguf.header import Header
from specllama.gguf.identity import content_of, identity
from specllama.heads.kind import HeadInfo
from specllama.llama.context import LlamaContext
from specllama.llama.devices import devices
from specllama.llama.library import compiled
from specllama.models.memory.available import physical_cores


class ModelKey(TypedDict):
    """A model and the settings that affect its speed. lora: content and scale. draft_vocab: of a draft,
    "auto" where its vocabulary is another one.
    """

    model: list[str | int]
    lora: list[list[str | float]]
    n_gpu_layers: int
    placed: list[object]
    threads: list[int]
    cache: list[str]
    draft_vocab: NotRequired[str]


class TargetKey(ModelKey):
    """The target, the machine and the build of llama.cpp."""

    machine: list[str | int]
    compiled: str
    devices: list[list[str]]


class HeadKey(TypedDict):
    """A head, wherever its layers are; n_gpu_layers of the one that drafts."""

    head: str
    model: list[str | int]
    n_gpu_layers: NotRequired[int]


class PairKey(TypedDict):
    """What drafts: a draft model or a head, the target's own head next to a draft model, and the drafters."""

    draft: ModelKey | HeadKey | None
    head: NotRequired[HeadKey]
    drafters: list[str]


def model_key(header: Header, s: ModelSettings, context: LlamaContext) -> ModelKey:
    """A model and the settings that affect its speed, in types that JSON preserves.

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


def target_key(header: Header, s: ModelSettings, context: LlamaContext) -> TargetKey:
    """The target, the machine and the build of llama.cpp."""
    return {
        **model_key(header, s, context),
        "machine": [platform.machine(), platform.processor(), physical_cores()],
        "compiled": compiled(),
        "devices": [["" if d.remote else d.name, d.description] for d in devices()],
    }


def head_key(head: HeadInfo) -> HeadKey:
    """A head, wherever its layers are, in types that JSON preserves."""
    return {"head": head.kind.name, "model": identity(head.header)}


def pair_key(
    draft: ModelKey | HeadKey | None, drafters: Sequence[Drafter], second: HeadInfo | None = None
) -> PairKey:
    """The key of a pair: the key of the draft model or the head, and the drafters. second: the target's own
    head next to a draft model; its layers are where the target's are. The request history is not part of the
    key, since it has an acceptance table of its own.
    """
    key: PairKey = {"draft": draft, "drafters": words_of(drafters)}
    if second is not None:
        key["head"] = head_key(second)
    return key
