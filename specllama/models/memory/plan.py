"""The memory plan: whether target and draft fit, and with which context and layers, before a load.

Pure functions over headers and numbers: cost.py computes what a model needs, available.py what the
machine has. A plan that does not fit is refused with settings that would fit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specllama.config.defaults import N_CTX_DEFAULT
from specllama.config.load import ALL_LAYERS, AUTO, LoadSettings, ModelSettings
from specllama.errors import ResourceError, UsageError, option
from specllama.gguf.architectures import ENCODERS, computed_at_once, pooling_of
from specllama.gguf.header import Header
from specllama.gguf.parse import TYPE_BY_NAME
from specllama.gguf.projector import Projector
from specllama.heads import HEAD_ARCHITECTURES, file_head
from specllama.heads.kind import HeadInfo, of_blocks
from specllama.models.memory.available import DeviceMemory as DeviceMemory
from specllama.models.memory.cost import (
    N_CTX_PAD,
    NO_IMAGES,
    CostSettings,
    ImageMemory,
    MemoryCosts,
    Usage,
    image_memory,
    keeps_all_cells,
)

# The parts of a file with a head, as headers of their own, so that the memory of each can be planned.
#
# llama.cpp keeps two contexts for them: the model's has no cache for the head's blocks, the head's none for
# the others.


_F32 = 4


def without_head(header: Header) -> Header:
    """The model without its blocks of multi-token prediction, which its own context does not use."""
    n = header.n_layer_trunk
    if n == header.n_layer or header.architecture in HEAD_ARCHITECTURES:
        return header
    dropped = tuple(f"blk.{i}." for i in range(n, header.n_layer))
    tensors = tuple(t for t in header.tensors if not t.name.startswith(dropped))
    return of_blocks(header, range(n), tensors)


def row_buffers(head: HeadInfo, n_batch: int) -> int:
    """Bytes of the buffers through which hidden states of a batch go from the target to the head and back."""
    width = head.n_embd_target * max(1, len(head.target_layers))
    return n_batch * (width + max(head.n_embd, head.n_embd_target)) * _F32


DRAFT_BUDGET = 64  # rows of logits beyond one per slot
MAX_SEQUENCES = 256  # of a context: LLAMA_MAX_SEQ
VISIBLE_CELLS = 256  # caches have a multiple of this many cells
ROLLBACK = 16  # recurrent states kept per sequence if drafts have no fixed length
MIN_N_CTX = 512
_DEFAULT_SHARE = 0.9  # of the available memory that a default context may use
_DEVICE_RESERVE = 256 << 20  # bytes of each device left to its driver and other programs
_DEFAULT = CostSettings()

# Bits per weight of common quantisations, best first.
_QUANTS = (("Q8_0", 8.5), ("Q6_K", 6.6), ("Q5_K_M", 5.7), ("Q4_K_M", 4.9), ("Q3_K_M", 4.0), ("Q2_K", 3.2))


@dataclass(frozen=True)
class PlanSettings:
    """The settings to plan for. available: bytes of host memory. draft: None for those of the target, but its
    context. n_ctx 0: the plan chooses, for the draft that of the target. images: of a projector, whose bytes
    on the devices their free memory does not have any more.
    """

    available: int
    target: CostSettings = _DEFAULT
    draft: CostSettings | None = None
    images: ImageMemory = NO_IMAGES

    @property
    def of_draft(self) -> CostSettings:
        return self.draft or replace(self.target.with_model(n_ctx=0), n_spare=0, swa_full=True)

    def with_models(self, **changes: Any) -> PlanSettings:
        """With changed settings of both models."""
        target, draft = self.target.with_model(**changes), self.of_draft.with_model(**changes)
        return replace(self, target=target, draft=draft)


@dataclass(frozen=True)
class MemoryPlan:
    """The memory of all models and of the projector. available, host, device: bytes. device_room: free bytes
    of the target's devices; draft_room: free bytes of the draft's devices next to the target. head: of the
    target's own head where a draft model drafts too; alone it is `draft`.
    """

    target: Usage
    draft: Usage | None
    available: int
    host: int
    device: int
    device_room: int
    draft_room: int
    warnings: tuple[str, ...] = ()
    head: Usage | None = None
    images: ImageMemory = NO_IMAGES

    @property
    def n_ctx(self) -> int:
        return self.target.n_ctx

    @property
    def n_ctx_draft(self) -> int:
        """0 without a draft."""
        return self.draft.n_ctx if self.draft else 0

    @property
    def fits(self) -> bool:
        return self.host <= self.available and self.fits_devices

    @property
    def fits_devices(self) -> bool:
        of_draft = self.draft.device if self.draft else 0
        return self.on_device <= self.device_room and of_draft <= self.draft_room

    @property
    def on_device(self) -> int:
        """Bytes on the target's devices of the target, and of its own head next to a draft model."""
        return self.target.device + (self.head.device if self.head else 0)


