"""Loading one model: its header, its place in memory, its context; the draft model of a load."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from specllama.client import protocol
from specllama.client.tune_messages import Loading
from specllama.clock import running_time
from specllama.config.load import ALL_LAYERS, LoadSettings, ModelSettings
from specllama.core.interfaces import (
    BatchRow,
    BlockHead,
    DecodeError,
    Drafter,
    DraftHead,
    HeadRow,
    NoRoomError,
)
from specllama.core.policy.config import DEFAULT
from specllama.core.translation import KeptTokens, Translation
from specllama.drafters import HEAD, MODEL, wants_draft_model
from specllama.drafters.head import TrimmedHead
from specllama.errors import IncompatiblePairError, ResourceError, option
from specllama.gguf.header import Header, read_model
from specllama.gguf.trimmed import read_trim
from specllama.heads import file_head
from specllama.heads.check import check_draft, check_model
from specllama.heads.kind import HeadInfo, read_d2t
from specllama.json_types import JsonObject
from specllama.llama.context import LlamaContext
from specllama.llama.draft_contexts import ForeignContext, TrimmedContext, translation
from specllama.llama.heads import BlockContext, HeadContext, TargetFeatures, unsupported
from specllama.llama.library import devices
from specllama.llama.model import LlamaModel
from specllama.models.memory.available import available_memory
from specllama.models.memory.plan import DeviceMemory, MemoryPlan, plan_load
from specllama.other_work import OtherWork
from specllama.pair.check import HeadVerdict, PairVerdict, check_head, check_pair, own_head
from specllama.pair.overlap import overlap, translated
from specllama.pair.vocab import Overlap, stand_ins
from specllama.worker.calibrate import measure_change, measure_load, measure_steps, seconds_of
from specllama.worker.profile import ModelProfile, head_key, model_key

_REPORT_SECONDS = 0.1


@dataclass(slots=True)
class LoadedDraft:
    """A draft model and its context. settings: with the number of GPU layers that fit in memory."""

    settings: ModelSettings
    header: Header
    model: LlamaModel
    context: LlamaContext

    @property
    def translation(self) -> Translation | None:
        """Where it has another vocabulary than the target."""
        return self.context.translation if isinstance(self.context, ForeignContext) else None

    @property
    def key(self) -> JsonObject:
        """The draft's part of the key under which a pair is stored."""
        key = model_key(self.header, self.settings, self.context)
        if self.translation is not None:
            key["draft_vocab"] = "auto"
        return key

    def close(self) -> None:
        self.context.close()
        self.model.close()


def load_draft(
    settings: ModelSettings,
    n_outputs: int,
    target: Header,
    target_model: LlamaModel,
    translates: bool,
) -> LoadedDraft:
    """Load a draft into the free memory, for one sequence, without checking it against its target.

    n_outputs: rows of logits of a decode. target_model: of the header `target`. translates: translate the
    tokens of one that does not fit. Raises IntegrityError, ResourceError, UsageError.
    """
    header = checked_header(settings, check_draft)
    alone = LoadSettings(target=settings)
    fits = not translates or check_pair(target, header).ok
    shared = None if fits else overlap(target, header)[0]
    plan = plan_load(alone, header, None, available_memory(), gpus(), n_outputs, 0)
    fitted = fitted_to(settings, plan.target.n_gpu_layers)
    model = LlamaModel(fitted, ids_only=ids_of(header, shared))
    return _opened(model, fitted, header, target, target_model, shared, (plan.n_ctx, 1, n_outputs))


def open_model(
    settings: LoadSettings,
    header: Header,
    target: Header,
    target_model: LlamaModel,
    shared: Overlap | None,
    plan: MemoryPlan,
    send: protocol.Send,
) -> tuple[LoadedDraft | None, str]:
    """(the draft model with a context for all slots, ""), or (None, the reason) if it cannot be used. header,
    target: of the draft and of the target. shared: what the vocabularies share where the draft's tokens are
    to be translated.
    """
    assert settings.draft is not None
    assert plan.draft is not None
    fitted = fitted_to(settings.draft, plan.draft.n_gpu_layers)
    model = LlamaModel(fitted, reporter("draft", send), ids_only=ids_of(header, shared))
    size = plan.n_ctx_draft, settings.n_slots, max(settings.n_slots, 8)
    try:
        return _opened(model, fitted, header, target, target_model, shared, size), ""
    except (ResourceError, DecodeError) as error:
        return None, _left_out("draft", error.args[0], send)


def _opened(
    model: LlamaModel,
    fitted: ModelSettings,
    header: Header,
    target: Header,
    target_model: LlamaModel,
    shared: Overlap | None,
    size: tuple[int, int, int],
) -> LoadedDraft:
    """A draft model with a context that takes the target's ids, or those of the space that both share. Where
    it cannot be made, or decodes nothing, the model is closed. size: (n_ctx, n_slots, n_outputs).
    """
    context: LlamaContext | None = None
    try:
        trim = read_trim(header) if shared is None else None
        if shared is not None:
            context = ForeignContext(model, translation(target_model, model, shared), *size)
        elif trim is not None:
            context = TrimmedContext(model, header, trim, stand_ins(target, header), *size)
        else:
            context = LlamaContext(model, *size)
        warm_up(context)
    except BaseException:
        if context is not None:
            context.close()
        model.close()
        raise
    return LoadedDraft(fitted, header, model, context)


