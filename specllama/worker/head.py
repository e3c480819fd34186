"""The trained head of a load: opened over the target's context, and closed again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from specllama.client import protocol
from specllama.config.load import LoadSettings, ModelSettings
from specllama.core.head_interfaces import BlockHead, DraftHead, HeadRow
from specllama.core.interfaces import DecodeError, NoRoomError
from specllama.core.kept_tokens import KeptTokens
from specllama.core.policy.config import DEFAULT
from specllama.drafters.trimmed_head import TrimmedHead
from specllama.errors import ResourceError
from specllama.gguf.header import Header
from specllama.gguf.trimmed import read_trim
from specllama.heads.d2t import read_d2t
from specllama.heads.kind import HeadInfo
from specllama.llama.context import LlamaContext
from specllama.llama.heads.block_context import BlockContext
from specllama.llama.heads.context import HeadContext
from specllama.llama.heads.features import TargetFeatures
from specllama.llama.heads.functions import unsupported
from specllama.llama.model import LlamaModel
from specllama.models.memory.plan import MemoryPlan
from specllama.pair.stand_ins import stand_ins
from specllama.worker.draft import fitted_to, reporter
from specllama.worker.profile_keys import HeadKey, head_key


@dataclass(slots=True)
class LoadedHead:
    """A head with its cache. settings: those of its file, or of the target that it is a part of. features:
    what the target gives it. model: of a file of its own; None where it is a part of the target. drafting:
    the context as drafters use it, with the target's ids.
    """

    settings: ModelSettings
    head: HeadInfo
    features: TargetFeatures
    context: HeadContext | BlockContext
    model: LlamaModel | None
    drafting: DraftHead | BlockHead

    @property
    def header(self) -> Header:
        return self.head.header

    @property
    def key(self) -> HeadKey:
        """The head's part of the key under which a pair is stored."""
        return {**head_key(self.head), "n_gpu_layers": self.settings.n_gpu_layers}

    def close(self) -> None:
        """Free its memory; the target gives out no more hidden states."""
        self.features.close()
        self.context.close()
        if self.model is not None:
            self.model.close()


def open_head(
    settings: LoadSettings,
    head: HeadInfo,
    of: Header,
    target: LlamaContext,
    plan: MemoryPlan,
    send: Callable[[protocol.Message], None],
) -> tuple[LoadedHead | None, str]:
    """(the head with a cache for all slots, ""), or (None, the reason) if it cannot be used. of: the header
    of the target.

    Raises IntegrityError, ResourceError and UsageError for a file of the head that cannot be loaded.
    """
    assert settings.draft is not None
    planned = plan.head or plan.draft
    assert planned is not None
    own = settings.draft if head.own_file else replace(settings.draft, path=settings.target.path)
    problem = unsupported()
    if not problem and head.kind.drafts_blocks and head.mask_id is None:
        problem = "its file does not name the mask token"
    if problem:
        return None, _left_out(problem, send)
    fitted, model = fitted_to(own, planned.n_gpu_layers), None
    if head.own_file:
        read_d2t(head)
        model = LlamaModel(fitted, reporter("draft", send), with_head=head.kind.nextn_layers, is_head=True)
    features = TargetFeatures(target, head.target_layers)
    context: HeadContext | BlockContext | None = None
    try:
        if head.kind.drafts_blocks:
            context = _block_context(head, model or target.model, target, plan.n_ctx_draft, features.width)
        else:
            context = HeadContext(
                model or target.model,
                target,
                plan.n_ctx_draft,
                encodes=head.kind.encodes,
                n_features=features.width,
                reads_target=head.kind.shares_cache,
                n_layer=head.n_chained,
            )
            if not head.kind.shares_cache:  # the cache that it would read is empty
                for layer in (context, *context.following):
                    warm_up_head(layer)
    except (ResourceError, DecodeError, NoRoomError) as error:
        features.close()
        if context is not None:
            context.close()
        if model is not None:
            model.close()
        return None, _left_out(str(error.args[0] if error.args else error), send)
    target.features = features
    return LoadedHead(fitted, head, features, context, model, _with_all_ids(context, head, of)), ""


def _with_all_ids(
    context: HeadContext | BlockContext, head: HeadInfo, target: Header
) -> DraftHead | BlockHead:
    """The context of a head, with the target's ids if the head has others."""
    trim = read_trim(head.header)
    if trim is None or not trim.shortened or isinstance(context, BlockContext):
        return context
    return TrimmedHead(context, KeptTokens(trim.ids, trim.n_vocab, stand_ins(target, head.header)))


def _block_context(
    head: HeadInfo, model: LlamaModel, target: LlamaContext, n_ctx: int, n_features: int
) -> BlockContext:
    assert head.n_draft_max is not None
    assert head.mask_id is not None
    context = BlockContext(
        model,
        target,
        n_ctx,
        n_draft=head.n_draft_max,
        anchored=head.anchored,
        causal=head.causal,
        mask_id=head.mask_id,
        n_features=n_features,
        top_k=head.selector_top_k,
    )
    context.inject(0, 0, np.zeros((1, n_features), np.float32))  # so that no first draft is slow
    context.draft({0: (0, 1)})
    context.truncate(0, 0)
    return context


def warm_up_head(context: HeadContext) -> None:
    """Decode one row and the rows of a first draft, so that neither is slowed down by page faults and
    allocations.
    """
    for n in (1, DEFAULT.head_min_tail):
        hidden = context.hidden(0, np.zeros((n, context.n_features), np.float32))
        context.decode([HeadRow(0, i, 0, row, i == n - 1) for i, row in enumerate(hidden)])
        context.truncate(0, 0)


def _left_out(reason: str, send: Callable[[protocol.Message], None]) -> str:
    problem = f"the head cannot be used: {reason}"
    send(protocol.Notice(problem))
    return problem
