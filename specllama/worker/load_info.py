"""Describes a load and the build of llama.cpp to the front, as LoadInfo and BuildInfo, with the notes for the
user. Measures nothing.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specllama.client.model_info import BuildInfo, DeviceInfo, LoadInfo, ModelInfo
from specllama.config.load import AUTO
from specllama.core.sampling.params import MAX_STEPS, PARAMETERS, SamplingParams, step_name
from specllama.drafters import words_of
from specllama.errors import Note, option
from specllama.gguf.header import Header
from specllama.llama.context import LlamaContext, why_no_branches
from specllama.llama.embedding import EmbeddingContext
from specllama.llama.library import KERNELS, build_info, devices, system_info
from specllama.llama.model import LlamaModel, fim_tokens
from specllama.models.memory.available import gpus_present
from specllama.models.memory.plan import MemoryPlan
from specllama.worker.loader import Loaded
from specllama.worker.tool_calls import ToolCalls


def load_info(loaded: Loaded, template_works: bool, notes: Sequence[Note], calls: ToolCalls) -> LoadInfo:
    """notes: added to those about the settings and the pair. calls: how the model calls tools."""
    s, header, model, context = loaded.settings, loaded.header, loaded.model, loaded.context
    head, verdicts, plan = loaded.head, loaded.verdicts, loaded.plan
    draft = loaded.draft or head
    planned = plan.draft if loaded.draft else plan.head or plan.draft
    return LoadInfo(
        **facts(s.target.path, header, model, context, plan),
        draft=model_info(draft.settings.path, draft.header, planned.n_gpu_layers)
        if draft and planned
        else None,
        head=head.head.label if head else "",
        head_in_target=head is not None and not head.head.own_file,
        verdict=verdicts[0 if loaded.draft else -1].verdict if verdicts else None,
        n_ctx_draft=draft.context.n_ctx if draft else 0,
        drafters=tuple(words_of(loaded.drafters)),
        memory=loaded.history is not None,
        draft_max=s.draft_max,
        longest_draft=loaded.longest_draft,
        notes=(
            *_placement_notes(loaded),
            *_settings_notes(loaded),
            *sampling_notes(model.metadata),
            *(note for verdict in verdicts for note in verdict.notes if note.severity == "warning"),
            *map(Note, plan.warnings),
            *notes,
        ),
        off_reason=loaded.off_reason,
        load_seconds=loaded.load_seconds,
        n_slots=s.n_slots,
        sampling=SamplingParams.merge(sampling_defaults(model.metadata)),
        template=s.chat_template or header.chat_template or "",
        template_works=template_works,
        model_based=tuple(words_of([d for d in loaded.drafters if d.runs_model])),
        forced=tuple(d.name for d in loaded.drafters if d.forces),
        call_format=calls.format.name,
        call_tokens=tuple(calls.tokens),
        template_reasons=calls.reasons,
        infill=not fim_tokens(model).missing,
        vision=loaded.vision is not None,
        mmproj=s.projector,
    )


def facts(
    path: str,
    header: Header,
    model: LlamaModel,
    context: LlamaContext | EmbeddingContext,
    plan: MemoryPlan,
) -> dict[str, Any]:
    """The fields of LoadInfo that a file and its context have, whatever the model makes."""
    return {
        "target": model_info(path, header, plan.target.n_gpu_layers),
        "n_ctx": context.n_ctx,
        "n_vocab": model.n_vocab,
        "n_threads": context.n_threads,
        "n_ctx_train": model.n_ctx_train,
        "file_bytes": header.file_bytes,
        "end_ids": tuple(sorted(model.end_ids)),
        "bos_token": model.token_text(model.bos_id),
        "eos_token": model.token_text(model.eos_id),
        "architecture": header.architecture,
        "n_layer": header.n_layer,
        "host_bytes": plan.host,
        "device_bytes": plan.device,
        "gpus": tuple(device for device in device_infos() if device.gpu),
    }


def model_info(path: str, header: Header, n_gpu_layers: int) -> ModelInfo:
    name = header.name or os.path.basename(path)
    return ModelInfo(path, name, header.n_params, header.quant, n_gpu_layers)


_LEAST_CONTEXT = 256  # tokens: llama.cpp rounds up to multiples of it


def _placement_notes(loaded: Loaded) -> list[Note]:
    """Where the target's layers are, if RPC workers are used."""
    if not loaded.settings.rpc:
        return []
    from specllama.worker.rpc import placement_notes

    return placement_notes(loaded.settings, loaded.plan.target.n_gpu_layers, loaded.header.n_layer)


