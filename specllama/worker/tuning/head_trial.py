"""Opens a head over the loaded target, so that `tune` can try it."""

from __future__ import annotations

from dataclasses import replace

from specllama.config.load import ModelSettings
from specllama.drafters import DrafterInputs
from specllama.drafters.block import BlockDrafter
from specllama.drafters.head import HeadDrafter, make
from specllama.errors import EngineError
from specllama.gguf.header import read_model
from specllama.heads import file_head, read_head
from specllama.heads.check import check_draft
from specllama.heads.kind import HeadInfo
from specllama.models.memory.available import available_memory
from specllama.models.memory.load_plan import plan_head
from specllama.worker.draft import LoadedHead, gpus, open_head
from specllama.worker.loader import Loaded

_N_AHEAD = 32  # tokens of a text that the target evaluates together, for a head that does not read its cache


def head_of(draft: ModelSettings, target: ModelSettings) -> HeadInfo | None:
    """The head in a draft's file, or inside the target if that is the file; None for a draft model.

    Raises GGUFError for an incomplete head, EngineError for a target without one.
    """
    header = read_model(draft.path)
    inside = draft.path == target.path
    if not inside:
        check_draft(header)
    head = read_head(header) if inside else file_head(header)
    if inside and head is None:
        raise EngineError("the model has no head that can be used")
    return head


def try_head(
    loaded: Loaded, draft: ModelSettings, head: HeadInfo
) -> tuple[LoadedHead, HeadDrafter | BlockDrafter]:
    """The head, opened over the target, and a drafter that drafts with it in sequence 0.

    Raises EngineError where it cannot be used; IntegrityError, ResourceError, UsageError.
    """
    settings = replace(loaded.settings, draft=draft)
    plan = loaded.plan
    if head.own_file:
        plan = plan_head(settings, loaded.header, head, plan, available_memory(), gpus())
    elif plan.draft is None:
        raise EngineError("the model was loaded without its head")
    opened, problem = open_head(settings, head, loaded.header, loaded.context, plan, lambda _message: None)
    if opened is None:
        raise EngineError(problem)
    drafter = make(DrafterInputs(loaded.model.n_vocab, loaded.model.end_ids, head=opened.drafting))
    assert drafter is not None
    opened.features.reader = drafter
    return opened, drafter


def n_ahead(head: HeadInfo) -> int:
    """Tokens of a text that the target may evaluate together while the head is recorded."""
    return 1 if head.kind.shares_cache else _N_AHEAD
