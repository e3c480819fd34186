"""Loading one model: its header, its place in memory, its context; the draft model of a load."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass, replace

from specllama.client import protocol
from specllama.clock import running_time
from specllama.config.load import ALL_LAYERS, LoadSettings, ModelSettings
from specllama.core.interfaces import BatchRow, DecodeError
from specllama.core.translation import Translation
from specllama.errors import ResourceError
from specllama.gguf.header import Header, read_model
from specllama.gguf.trimmed import read_trim
from specllama.heads.check import check_draft, check_model
from specllama.llama.context import LlamaContext
from specllama.llama.devices import devices
from specllama.llama.foreign import ForeignContext, translation
from specllama.llama.model import LlamaModel
from specllama.llama.trimmed import TrimmedContext
from specllama.models.memory.available import available_memory
from specllama.models.memory.load_plan import plan_load
from specllama.models.memory.plan import DeviceMemory, MemoryPlan
from specllama.pair.check import check_pair
from specllama.pair.overlap import overlap
from specllama.pair.shared_tokens import Overlap
from specllama.pair.stand_ins import stand_ins
from specllama.worker.profile_keys import ModelKey, model_key

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
    def key(self) -> ModelKey:
        """The draft's part of the key under which a pair is stored."""
        key = model_key(self.header, self.settings, self.context)
        if self.translation is not None:
            key["draft_vocab"] = "auto"
        return key

    def close(self) -> None:
        """Free its memory."""
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
    model = LlamaModel(fitted)
    try:
        context = _context(model, header, target, target_model, shared, plan.n_ctx, 1, n_outputs)
        warm_up(context)
    except BaseException:
        model.close()
        raise
    return LoadedDraft(fitted, header, model, context)


def open_model(
    settings: LoadSettings,
    header: Header,
    target: Header,
    target_model: LlamaModel,
    shared: Overlap | None,
    plan: MemoryPlan,
    send: Callable[[protocol.Message], None],
) -> tuple[LoadedDraft | None, str]:
    """(the draft model with a context for all slots, ""), or (None, the reason) if it cannot be used. header,
    target: of the draft and of the target. shared: what the vocabularies share where the draft's tokens are
    to be translated.
    """
    assert settings.draft is not None
    assert plan.draft is not None
    fitted = fitted_to(settings.draft, plan.draft.n_gpu_layers)
    model, context = LlamaModel(fitted, reporter("draft", send)), None
    try:
        n_slots = settings.n_slots
        n_ctx, n_outputs = plan.n_ctx_draft, max(n_slots, 8)
        context = _context(model, header, target, target_model, shared, n_ctx, n_slots, n_outputs)
        warm_up(context)
    except (ResourceError, DecodeError) as error:
        problem = f"the draft cannot be used: {error.args[0]}"
        send(protocol.Notice(problem))
        if context is not None:
            context.close()
        model.close()
        return None, problem
    return LoadedDraft(fitted, header, model, context), ""


def _context(
    model: LlamaModel,
    header: Header,
    target: Header,
    target_model: LlamaModel,
    shared: Overlap | None,
    n_ctx: int,
    n_slots: int,
    n_outputs: int,
) -> LlamaContext:
    """A context of a draft model that takes the target's ids, or those of the space that both share."""
    if shared is not None:
        between = translation(target_model, model, shared)
        return ForeignContext(model, between, n_ctx, n_slots, n_outputs)
    trim = read_trim(header)
    if trim is None:
        return LlamaContext(model, n_ctx, n_slots, n_outputs)
    return TrimmedContext(model, header, trim, stand_ins(target, header), n_ctx, n_slots, n_outputs)


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


def reporter(name: str, send: Callable[[protocol.Message], None]) -> Callable[[float], None]:
    last = 0.0

    def report(share: float) -> None:
        nonlocal last
        now = running_time()
        if now - last >= _REPORT_SECONDS or share >= 1:
            last = now
            send(protocol.Loading(name, share))

    return report


def warm_up(context: LlamaContext) -> None:
    """Decode one token, then two with outputs, so that neither the first answer nor its first draft is slowed
    down by page faults and allocations.
    """
    token = context.any_token
    for n in range(1, 1 + min(2, context.n_outputs_max, context.n_ctx)):
        context.decode([BatchRow(token, i, 0, True) for i in range(n)])
        context.truncate(0, 0)