def plan_memory(
    target: Header, draft: Header | HeadInfo | None, settings: PlanSettings, head: HeadInfo | None = None
) -> MemoryPlan:
    """Choose context and layers, and check that everything fits.

    draft: a model, the file of a head, or a head, such as the target's own, which is not loaded otherwise.
    head: the target's own, next to a draft model. The headers must have passed `check_model` and
    `check_draft`. Raises ResourceError with needed and available GB and settings that would fit, UsageError
    for a cache type whose blocks do not divide the head size.
    """
    if isinstance(draft, Header):
        draft = file_head(draft) or draft
    planner = _Planner(target, draft, settings, head)
    _check_cache_types(planner.target, settings.target)
    if planner.draft:
        _check_cache_types(planner.draft, settings.of_draft)
    if n_ctx := settings.target.model.n_ctx:
        plan = planner.plan(n_ctx)
    else:
        roomy = replace(settings, available=int(settings.available * _DEFAULT_SHARE))
        most = min(target.n_ctx_train or N_CTX_DEFAULT, N_CTX_DEFAULT)
        chosen = planner.with_settings(roomy).largest_fitting(most)
        plan = planner.plan(chosen or _least_n_ctx(target))
    if not plan.fits:
        raise _refusal(planner, plan)
    return replace(plan, warnings=tuple(_warnings(planner, plan)))


class _Planner:
    """One combination of models and settings, whose plans may fit or not."""

    def __init__(
        self,
        target: Header,
        draft: Header | HeadInfo | None,
        settings: PlanSettings,
        second: HeadInfo | None = None,
    ) -> None:
        self._given = target, draft, second
        self.target, self.settings = without_head(target), settings
        head = draft if isinstance(draft, HeadInfo) else None
        self.draft = draft.memory_header if isinstance(draft, HeadInfo) else draft
        self.inside = head is not None and not head.own_file
        n_above = target.n_layer - self.target.n_layer
        self._target = MemoryCosts(self.target, settings.target, n_above)
        # A head inside the target has the types of the target's cache.
        of_draft = settings.target if self.inside else settings.of_draft
        self._draft = _costs(self.draft, head, of_draft) if self.draft else None
        self.head = second.memory_header if second is not None else None
        self._head = _costs(self.head, second, settings.target) if self.head else None

    @property
    def headers(self) -> list[Header]:
        """Of the target, the draft and the target's own head next to it."""
        return [self.target, *(h for h in (self.draft, self.head) if h is not None)]

    def with_settings(self, settings: PlanSettings, alone: bool = False) -> _Planner:
        """One with other settings. alone: without draft and head."""
        target, draft, second = self._given
        return _Planner(target, None if alone else draft, settings, None if alone else second)

    def plan(self, n_ctx: int) -> MemoryPlan:
        s, d = self.settings.target, self.settings.of_draft
        room, n_ctx_draft = _room(s.devices), d.model.n_ctx or n_ctx
        target = replace(_offloaded(self._target, n_ctx + s.n_spare, s.n_gpu_layers, room), n_ctx=n_ctx)
        # The blocks of a head inside the target go where its last layers go.
        with_last = ALL_LAYERS if target.n_gpu_layers else 0
        usages, draft_room = [(target, s.devices)], 0
        head, draft = None, None
        if self._head:
            head = _offloaded(self._head, n_ctx_draft, with_last, room)
            usages.append((head, s.devices))
        if self._draft:
            own = s.devices if self.inside else d.devices
            draft_room = _room(own) - sum(_part(used.device, s.devices, own) for used, _ in usages)
            layers = with_last if self.inside else d.n_gpu_layers
            draft = _offloaded(self._draft, n_ctx_draft, layers, draft_room)
            usages.append((draft, own))
        images = self.settings.images
        device = images.device + sum(usage.device for usage, _ in usages)
        host = images.host + sum(usage.host for usage, _ in usages)
        host += images.device if s.devices[:1] and s.devices[0].unified else 0
        for usage, devices in usages:
            host += _part(usage.device, devices, [d for d in devices if d.unified])
        available = self.settings.available
        return MemoryPlan(target, draft, available, host, device, room, draft_room, head=head, images=images)

    def largest_fitting(self, most: int) -> int | None:
        """The largest n_ctx up to `most` that fits, by bisection in steps of 256 from 512; or None."""
        if self.plan(most).fits:
            return most
        least = min(_least_n_ctx(self.target), most)
        steps = range(least, most, N_CTX_PAD)
        n_fitting = bisect_left(steps, True, key=lambda n_ctx: not self.plan(n_ctx).fits)
        return steps[n_fitting - 1] if n_fitting else None


