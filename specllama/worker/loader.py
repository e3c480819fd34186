"""From settings to a loaded pair: headers read and checked, the pair compared, the memory planned, then
llama.cpp.

Nothing of llama.cpp touches a file before its header has passed.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from specllama.client import protocol as m
from specllama.config.load import ALL_LAYERS, AUTO, LoadSettings, ModelSettings
from specllama.config.store import Store
from specllama.core.interfaces import BatchRow, DecodeError, Drafter
from specllama.core.policy.base import Policy
from specllama.core.policy.pair_state import MEMORY
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.grammar import GrammarDrafter
from specllama.drafters.model import ModelDrafter
from specllama.drafters.request_history import MemoryDrafter, RequestHistory
from specllama.errors import IncompatiblePairError, ResourceError, option
from specllama.gguf.check import check_model
from specllama.gguf.header import Header, read_model
from specllama.llama.context import LlamaContext
from specllama.llama.devices import devices
from specllama.llama.model import LlamaModel
from specllama.models.memory.plan import DeviceMemory, FitSettings, MemoryPlan, available_memory, plan_memory
from specllama.pair.check import check_pair
from specllama.text.grammar import Grammars
from specllama.worker import load_info as describe
from specllama.worker.profile import ModelProfile
from specllama.worker.rpc import attach as workers

DRAFT_BUDGET = 64  # rows of logits kept beyond one per slot
ROLLBACK = 16  # recurrent states kept per sequence where drafts have no fixed length
_REPORT_SECONDS = 0.1
_SLOW_FLOPS, _SLOW_BYTES = 2e10, 1e9  # per second, of a machine slower than any that is used for this


@dataclass(slots=True)
class Loaded:
    """Everything that a load made. info: what the front is told (`Ready`). memory: of what was written, None
    where nothing is remembered.
    """

    settings: LoadSettings
    header: Header
    model: LlamaModel
    context: LlamaContext
    drafters: list[Drafter]
    grammars: Grammars
    info: dict[str, Any]
    learning: ModelProfile
    draft_model: LlamaModel | None = None
    draft_context: LlamaContext | None = None
    memory: RequestHistory | None = None

    @property
    def slow_step_seconds(self) -> float:
        """What a first chunk of prefill could take on a very slow machine."""
        return 2 * self.header.n_params * 64 / _SLOW_FLOPS + self.header.weight_bytes / _SLOW_BYTES

    def drop_draft(self, policy: Policy | None) -> None:
        """Free the draft model, which the policy in use has dropped; `policy`, another one, drops it too."""
        self.drafters = [d for d in self.drafters if d.name != ModelDrafter.name]
        if policy is not None:
            policy.drop(ModelDrafter.name)
        close(self.draft_context, self.draft_model)
        self.draft_context = self.draft_model = None


def close(context: LlamaContext | None, model: LlamaModel | None) -> None:
    """Free a context and then its model, as far as there are such."""
    for one in (context, model):
        if one is not None:
            one.close()


def load(settings: LoadSettings, send: Callable[[m.Message], None], store: Store) -> Loaded:
    """Load target and draft. Raises IntegrityError, IncompatiblePairError, ResourceError, UsageError,
    NotFoundError, NetworkError.

    send: gets Loading and Notice messages.
    """
    started = time.perf_counter()
    target_header = _checked_header(settings.target)
    draft_header, verdict = None, None
    wants_draft = settings.draft is not None and "model" in settings.drafters and settings.draft_max != 0
    if wants_draft:
        assert settings.draft is not None
        draft_header = _checked_header(settings.draft)
        verdict = check_pair(target_header, draft_header)
        if not verdict.ok:
            raise IncompatiblePairError(
                f"target and draft do not fit together: {verdict.reason}",
                f"choose another draft, or {option('draft_model', 'none')}",
            )
    n_outputs = max(settings.n_slots, 64, settings.n_slots + max(DRAFT_BUDGET, settings.draft_max or 0))
    n_rs_seq = 0 if not settings.drafters or settings.draft_max == 0 else (settings.draft_max or ROLLBACK)
    settings = workers.attach(settings, send)
    plan = _plan(settings, target_header, draft_header, n_outputs, n_rs_seq)
    target_settings = _fitted(settings.target, plan.target.n_gpu_layers)
    model = LlamaModel(target_settings, _reporter("target", send))
    context = LlamaContext(model, plan.n_ctx, settings.n_slots, n_outputs, n_rs_seq)
    drafters: list[Drafter] = []
    draft_model = draft_context = draft_settings = None
    problem = ""
    if settings.draft is not None and draft_header is not None and plan.draft is not None:
        draft_settings = _fitted(settings.draft, plan.draft.n_gpu_layers)
        draft_model = LlamaModel(draft_settings, _reporter("draft", send))
        try:
            draft_context = LlamaContext(
                draft_model, plan.n_ctx_draft, settings.n_slots, max(settings.n_slots, 8)
            )
            _warm_up(draft_context)
            confident = settings.draft_max is None or settings.draft_p_min > 0
            drafters.append(ModelDrafter(draft_context, model.n_vocab, confident, model.end_ids))
        except (ResourceError, DecodeError) as error:
            problem = f"the draft cannot be used: {error.args[0]}"
            send(m.Notice(problem))
            close(draft_context, draft_model)
            draft_context = draft_model = None
    memory = None
    if "copy" in settings.drafters and settings.draft_max != 0:
        if settings.memory:
            memory = RequestHistory()
            drafters.insert(0, MemoryDrafter(memory))
        drafters.insert(0, CopyDrafter())
    if "grammar" in settings.drafters and settings.draft_max != 0:
        drafters.insert(0, GrammarDrafter())
    _warm_up(context)
    learning = ModelProfile(
        store,
        describe.store_key(target_header, target_settings, context),
        describe.pair_key(draft_header, draft_settings, draft_context, drafters),
        settings.calibrate,
        time.perf_counter,
    )
    info = {
        "target": describe.about(target_settings.path, target_header, plan.target.n_gpu_layers),
        "draft": describe.about(settings.draft.path, draft_header, plan.draft.n_gpu_layers)
        if settings.draft and draft_header and plan.draft and draft_context
        else None,
        "verdict": verdict.verdict if verdict else None,
        "n_ctx": context.n_ctx,
        "n_ctx_draft": draft_context.n_ctx if draft_context else 0,
        "n_vocab": model.n_vocab,
        "n_threads": context.n_threads,
        "drafters": [d.name for d in drafters if d.name != MEMORY],
        "memory": memory is not None,
        "draft_max": settings.draft_max,
        "most_drafted": min(context.n_outputs_max - settings.n_slots, context.max_rollback),
        "notes": [
            *workers.note(settings, plan.target.n_gpu_layers, target_header.n_layer),
            *describe.notes(settings, context),
            *describe.verdict_notes(verdict),
            *plan.warnings,
        ],
        **describe.speculation(settings, drafters, problem),
        "load_seconds": time.perf_counter() - started,
    }
    return Loaded(
        settings,
        target_header,
        model,
        context,
        drafters,
        Grammars(model),
        info,
        learning,
        draft_model,
        draft_context,
        memory,
    )


@dataclass(slots=True)
class LoadedDraft:
    """A draft loaded beside a target, perhaps one of many. settings: as they were fitted."""

    settings: ModelSettings
    header: Header
    model: LlamaModel
    context: LlamaContext

    def close(self) -> None:
        """Free its memory."""
        self.context.close()
        self.model.close()


def load_draft(settings: ModelSettings, n_outputs: int) -> LoadedDraft:
    """Load a draft into the memory that is left, for one sequence. n_outputs: rows of logits of a decode.

    Raises what `load` raises, but knows nothing of a pair.
    """
    header = _checked_header(settings)
    plan = _plan(LoadSettings(target=settings), header, None, n_outputs, 0)
    fitted = _fitted(settings, plan.target.n_gpu_layers)
    model = LlamaModel(fitted)
    try:
        context = LlamaContext(model, plan.n_ctx, 1, n_outputs)
        _warm_up(context)
    except BaseException:
        model.close()
        raise
    return LoadedDraft(fitted, header, model, context)


def _checked_header(settings: ModelSettings) -> Header:
    header = read_model(settings.path)
    check_model(header)
    return header


def _plan(
    settings: LoadSettings, target: Header, draft: Header | None, n_outputs: int, n_rs_seq: int
) -> MemoryPlan:
    t, d = settings.target, settings.draft or settings.target
    return plan_memory(
        target,
        draft,
        FitSettings(
            available=available_memory(),
            n_ctx=t.n_ctx or None,
            n_ctx_draft=d.n_ctx or None if settings.draft else None,
            n_slots=settings.n_slots,
            n_batch=t.n_batch,
            n_ubatch=t.n_ubatch,
            n_outputs_max=n_outputs,
            n_rs_seq=n_rs_seq,
            cache_type_k=t.cache_type_k,
            cache_type_v=t.cache_type_v,
            cache_type_k_draft=d.cache_type_k,
            cache_type_v_draft=d.cache_type_v,
            flash_attn=t.flash_attn,  # type: ignore[arg-type]
            n_gpu_layers=_layers(t),
            n_gpu_layers_draft=_layers(d),
            devices=_fit_devices(t),
            devices_draft=_fit_devices(d),
        ),
    )


def _layers(s: ModelSettings) -> int | None:
    if s.devices == ("none",):
        return 0
    return None if s.n_gpu_layers == AUTO else s.n_gpu_layers


def _fit_devices(s: ModelSettings) -> tuple[DeviceMemory, ...]:
    wanted = [d for d in devices() if d.gpu and (not s.devices or d.name in s.devices)]
    apple = platform.system() == "Darwin"
    return tuple(DeviceMemory(d.name, d.free, apple and not d.remote) for d in wanted)


def _fitted(s: ModelSettings, n_gpu_layers: int) -> ModelSettings:
    return replace(s, n_gpu_layers=n_gpu_layers if s.n_gpu_layers != ALL_LAYERS else ALL_LAYERS)


def _reporter(name: str, send: Callable[[m.Message], None]) -> Callable[[float], None]:
    last = 0.0

    def report(share: float) -> None:
        nonlocal last
        now = time.perf_counter()
        if now - last >= _REPORT_SECONDS or share >= 1:
            last = now
            send(m.Loading(name, share))

    return report


def _warm_up(context: LlamaContext) -> None:
    """One decode, so that neither page faults nor first-time allocations fall into the first answer."""
    token = max(0, context.model.bos_id)
    context.decode([BatchRow(token, 0, 0, True)])
    context.truncate(0, 0)
