"""The memory plan of a load: from load settings and headers to what plan.py asks; the GPUs that it uses.

The engine process plans with it before it loads, and a server before it starts an engine process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specllama.config.load import AUTO, LoadSettings, ModelSettings
from specllama.errors import ResourceError, option
from specllama.gguf.header import Header
from specllama.heads.kind import HeadInfo
from specllama.models.memory.cost import keeps_all_cells, tensor_overrides
from specllama.models.memory.plan import DeviceMemory, MemoryPlan, PlanSettings, plan_memory

DRAFT_BUDGET = 64  # rows of logits beyond one per slot
MAX_SEQUENCES = 256  # of a context: LLAMA_MAX_SEQ
VISIBLE_CELLS = 256  # caches have a multiple of this many cells
ROLLBACK = 16  # recurrent states kept per sequence if drafts have no fixed length


def rows_of_logits(settings: LoadSettings) -> int:
    """The rows of logits that a decode of the target has at most."""
    n_slots = settings.n_slots
    return max(n_slots, 64, n_slots + max(DRAFT_BUDGET, settings.draft_max or 0))


def spare_cells(settings: LoadSettings) -> int:
    """Cells of the target's cache beyond its context, for the rows that fill up decodes at its end."""
    return VISIBLE_CELLS if settings.exact or settings.target.n_gpu_layers != 0 else 0


def branch_sequences(settings: LoadSettings) -> int:
    """The branches that a decode of the target may have, those of all texts together."""
    n_slots, n_tree = settings.n_slots, settings.draft_tree
    if not settings.drafters or settings.draft_max == 0 or not n_tree:
        return 0
    return max(0, min(n_tree * n_slots, MAX_SEQUENCES - n_slots))


def rollback(settings: LoadSettings) -> int:
    """The recurrent states that each sequence of the target keeps."""
    return 0 if not settings.drafters or settings.draft_max == 0 else (settings.draft_max or ROLLBACK)


def on_gpus(settings: LoadSettings, there: Sequence[str]) -> LoadSettings:
    """The settings with the names of the GPUs that `tensor_parallel_size` asks for; the draft uses the same
    ones unless its own are named. there: names of all GPUs. Raises ResourceError if there are fewer.
    """
    target, draft = settings.target, settings.draft
    n = target.tensor_parallel_size
    usable = [name for name in there if not target.devices or name in target.devices]
    if not n or (n == 1 and not usable):
        return settings
    if len(usable) < n:
        usable_text = f"only {', '.join(usable)} can be used" if usable else "no GPU can be used"
        raise ResourceError(
            f"needs {n} GPUs, and {usable_text}",
            f"specllama doctor lists the devices; {option('tensor_parallel_size', max(1, len(usable)))} fits",
            option="tensor_parallel_size",
        )
    names = tuple(usable[:n])
    if draft is not None and not draft.devices:
        draft = replace(draft, devices=names)
    return replace(settings, target=replace(target, devices=names), draft=draft)


def plan_load(
    settings: LoadSettings,
    target: Header,
    draft: Header | HeadInfo | None,
    available: int,
    devices: Sequence[DeviceMemory],
    n_outputs: int | None = None,
    n_rs_seq: int | None = None,
    head: HeadInfo | None = None,
) -> MemoryPlan:
    """The plan of a load. draft, head: as in `plan_memory`. available: bytes of host memory. devices: all
    GPUs of the build. n_outputs, n_rs_seq: instead of what the settings ask for. Raises what `plan_memory`
    raises.
    """
    t, d = settings.target, settings.draft or settings.target
    return plan_memory(
        target,
        draft,
        PlanSettings(
            available=available,
            n_ctx=t.n_ctx or None,
            n_ctx_draft=d.n_ctx or None if settings.draft else None,
            n_spare=spare_cells(settings),
            n_slots=settings.n_slots,
            n_batch=t.n_batch,
            n_ubatch=t.n_ubatch,
            n_outputs_max=rows_of_logits(settings) if n_outputs is None else n_outputs,
            n_rs_seq=rollback(settings) if n_rs_seq is None else n_rs_seq,
            swa_full=keeps_all_cells(settings, head is not None or isinstance(draft, HeadInfo)),
            cache_type_k=t.cache_type_k,
            cache_type_v=t.cache_type_v,
            cache_type_k_draft=d.cache_type_k,
            cache_type_v_draft=d.cache_type_v,
            flash_attn=t.flash_attn,  # type: ignore[arg-type]
            n_gpu_layers=_layers(t),
            n_gpu_layers_draft=_layers(d),
            devices=_used(t, devices),
            devices_draft=_used(d, devices),
            overrides=tuple(tensor_overrides(t)),
            overrides_draft=tuple(tensor_overrides(d)),
        ),
        head,
    )


def plan_head(
    settings: LoadSettings,
    target: Header,
    head: HeadInfo,
    loaded: MemoryPlan,
    available: int,
    devices: Sequence[DeviceMemory],
) -> MemoryPlan:
    """The plan of a load for a head in a file of its own, where the target is loaded already, by the plan
    `loaded`. settings: of the target and of the head, as its draft. available, devices: what is free now.
    Raises what `plan_memory` raises.
    """
    used, t = loaded.target, settings.target
    available += max(0, used.host - used.weights) if t.use_mmap else used.host
    free = sum(d.free for d in devices)
    before = [replace(d, free=d.free + used.device * d.free // max(1, free)) for d in devices]
    fixed = replace(t, n_ctx=used.n_ctx, n_gpu_layers=used.n_gpu_layers)
    return plan_load(replace(settings, target=fixed), target, head, available, before)


def _layers(s: ModelSettings) -> int | None:
    if s.devices == ("none",):
        return 0
    return None if s.n_gpu_layers == AUTO else s.n_gpu_layers


def _used(s: ModelSettings, devices: Sequence[DeviceMemory]) -> tuple[DeviceMemory, ...]:
    used = tuple(d for d in devices if not s.devices or d.name in s.devices)
    return used[s.main_gpu : s.main_gpu + 1] if s.split_mode == "none" else used
