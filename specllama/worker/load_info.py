"""What a front is told of a load, and the key under which its measurements are stored."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from specllama.config.load import AUTO, LoadSettings, ModelSettings
from specllama.core.interfaces import Drafter
from specllama.core.policy.pair_state import MEMORY
from specllama.core.sampling.params import SamplingParams
from specllama.errors import option
from specllama.gguf.header import Header
from specllama.llama.context import LlamaContext
from specllama.llama.devices import devices
from specllama.llama.library import compiled
from specllama.llama.model import LlamaModel
from specllama.models.memory.available import gpus_present, physical_cores
from specllama.pair.check import PairVerdict

_GGUF_SAMPLING: tuple[tuple[str, str, Callable[[str], Any]], ...] = (
    ("temperature", "temp", float),
    ("top_k", "top_k", int),
    ("top_p", "top_p", float),
    ("min_p", "min_p", float),
    ("repeat_last_n", "penalty_last_n", int),
    ("repeat_penalty", "penalty_repeat", float),
)


def about(path: str, header: Header, n_gpu_layers: int) -> dict[str, Any]:
    """A model, for the read-out and `--json`."""
    return {
        "path": path,
        "name": header.name or os.path.basename(path),
        "params": header.n_params,
        "quant": header.quant,
        "n_gpu_layers": n_gpu_layers,
    }


def for_api(settings: LoadSettings, header: Header, model: LlamaModel) -> dict[str, Any]:
    """What clients of the server ask beside that: the defaults of sampling, the template, the vocabulary."""
    return {
        "n_slots": settings.n_slots,
        "n_ctx_train": model.n_ctx_train,
        "file_bytes": header.file_bytes,
        "end_ids": sorted(model.end_ids),
        "sampling": asdict(SamplingParams.merge(sampling_defaults(model))),
        "template": settings.chat_template or header.chat_template or "",
        "bos_token": model.token_text(model.bos_id),
        "eos_token": model.token_text(model.eos_id),
    }


def notes(settings: LoadSettings, context: LlamaContext) -> list[str]:
    """What the user should know of how the models were loaded."""
    notes = []
    asked = [
        s.n_gpu_layers for s in (settings.target, settings.draft) if s and s.n_gpu_layers not in (AUTO, 0)
    ]
    present, found = gpus_present(), [d for d in devices() if d.gpu]
    if present and all(d.remote for d in found):
        notes.append(
            f"a GPU is present ({', '.join(present)}) but this build of llama.cpp cannot use it; rebuild it "
            f"with SPECLLAMA_BACKEND={present[0]} scripts/specllama"
        )
    elif asked and not found:
        notes.append(
            f"this build of llama.cpp can use no GPU: {option('n_gpu_layers')} has no effect, "
            "all layers are on the CPU"
        )
    if settings.draft_max is None and (settings.draft_min or settings.draft_p_min):
        without_effect = f"{option('draft_min')} and {option('draft_p_min')} have no effect"
        notes.append(f"{without_effect} where {option('draft_max')} is not a number")
    if context.cuts_need_checkpoint and settings.drafters and settings.draft_max != 0:
        notes.append("this model's memory cannot go back: a draft that is not accepted whole costs a replay")
    return notes


def verdict_notes(verdict: PairVerdict | None) -> list[str]:
    """Warnings only; `pair-check` tells the rest."""
    return [note for note in verdict.notes if note.startswith("warning:")] if verdict else []


def speculation(settings: LoadSettings, drafters: Sequence[Drafter], problem: str) -> dict[str, str]:
    """On, or off and why."""
    if drafters:
        return {"speculation": "on", "reason": ""}
    if settings.draft_max == 0:
        return {"speculation": "off", "reason": option("draft_max", 0)}
    if problem:
        return {"speculation": "off", "reason": problem}
    return {"speculation": "off", "reason": f"no drafter: {option('drafters')} names none that can be used"}


def store_key(header: Header, s: ModelSettings, context: LlamaContext) -> dict[str, Any]:
    """What measured times and differences depend on. Not on the size of the context: what counts is how much
    of it is in use, and for that there is a cost curve each.
    """
    return {
        **_identity(header, s, context),
        "machine": [platform.machine(), platform.processor(), physical_cores()],
        "compiled": compiled(),
        "devices": [["" if d.remote else d.name, d.description] for d in devices()],
    }


def pair_key(
    header: Header | None, s: ModelSettings | None, context: LlamaContext | None, drafters: Sequence[Drafter]
) -> dict[str, Any]:
    """What the things learnt of a pair depend on, beside the target: the draft in use, and who drafts, the
    memory left aside, which has a table of its own.
    """
    draft = _identity(header, s, context) if header and s and context else None
    return {"draft": draft, "drafters": [d.name for d in drafters if d.name != MEMORY]}


def _identity(header: Header, s: ModelSettings, context: LlamaContext) -> dict[str, Any]:
    """A model and how it is run, as JSON gives it back."""
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


def sampling_defaults(model: LlamaModel) -> dict[str, Any]:
    """What the file says of sampling (general.sampling.*); what is no number there is left out."""
    found = {}
    for name, key, kind in _GGUF_SAMPLING:
        text = model.metadata(f"general.sampling.{key}")
        if text is not None:
            with contextlib.suppress(ValueError):
                found[name] = kind(text)
    return found