def checked_header(settings: ModelSettings, check: Callable[[Header], None] = check_model) -> Header:
    """The header of a model, after `check`. Raises GGUFError, UsageError."""
    header = read_model(settings.path)
    check(header)
    for path, _ in settings.lora:
        read_model(path)  # adapters are GGUF files too
    return header


def gpus() -> tuple[DeviceMemory, ...]:
    """The GPUs of this build with their free memory, those of RPC workers too."""
    apple = platform.system() == "Darwin"
    return tuple(DeviceMemory(d.name, d.free, apple and not d.remote) for d in devices() if d.gpu)


def fitted_to(s: ModelSettings, n_gpu_layers: int) -> ModelSettings:
    return replace(s, n_gpu_layers=n_gpu_layers if s.n_gpu_layers != ALL_LAYERS else ALL_LAYERS)


def reporter(name: str, send: protocol.Send) -> Callable[[float], None]:
    last = 0.0

    def report(share: float) -> None:
        nonlocal last
        now = running_time()
        if now - last >= _REPORT_SECONDS or share >= 1:
            last = now
            send(Loading(name, share))

    return report


def ids_of(draft: Header, shared: Overlap | None = None) -> tuple[str, int] | None:
    """What `LlamaModel` needs to load a draft without its vocabulary. shared: as in `open_model`; translating
    tokens takes the vocabulary, hence None.
    """
    return None if shared is not None else (draft.architecture, draft.n_vocab)


def timed_rows(context: LlamaContext, n: int, n_outputs: int) -> list[BatchRow]:
    """Rows of random tokens, with logits of the last `n_outputs`."""
    return [BatchRow(context.random_token(), i, 0, i >= n - n_outputs) for i in range(n)]


def warm_up(context: LlamaContext) -> None:
    """Decode one token, then two: page faults and allocations slow no answer and no first draft then."""
    for n in range(1, 1 + min(2, context.n_outputs_max, context.n_ctx)):
        seconds_of(context, timed_rows(context, n, n), running_time)


# The trained head of a load: opened over the target's context, and closed again.


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
    def key(self) -> JsonObject:
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
    send: protocol.Send,
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
        return None, _left_out("head", problem, send)
    fitted, model = fitted_to(own, planned.n_gpu_layers), None
    if head.own_file:
        read_d2t(head)
        ids_only, report = ids_of(head.header), reporter("draft", send)
        model = LlamaModel(fitted, report, with_head=head.kind.nextn_layers, is_head=True, ids_only=ids_only)
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
                    for n in (1, DEFAULT.head_min_tail):  # the rows of a first draft, so that it is not slow
                        _head_seconds(layer, n)
    except (ResourceError, DecodeError, NoRoomError) as error:
        features.close()
        if context is not None:
            context.close()
        if model is not None:
            model.close()
        return None, _left_out("head", str(error.args[0] if error.args else error), send)
    target.features = features
    drafting: DraftHead | BlockHead = context
    trim = read_trim(head.header)
    if trim is not None and trim.shortened and isinstance(context, HeadContext):
        drafting = TrimmedHead(context, KeptTokens(trim.ids, trim.n_vocab, stand_ins(of, head.header)))
    return LoadedHead(fitted, head, features, context, model, drafting), ""


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


def _left_out(what: str, reason: str, send: protocol.Send) -> str:
    problem = f"the {what} cannot be used: {reason}"
    send(protocol.Notice(problem))
    return problem


# The drafts of a load, checked against the target by their headers alone.


@dataclass(frozen=True, slots=True)
class CheckedDrafts:
    """The drafts that fit the target. model: a draft model, pair: the verdict on it, overlap: what its
    vocabulary shares with the target's where it has another one. head: the verdict on a
    head in a file of its own, or on the one inside the target, which a draft model can join. None: there is
    none.
    """

    model: Header | None = None
    pair: PairVerdict | None = None
    overlap: Overlap | None = None
    head: HeadVerdict | None = None

    @property
    def draft(self) -> Header | HeadInfo | None:
        """The draft as the memory plan names it: the draft model, without one the head."""
        return self.model or (self.head.head if self.head is not None else None)

    @property
    def own_head(self) -> HeadInfo | None:
        return self.head.head if self.head is not None and not self.head.head.own_file else None

    @property
    def reads_target(self) -> bool:
        """Whether there is a head that reads the target's cache."""
        return self.head is not None and self.head.head.kind.shares_cache

    @property
    def second(self) -> HeadInfo | None:
        """The head inside the target, next to a draft model."""
        return self.own_head if self.model is not None else None

    @property
    def verdicts(self) -> tuple[PairVerdict | HeadVerdict, ...]:
        return tuple(one for one in (self.pair, self.head) if one is not None)