def _costs(draft: Header, head: HeadInfo | None, load: CostSettings) -> MemoryCosts:
    """Of a draft model, or of the parts of a head."""
    if head is None:
        return MemoryCosts(draft, load)
    return MemoryCosts(draft, load, rows=row_buffers(head, load.model.n_batch), n_contexts=head.n_chained)


def _room(devices: Iterable[DeviceMemory]) -> int:
    return sum(max(d.free - _DEVICE_RESERVE, 0) for d in devices)


def _part(n_bytes: int, spread: Sequence[DeviceMemory], counted: Iterable[DeviceMemory]) -> int:
    """The bytes on `counted` devices of `n_bytes` that are spread in proportion to their room."""
    names = {d.name for d in counted}
    inside = [d for d in spread if d.name in names]
    whole = _room(spread)
    return n_bytes * _room(inside) // whole if whole else n_bytes if inside else 0


def _offloaded(costs: MemoryCosts, n_ctx: int, n_gpu_layers: int, room: int) -> Usage:
    """The usage with `n_gpu_layers`; AUTO for as many layers as the devices have room for."""
    if n_gpu_layers != AUTO:
        return costs.usage(n_ctx, costs.n_offloaded_max if n_gpu_layers == ALL_LAYERS else n_gpu_layers)
    for n in range(costs.n_offloaded_max, costs.n_above, -1):
        usage = costs.usage(n_ctx, n)
        if usage.device <= room:
            return usage
    return costs.usage(n_ctx, 0)


def _check_cache_types(header: Header, load: CostSettings) -> None:
    kinds = {"cache_type_k": load.model.cache_type_k, "cache_type_v": load.model.cache_type_v}
    for size, (name, kind) in zip(MemoryCosts(header, load).head_sizes[0], kinds.items(), strict=True):
        block = TYPE_BY_NAME[kind].block_size
        if size % block:
            message = (
                f"{name} {kind} needs heads of a multiple of {block}, those of {header.name} have {size}"
            )
            raise UsageError(message, "Use f16.")


def _least_n_ctx(target: Header) -> int:
    return min(MIN_N_CTX, target.n_ctx_train or MIN_N_CTX)


def _warnings(planner: _Planner, plan: MemoryPlan) -> Iterator[str]:
    pairs = [(planner.target, plan.target, "n_ctx")]
    if planner.draft and plan.draft:
        pairs.append((planner.draft, plan.draft, "n_ctx_draft"))
    for header, usage, name in pairs:
        if 0 < header.n_ctx_train < usage.n_ctx:
            trained = f"{header.name} was trained on {header.n_ctx_train} tokens, n_ctx is {usage.n_ctx}"
            effect = "answers get worse" if name == "n_ctx" else "fewer drafts are accepted"
            yield f"{trained}: beyond that {effect}; {option(name, header.n_ctx_train)} avoids it"