def _settings_notes(loaded: Loaded) -> list[Note]:
    settings, model, context = loaded.settings, loaded.model, loaded.context
    notes = []
    if loaded.vision is not None:
        notes.append(f"reads images ({os.path.basename(settings.projector)})")
    if 0 < settings.target.n_ctx < min(_LEAST_CONTEXT, context.n_ctx):
        less = f"llama.cpp makes no context of less than {_LEAST_CONTEXT} tokens"
        notes.append(f"{option('n_ctx', settings.target.n_ctx)} becomes {context.n_ctx}: {less}")
    offloaded = [
        s.n_gpu_layers for s in (settings.target, settings.draft) if s and s.n_gpu_layers not in (AUTO, 0)
    ]
    present, gpus = gpus_present(), [d for d in devices() if d.gpu]
    if present and all(d.remote for d in gpus):
        notes.append(
            f"a GPU is present ({', '.join(present)}) but this build of llama.cpp cannot use it; rebuild it "
            f"with SPECLLAMA_BACKEND={present[0]} scripts/specllama"
        )
    elif offloaded and not gpus:
        notes.append(
            f"this build of llama.cpp cannot use a GPU: {option('n_gpu_layers')} has no effect, "
            "all layers are on the CPU"
        )
    if settings.draft_max is None and (settings.draft_min or settings.draft_p_min):
        notes.append(
            f"{option('draft_min')} and {option('draft_p_min')} have no effect unless {option('draft_max')} "
            "is a number"
        )
    if settings.target.use_mlock and model.not_locked:
        notes.append(
            f"{option('mlock')} cannot keep the whole model in memory: {model.not_locked}; ulimit -l shows "
            "the limit"
        )
    if KERNELS.reason:
        text = "" if settings.exact else f"drafts may change the text, which {option('exact')} prevents, and "
        notes.append(f"specllama's kernels are not used: {KERNELS.reason}; {text}small batches are slower")
    elif loaded.plan.target.n_gpu_layers and loaded.drafters and not settings.exact | loaded.holds_widths:
        notes.append(f"drafts may change the text by rounding, which {option('exact')} prevents")
    if context.cuts_need_checkpoint and settings.drafters and settings.draft_max != 0:
        notes.append(
            "this model's memory cannot be rolled back: the accepted tokens of a draft that is not accepted "
            "as a whole are evaluated again"
        )
    reads_target = loaded.head is not None and loaded.head.head.kind.shares_cache
    reason = "the head reads the target's cache" if reads_target else why_no_branches(model)
    if loaded.vision is not None and loaded.vision.mrope:
        reason = "the positions of images do not allow it"
    if settings.exact_width is not None or loaded.holds_widths:
        reason = "all decodes of a text have one width"
    if settings.draft_tree and reason:
        notes.append(f"{option('draft_tree')} has no effect, drafts are chains: {reason}")
    if loaded.draft is not None and loaded.draft.context.n_ctx < context.n_ctx:
        small = option("n_ctx_draft", loaded.draft.context.n_ctx)
        notes.append(f"{small}: the draft model proposes little or nothing in longer texts")
    return [Note(note) for note in notes]


def inspect_build() -> BuildInfo:
    return BuildInfo(**build_info(), features=features(system_info()), devices=device_infos())


def device_infos() -> tuple[DeviceInfo, ...]:
    return tuple(DeviceInfo(d.name, d.description, d.gpu, d.free, d.total) for d in devices())


def features(system_info: str) -> dict[str, list[str]]:
    """The enabled features in a line like `CPU : AVX2 = 1 | FMA = 0 | CUDA : ARCHS = 890 |`, by backend; a
    value other than 1 is kept ("ARCHS=890").
    """
    by_backend: dict[str, list[str]] = {}
    backend = ""
    for field in system_info.split("|"):
        *heads, setting = field.split(" : ")
        backend = heads[-1].strip() if heads else backend
        pair = re.fullmatch(r"\s*(\S+) = (.*?)\s*", setting)
        if pair and pair[2] not in ("0", ""):
            by_backend.setdefault(backend, []).append(pair[1] if pair[2] == "1" else f"{pair[1]}={pair[2]}")
    return by_backend


# The sampling parameters in a model's file (general.sampling.*), read as llama.cpp reads them.
#
# llama.cpp checks none of them: numbers are read as far as they go, and its samplers take what is out of
# range as switched off, or as the nearest value.


Metadata = Callable[[str], str | None]
_PREFIX = "general.sampling."
_KEYS: Mapping[str, str] = {name: p.file_key for name, p in PARAMETERS.items() if p.file_key}
_INTEGER = re.compile(r"\s*[+-]?[0-9]+")
_NUMBER = re.compile(r"\s*[+-]?(?:[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|inf|nan)")


def sampling_defaults(metadata: Metadata) -> Mapping[str, object]:
    """The parameters that a file sets. metadata: from a key to its value as text, None if it is not there."""
    defaults = {name: value for name in _KEYS if (value := _value(metadata, name)) is not None}
    steps, _ = _steps(metadata)
    return defaults if steps == PARAMETERS["samplers"].default else {**defaults, "samplers": steps}


def sampling_notes(metadata: Metadata) -> list[Note]:
    """The file's sampling settings that are not applied."""
    left_out = []
    for name, key in _KEYS.items():
        text = metadata(_PREFIX + key)
        if text is not None and _value(metadata, name) is None:
            left_out.append(f"{key} = {text[:40]}")
    _, problem = _steps(metadata)
    if problem:
        left_out.append(problem)
    if not left_out:
        return []
    return [Note(f"of the sampling settings in the model's file these are left out: {'; '.join(left_out)}")]


def _value(metadata: Metadata, name: str) -> float | None:
    """The value of a parameter, None if there is none that can be used."""
    text, parameter = metadata(_PREFIX + _KEYS[name]), PARAMETERS[name]
    match = (_INTEGER if parameter.kind is int else _NUMBER).match(text or "")
    if not match:
        return None
    if parameter.kind is int:
        return max(0, min(int(match[0]), int(parameter.highest)))
    value = float(match[0])
    if math.isnan(value) or (name == "repeat_penalty" and not 0 < value < math.inf):
        return None
    return max(float(parameter.low or 0), min(value, float(parameter.highest)))


def _steps(metadata: Metadata) -> tuple[tuple[str, ...], str]:
    """(The steps of general.sampling.sequence; what of it is left out)."""
    text = metadata(_PREFIX + "sequence")
    if not text:
        return PARAMETERS["samplers"].default, ""
    names = [name.strip().lower() for name in text.split(";")]
    unknown = [name for name in names if not step_name(name)]
    steps = tuple(filter(None, map(step_name, names)))[:MAX_STEPS]
    return steps, f"{', '.join(unknown)[:80]} in the sequence of samplers" if unknown else ""