def checked_drafts(settings: LoadSettings, target: Header, send: protocol.Send) -> CheckedDrafts:
    """The drafts that the settings ask for. A head inside the target is used where it is the draft, or where
    the draft is a model; it is left out with a notice where it cannot be used. Raises IncompatiblePairError
    for a file that does not fit, GGUFError.
    """
    if settings.draft is None or settings.draft_max == 0 or not wants_draft_model(settings.drafters):
        return CheckedDrafts()
    if settings.draft.path == settings.target.path:
        inside, reason = own_head(target)
        if inside is not None or reason:
            return CheckedDrafts(head=_noticed(inside, reason, send))
    header = read_model(settings.draft.path)
    check_draft(header)
    head = file_head(header)
    if head is not None:
        verdict = check_head(target, head)
        own = ""
        if settings.draft_vocab == "auto":
            own = f"; {option('draft_vocab')} is of no use to a head, which needs the target's own vocabulary"
        _refuse_unfit(verdict, "model and head", own)
        return CheckedDrafts(head=verdict)
    inside = _noticed(*own_head(target), send)
    pair, shared = check_pair(target, header), None
    if not pair.ok and settings.draft_vocab == "auto":
        shared, reason = overlap(target, header)
        if shared is None:
            send(protocol.Notice(f"the draft is not used: {reason}"))
            return CheckedDrafts(head=inside)
        pair = translated(pair, shared)
    could = None if pair.ok else overlap(target, header)[0]
    other = f", or {option('draft_vocab', 'auto')}: {could.label}" if could is not None else ""
    _refuse_unfit(pair, "target and draft", other)
    return CheckedDrafts(header, pair, shared, inside)


def _noticed(inside: HeadVerdict | None, reason: str, send: protocol.Send) -> HeadVerdict | None:
    """The verdict, after a notice of the reason if there is one."""
    if reason:
        send(protocol.Notice(f"the head of the model is not used: {reason}"))
    return inside


def _refuse_unfit(verdict: PairVerdict | HeadVerdict, both: str, other: str = "") -> None:
    """Raises IncompatiblePairError for a pair that does not fit. other: other remedies, for the hint."""
    if not verdict.ok:
        hint = f"choose another draft, or {option('draft_model', 'none')}{other}"
        raise IncompatiblePairError(f"{both} do not fit together: {verdict.reason}", hint)


# The first decodes of the contexts of a load, so that no answer is slowed down by page faults, allocations
# and the loading of kernels. They also measure what decodes take, so that no answer has to.


def warm_up_target(
    context: LlamaContext, profile: ModelProfile, clock: Callable[[], float], others: OtherWork
) -> None:
    """Decode in an empty context, with logits of all rows: the scale of the stored curve, and what is missing
    of it, as far as that takes about half a second. others: since the start of this; what they disturb
    corrects nothing that is stored.
    """

    def decode(n: int) -> float:
        return seconds_of(context, timed_rows(context, n, n), clock)

    curve, known = profile.curves.at(0), profile.change_is_sure
    most = min(DEFAULT.max_rows, context.n_outputs_max, context.n_batch, context.n_ctx)
    before = curve.to_dict() if curve.known else None
    change = measure_load(curve, decode, most, known)
    if change == 0 and profile.change_seconds:  # then it is to be seen twice
        change = measure_change(decode, curve.predict(1)) and profile.change_seconds
    if others.disturbs:
        profile.observe_disturbed_load(before, curve.predict(1), change)
        return
    profile.observe_load(curve.predict(1))
    if change is not None:
        profile.observe_change(change)


def warm_up_drafts(
    profile: ModelProfile,
    drafters: Sequence[Drafter],
    draft: LoadedDraft | None,
    head: LoadedHead | None,
    clock: Callable[[], float],
) -> None:
    """Measure the steps of draft and head. Contexts that read the target's cache are left out. A draft that
    cannot be decoded so is found out when it is used.
    """
    learnt = profile.planner_of(drafters).learnt.models
    if draft is not None and MODEL.name in learnt:
        context = draft.context

        def decode(n: int) -> float:
            return seconds_of(context, timed_rows(context, n, 1), clock)

        with suppress(DecodeError, NoRoomError):
            most = min(DEFAULT.max_rows, context.n_batch, context.n_ctx)
            measure_steps(learnt[MODEL.name].steps, decode, most)
    if head is not None and HEAD.name in learnt and isinstance(head.context, HeadContext):
        layer = head.context
        if not layer.reads_target:
            with suppress(DecodeError, NoRoomError):
                steps, most = learnt[HEAD.name].steps, min(DEFAULT.max_rows, layer.n_batch, layer.n_ctx)
                measure_steps(steps, lambda n: _head_seconds(layer, n, clock), most)


def _head_seconds(context: HeadContext, n: int, clock: Callable[[], float] = running_time) -> float:
    hidden = context.hidden(0, np.zeros((n, context.n_features), np.float32))
    rows = [HeadRow(0, i, 0, row, i == n - 1) for i, row in enumerate(hidden)]
    began = clock()
    context.decode(rows)
    seconds = clock() - began
    context.truncate(0, 0)
    return seconds