def _refusal(planner: _Planner, plan: MemoryPlan) -> ResourceError:
    if plan.on_device > plan.device_room:
        needed, there, where = plan.on_device, plan.device_room, "on the devices"
    elif plan.draft and plan.draft.device > plan.draft_room:
        needed, there, where = plan.draft.device, plan.draft_room, "on the draft's devices"
    else:
        needed, there, where = plan.host, plan.available, "of memory"
    usages = [usage for usage in (plan.target, plan.draft, plan.head) if usage is not None]
    parts = {
        "weights": sum(u.weights for u in usages),
        "KV cache": sum(u.kv + u.state for u in usages),
        "buffers": sum(u.compute + u.outputs + u.fixed for u in usages),
    }
    if plan.images.weights:
        parts["images"] = plan.images.host + plan.images.device
    detail = ", ".join(f"{name} {_gigabytes(n)}" for name, n in parts.items())
    *others, last = [header.name for header in planner.headers]
    models = f"{', '.join(others)} and {last}" if others else last
    message = (
        f"not enough memory for {models} with n_ctx {plan.n_ctx}: "
        f"{_gigabytes(needed)} GB {where} needed ({detail}), {_gigabytes(there)} GB available"
    )
    remedies = list(_remedies(planner, plan))
    if not remedies:
        return ResourceError(message, "No setting makes it fit: free memory, or use a smaller model.")
    return ResourceError(message, "It would fit with " + ", or with ".join(remedies[:4]) + ".")


def _remedies(planner: _Planner, plan: MemoryPlan) -> Iterator[str]:
    """Settings that would fit, those with the least loss first; a smaller quantisation only if none fits."""
    s, draft = planner.settings, planner.draft
    any_remedy = False
    if not plan.fits_devices:
        auto = planner.with_settings(s.with_models(n_gpu_layers=AUTO)).plan(plan.n_ctx)
        if auto.fits:
            any_remedy = True
            both = " " + option("n_gpu_layers_draft", auto.draft.n_gpu_layers) if auto.draft else ""
            yield option("n_gpu_layers", auto.target.n_gpu_layers) + both
    alone = planner.with_settings(s, alone=True) if draft else None
    no_draft = option("draft_model", "none")
    no_images = planner.with_settings(replace(s, images=NO_IMAGES)) if s.images.weights else None
    variants = [
        ("", planner),
        (_cache_flags(draft), _quantised(planner)),
        (option("mmproj", "none"), no_images),
        (no_draft, alone),
        (f"{no_draft} {_cache_flags(None)}", _quantised(alone) if alone else None),
    ]
    for flags, variant in variants:
        if variant is None:
            continue
        if flags and variant.plan(plan.n_ctx).fits:
            any_remedy = True
            yield flags
            if variant is alone:  # smaller caches are not needed
                break
        elif n_ctx := _smaller_n_ctx(variant, plan):
            any_remedy = True
            both = " " + option("n_ctx_draft", n_ctx) if variant.draft and s.of_draft.model.n_ctx else ""
            yield f"{flags} {option('n_ctx', n_ctx)}".strip() + both
    if not any_remedy:
        yield from _smaller_quants(alone or planner, f"{no_draft} and " if draft else "")


def _smaller_n_ctx(variant: _Planner, plan: MemoryPlan) -> int | None:
    """The largest context below the refused one that fits; the draft's context is reduced with it."""
    shrunk = replace(variant.settings, draft=variant.settings.of_draft.with_model(n_ctx=0))
    if plan.n_ctx <= MIN_N_CTX:
        return None
    below = (plan.n_ctx - 1) // N_CTX_PAD * N_CTX_PAD
    return variant.with_settings(shrunk).largest_fitting(below)


def _quantised(planner: _Planner) -> _Planner | None:
    """One with Q8_0 caches; None if they would not help or their blocks do not divide the head size."""
    headers = planner.headers
    own = planner.settings.target.model
    wide = {"f32", "f16", "bf16"} & {own.cache_type_k, own.cache_type_v}
    sizes = [size for h in headers for pair in MemoryCosts(h, CostSettings()).head_sizes for size in pair]
    if not wide or not any(sizes) or any(size % 32 for size in sizes) or own.flash_attn == "off":
        return None
    return planner.with_settings(planner.settings.with_models(cache_type_k="q8_0", cache_type_v="q8_0"))


