"""A model that shall be loaded, and which others must leave memory so that it fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specllama.config.load import LoadSettings
from specllama.errors import NotFoundError, ResourceError
from specllama.gguf.header import Header, read_model
from specllama.heads import is_head_file
from specllama.heads.check import check_draft, check_model
from specllama.heads.kind import HeadInfo
from specllama.models.memory.load_plan import plan_load
from specllama.models.memory.plan import DeviceMemory, MemoryPlan
from specllama.models.prepare import prepare_if_on_disk
from specllama.models.resolve import Library
from specllama.pair.head_check import own_head
from specllama.server.memory import FreeMemory, Resident


@dataclass(frozen=True)
class Newcomer:
    """A model that shall be loaded: its settings, with paths, and the headers of its files. draft: a model,
    the file of a head, or the head inside the target. head: the latter, next to a draft model.
    """

    settings: LoadSettings
    target: Header
    draft: Header | HeadInfo | None
    head: HeadInfo | None = None

    def plan(self, free: FreeMemory) -> MemoryPlan:
        """The plan; without the target's own head if there is no memory for it. Raises ResourceError."""
        gpus = [DeviceMemory(gpu.name, gpu.free, gpu.unified) for gpu in free.gpus]
        try:
            return plan_load(self.settings, self.target, self.draft, free.host, gpus, head=self.head)
        except ResourceError:
            if self.head is None and not isinstance(self.draft, HeadInfo):
                raise
            draft = None if isinstance(self.draft, HeadInfo) else self.draft
            return plan_load(self.settings, self.target, draft, free.host, gpus)


def newcomer(settings: LoadSettings, library: Library | None) -> Newcomer:
    """A model that shall be loaded, its headers read and checked. settings: with names that the library finds
    on disk, or with paths, if it is None.

    Raises what `prepare_if_on_disk`, `read_model`, `check_model` and `check_draft` raise.
    """
    found = settings if library is None else prepare_if_on_disk(library, settings)
    if found is None:
        raise NotFoundError(f"{settings.target.path} is not complete on this disk any more")
    target = read_model(found.target.path)
    check_model(target)
    if found.draft is None:
        return Newcomer(found, target, None)
    verdict, reason = own_head(target)
    head = verdict.head if verdict is not None else None
    if found.draft.path == found.target.path and (head or reason):
        return Newcomer(found, target, head)
    draft = read_model(found.draft.path)
    check_draft(draft)
    return Newcomer(found, target, draft, None if is_head_file(draft) else head)


def must_leave(
    newcomer: Newcomer, residents: Sequence[Resident], free: FreeMemory, most: int = 0
) -> list[Resident]:
    """Those that must leave, so that the newcomer gets the context and the layers on GPUs that it would get
    alone: the fewest that are in use, then those that have not been used for the longest time.

    most: models in memory, 0 for as many as fit. Raises ResourceError for one that does not fit alone.
    """
    alone = newcomer.plan(free.without(residents))

    def fits(leaving: Sequence[Resident]) -> bool:
        if most and len(residents) - len(leaving) >= most:
            return False
        try:
            return _equally_good(newcomer.plan(free.without(leaving)), alone)
        except ResourceError:
            return False

    return _fewest(sorted(residents, key=lambda one: (one.busy, one.used_at)), fits)


def _equally_good(plan: MemoryPlan, alone: MemoryPlan) -> bool:
    return _chosen(plan) == _chosen(alone)


def _chosen(plan: MemoryPlan) -> tuple[int, list[int | None]]:
    """The context, and the layers on GPUs of the target, the draft and the target's head next to it."""
    used = (plan.target, plan.draft, plan.head)
    return plan.n_ctx, [usage.n_gpu_layers if usage is not None else None for usage in used]


def _fewest(candidates: Sequence[Resident], fits: Callable[[Sequence[Resident]], bool]) -> list[Resident]:
    """The first candidates that suffice, without those that are not needed. All where nothing suffices."""
    n = next((n for n in range(len(candidates)) if fits(candidates[:n])), len(candidates))
    chosen = list(candidates[:n])
    for one in reversed(chosen[:-1]):  # the last one is needed
        fewer = [other for other in chosen if other is not one]
        if fits(fewer):
            chosen = fewer
    return chosen
