"""Selects loaded models to evict for a new one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specllama.config.load import LoadSettings
from specllama.errors import NotFoundError, ResourceError
from specllama.gguf.header import Header, read_model
from specllama.gguf.projector import Projector, read_projector
from specllama.heads import is_head_file
from specllama.heads.check import check_draft, check_embedder, check_model
from specllama.heads.kind import HeadInfo
from specllama.models.memory.available import available_memory
from specllama.models.memory.cost import ImageMemory
from specllama.models.memory.plan import MemoryPlan, plan_embedder, plan_load
from specllama.models.prepare import prepare_if_on_disk
from specllama.models.resolve import Library
from specllama.pair.check import own_head
from specllama.server.memory import FreeMemory, LoadedModel


@dataclass(frozen=True)
class PendingLoad:
    """A model to load: its settings, with paths, and the headers of its files. draft: of a draft model, a
    head's own file, or the head inside the target. head: the head inside the target, next to a draft model.
    projector: of the target.
    """

    settings: LoadSettings
    target: Header
    draft: Header | HeadInfo | None
    head: HeadInfo | None = None
    projector: Projector | None = None

    def plan(self, free: FreeMemory) -> MemoryPlan:
        """The plan, if need be without the target's head or an unnamed projector. Raises ResourceError."""
        if self.settings.pooling is not None:
            return plan_embedder(self.settings, self.target, free.host, free.gpus)
        variants = [(self.draft, self.head, self.projector)]
        if self.head is not None or isinstance(self.draft, HeadInfo):
            draft = None if isinstance(self.draft, HeadInfo) else self.draft
            variants.append((draft, None, self.projector))
        if self.projector is not None and self.settings.mmproj_found:
            variants.append((variants[-1][0], None, None))
        problem = None
        for one, head, projector in variants:
            try:
                return plan_load(
                    self.settings, self.target, one, free.host, free.gpus, head=head, projector=projector
                )
            except ResourceError as error:
                problem = error
        assert problem is not None
        raise problem


def prepare_load(settings: LoadSettings, library: Library | None) -> PendingLoad:
    """Reads and checks the headers of a model to load. library: finds the names in the settings on disk;
    None if they are paths.

    Raises what `prepare_if_on_disk`, `read_model`, `check_model` and `check_draft` raise.
    """
    if settings.pooling is not None:
        header = read_model(settings.target.path)
        check_embedder(header, settings.pooling)
        return PendingLoad(settings, header, None)
    files = settings if library is None else prepare_if_on_disk(library, settings)
    if files is None:
        raise NotFoundError(f"{settings.target.path} is not complete on this disk any more")
    target = read_model(files.target.path)
    check_model(target)
    projector = None
    if files.projector:
        projector = read_projector(read_model(files.projector), files.image_max_tokens)
    if files.draft is None:
        return PendingLoad(files, target, None, None, projector)
    verdict, reason = own_head(target)
    head = verdict.head if verdict is not None else None
    if files.draft.path == files.target.path and (head or reason):
        return PendingLoad(files, target, head, None, projector)
    draft = read_model(files.draft.path)
    check_draft(draft)
    return PendingLoad(files, target, draft, None if is_head_file(draft) else head, projector)


def embedder_bytes(settings: LoadSettings) -> int:
    """Host memory that an embedding model needs without GPUs. Raises ResourceError if there is not enough."""
    return plan_embedder(settings, read_model(settings.target.path), available_memory(), ()).host


def select_evictions(
    pending: PendingLoad, loaded: Sequence[LoadedModel], free: FreeMemory, max_loaded: int = 0
) -> list[LoadedModel]:
    """The models to evict so that the pending one gets the context and the GPU layers that it would get
    alone: idle ones first, then by least recent use.

    max_loaded: models in memory at once, 0 for as many as fit. Raises ResourceError for a model that does not
    fit alone.
    """
    alone = _chosen(pending.plan(free.after_evicting(loaded)))

    def fits(evicted: Sequence[LoadedModel]) -> bool:
        if max_loaded and len(loaded) - len(evicted) >= max_loaded:
            return False
        try:
            return _chosen(pending.plan(free.after_evicting(evicted))) == alone
        except ResourceError:
            return False

    return _fewest(sorted(loaded, key=lambda one: (one.busy, one.used_at)), fits)


def _chosen(plan: MemoryPlan) -> tuple[int, list[int | None], ImageMemory]:
    """The context size of a plan, the GPU layers of each part, and the memory of the projector."""
    used = (plan.target, plan.draft, plan.head)
    return plan.n_ctx, [usage.n_gpu_layers if usage is not None else None for usage in used], plan.images


def _fewest(
    candidates: Sequence[LoadedModel], fits: Callable[[Sequence[LoadedModel]], bool]
) -> list[LoadedModel]:
    """The fewest first candidates that suffice, less what of these is not needed; all if none do."""
    n = next((n for n in range(len(candidates)) if fits(candidates[:n])), len(candidates))
    chosen = list(candidates[:n])
    for one in reversed(chosen[:-1]):  # the last one is needed
        fewer = [other for other in chosen if other is not one]
        if fits(fewer):
            chosen = fewer
    return chosen