def _cache_flags(draft: Header | None) -> str:
    names = ["cache_type_k", "cache_type_v", *(["cache_type_k_draft", "cache_type_v_draft"] if draft else [])]
    return " ".join([*(option(name, "q8_0") for name in names), option("flash_attn", "on")])


def _smaller_quants(planner: _Planner, flags: str) -> Iterator[str]:
    """The best quantisation of the target that would leave memory for the smallest context."""
    plan = planner.plan(_least_n_ctx(planner.target))
    room = plan.target.weights - max(plan.host - plan.available, plan.target.device - plan.device_room)
    n_params = max(planner.target.n_params, 1)
    for name, bits in _QUANTS:
        if bits < plan.target.weights * 8 / n_params and n_params * bits / 8 <= room:
            yield f"{flags}a {name} file of the model"
            return


def _gigabytes(n: int) -> str:
    return f"{n / 1e9:.2f}"


# The plan of a load: the engine process plans with it before it loads, a server before it starts the process.


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
    projector: Projector | None = None,
) -> MemoryPlan:
    """The plan of a load. draft, head: as in `plan_memory`. available: bytes of host memory. devices: all
    GPUs of the build. n_outputs, n_rs_seq: instead of what the settings ask for. projector: of the target.
    Raises as `plan_memory`.
    """
    images = NO_IMAGES
    if projector is not None:
        settings, at = with_images(settings, projector), projector_device(settings, devices)
        images = image_memory(projector, settings.target.flash_attn, at is not None)
        devices = [replace(d, free=max(0, d.free - images.device)) if d is at else d for d in devices]
    t, d = settings.target, settings.draft or replace(settings.target, n_ctx=0)
    of_target = CostSettings(
        t,
        settings.n_slots,
        rows_of_logits(settings) if n_outputs is None else n_outputs,
        rollback(settings) if n_rs_seq is None else n_rs_seq,
        spare_cells(settings),
        keeps_all_cells(settings, head is not None or isinstance(draft, HeadInfo)),
        _used(t, devices),
    )
    of_draft = replace(of_target, model=d, n_spare=0, swa_full=True, devices=_used(d, devices))
    return plan_memory(target, draft, PlanSettings(available, of_target, of_draft, images), head)


def projector_device(settings: LoadSettings, devices: Sequence[DeviceMemory]) -> DeviceMemory | None:
    """Where the projector is: on the first device of the target, or in memory where the settings say so, and
    where the target is on other machines. devices: all GPUs of the build.
    """
    used = _used(settings.target, devices)
    return used[0] if used and settings.mmproj_offload and not settings.rpc else None


def with_images(settings: LoadSettings, projector: Projector) -> LoadSettings:
    """The settings with as many rows computed at once as an image of this projector needs."""
    t, n = settings.target, projector.n_ubatch
    if n <= min(t.n_ubatch, t.n_batch):
        return settings
    return replace(settings, target=replace(t, n_batch=max(n, t.n_batch), n_ubatch=max(n, t.n_ubatch)))


def plan_embedder(
    settings: LoadSettings, header: Header, available: int, devices: Sequence[DeviceMemory]
) -> MemoryPlan:
    """The plan of a load of an embedding model, whose context is at most what it was trained on. Arguments
    and errors as for `plan_load`.
    """
    t, at_once = settings.target, computed_at_once(header, pooling_of(header, settings.pooling))
    t = replace(t, n_ctx=min(t.n_ctx, header.n_ctx_train or t.n_ctx))
    most = t.n_ctx or min(header.n_ctx_train or N_CTX_DEFAULT, N_CTX_DEFAULT)
    n_rows = most if at_once else t.n_ubatch
    t = replace(t, n_batch=n_rows, n_ubatch=n_rows)
    n_outputs = 1 if header.architecture in ENCODERS else n_rows  # others compute logits of all rows
    costs = CostSettings(t, 1, n_outputs, devices=_used(t, devices))
    return plan_memory(header, None, PlanSettings(available, costs))


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


def _used(s: ModelSettings, devices: Sequence[DeviceMemory]) -> tuple[DeviceMemory, ...]:
    used = tuple(d for d in devices if not s.devices or d.name in s.devices)
    return used[s.main_gpu : s.main_gpu + 1] if s.split_mode == "none" else used
