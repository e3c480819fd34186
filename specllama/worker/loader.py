"""Loads a pair: reads and checks both headers, checks the pair, plans the memory, then calls llama.cpp.

llama.cpp opens no file before its header has passed the check.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from specllama.client import protocol
from specllama.config.load import ALL_LAYERS, LoadSettings, ModelSettings
from specllama.config.store import Store
from specllama.core.interfaces import BatchRow, DecodeError, Drafter, RememberingDrafter
from specllama.core.policy.base import Policy
from specllama.drafters import DrafterInputs, make_drafters, wants_draft_model
from specllama.drafters.ring import RequestHistory
from specllama.errors import IncompatiblePairError, ResourceError, option
from specllama.gguf.check import check_model
from specllama.gguf.header import Header, read_model
from specllama.llama.context import LlamaContext
from specllama.llama.devices import devices
from specllama.llama.model import LlamaModel
from specllama.models.memory.available import available_memory
from specllama.models.memory.load_plan import on_gpus, plan_load, rollback, rows_of_logits
from specllama.models.memory.plan import DeviceMemory, MemoryPlan
from specllama.pair.check import PairVerdict, check_pair
from specllama.text.grammar import Grammars
from specllama.worker.profile import ModelProfile
from specllama.worker.profile_keys import model_key, pair_key, target_key
from specllama.worker.rpc.attach import attach

_REPORT_SECONDS = 0.1
_SLOW_FLOPS, _SLOW_BYTES = 2e10, 1e9  # per second, on a very slow machine


@dataclass(slots=True)
class Loaded:
    """The result of a load.

    drafters: in the order in which they draft. off_reason: why nothing drafts, "" if something does. memory:
    the output of earlier requests, None if it is not kept.
    """

    settings: LoadSettings
    header: Header
    model: LlamaModel
    context: LlamaContext
    plan: MemoryPlan
    drafters: list[Drafter]
    grammars: Grammars
    profile: ModelProfile
    off_reason: str
    verdict: PairVerdict | None = None
    draft: LoadedDraft | None = None
    memory: RequestHistory | None = None
    load_seconds: float = 0.0

    @property
    def slow_step_seconds(self) -> float:
        """Seconds that the first chunk of a prefill could take on a very slow machine."""
        return 2 * self.header.n_params * 64 / _SLOW_FLOPS + self.header.weight_bytes / _SLOW_BYTES

    @property
    def longest_draft(self) -> int:
        """The most tokens of a draft that fit into a decode and can be rolled back."""
        return min(self.context.n_outputs_max - self.settings.n_slots, self.context.max_rollback)

    def drop_draft(self, policy: Policy | None) -> None:
        """Free the draft model after it failed. policy: the planner, from which the drafter is removed too,
        since it need not be the policy in use.
        """
        if policy is not None:
            for drafter in self.drafters:
                if drafter.priced:
                    policy.remove_drafter(drafter.name)
        self.drafters = [d for d in self.drafters if not d.priced]
        if self.draft is not None:
            self.draft.close()
        self.draft = None


def load(settings: LoadSettings, send: Callable[[protocol.Message], None], store: Store) -> Loaded:
    """Load target and draft. Raises IntegrityError, IncompatiblePairError, ResourceError, UsageError,
    NotFoundError, NetworkError.

    send: receives Loading and Notice messages.
    """
    started = time.perf_counter()
    header = _checked_header(settings.target)
    draft_header, verdict = _checked_draft(settings, header)
    settings = on_gpus(attach(settings, send), [d.name for d in devices() if d.gpu])
    n_outputs, n_rs_seq = rows_of_logits(settings), rollback(settings)
    plan = plan_load(settings, header, draft_header, available_memory(), gpus())
    fitted = _fitted(settings.target, plan.target.n_gpu_layers)
    model = LlamaModel(fitted, _reporter("target", send))
    context = LlamaContext(model, plan.n_ctx, settings.n_slots, n_outputs, n_rs_seq)
    draft, problem = None, ""
    if draft_header is not None:
        draft, problem = _open_draft(settings, draft_header, plan, send)
    memory = RequestHistory() if settings.memory else None
    drafters = _drafters(settings, model, draft, memory)
    if not any(isinstance(drafter, RememberingDrafter) for drafter in drafters):
        memory = None
    warm_up(context)
    profile = ModelProfile(
        store,
        target_key(header, fitted, context),
        pair_key(draft.key if draft else None, drafters),
        settings.calibrate,
        time.perf_counter,
    )
    return Loaded(
        settings,
        header,
        model,
        context,
        plan,
        drafters,
        Grammars(model),
        profile,
        "" if drafters else _off_reason(settings, problem),
        verdict,
        draft,
        memory,
        time.perf_counter() - started,
    )


def _off_reason(settings: LoadSettings, problem: str) -> str:
    """Why there is no drafter. problem: why the draft model cannot be used, "" if it can."""
    if settings.draft_max == 0:
        return option("draft_max", 0)
    return problem or f"no drafter: {option('drafters')} names none that can be used"


def _checked_draft(settings: LoadSettings, target: Header) -> tuple[Header | None, PairVerdict | None]:
    """The header of the draft and the verdict on the pair; (None, None) if no draft is used. Raises
    IncompatiblePairError.
    """
    if settings.draft is None or settings.draft_max == 0 or not wants_draft_model(settings.drafters):
        return None, None
    header = _checked_header(settings.draft)
    verdict = check_pair(target, header)
    if not verdict.ok:
        raise IncompatiblePairError(
            f"target and draft do not fit together: {verdict.reason}",
            f"choose another draft, or {option('draft_model', 'none')}",
        )
    return header, verdict


def _open_draft(
    settings: LoadSettings, header: Header, plan: MemoryPlan, send: Callable[[protocol.Message], None]
) -> tuple[LoadedDraft | None, str]:
    """(the draft model with a context for all slots, ""), or (None, the reason) if it cannot be used."""
    assert settings.draft is not None
    assert plan.draft is not None
    fitted = _fitted(settings.draft, plan.draft.n_gpu_layers)
    model, context = LlamaModel(fitted, _reporter("draft", send)), None
    try:
        context = LlamaContext(model, plan.n_ctx_draft, settings.n_slots, max(settings.n_slots, 8))
        warm_up(context)
    except (ResourceError, DecodeError) as error:
        problem = f"the draft cannot be used: {error.args[0]}"
        send(protocol.Notice(problem))
        if context is not None:
            context.close()
        model.close()
        return None, problem
    return LoadedDraft(fitted, header, model, context), ""


def _drafters(
    settings: LoadSettings, model: LlamaModel, draft: LoadedDraft | None, memory: RequestHistory | None
) -> list[Drafter]:
    """The drafters that the settings name, without those that cannot be used."""
    if settings.draft_max == 0:
        return []
    context = draft.context if draft is not None else None
    confident = settings.draft_max is None or settings.draft_p_min > 0
    inputs = DrafterInputs(model.n_vocab, model.end_ids, context, confident=confident, history=memory)
    return make_drafters(settings.drafters, inputs)


@dataclass(slots=True)
class LoadedDraft:
    """A draft model and its context. settings: with the number of GPU layers that fit in memory."""

    settings: ModelSettings
    header: Header
    model: LlamaModel
    context: LlamaContext

    @property
    def key(self) -> dict[str, Any]:
        """The draft's part of the key under which a pair is stored."""
        return model_key(self.header, self.settings, self.context)

    def close(self) -> None:
        """Free its memory."""
        self.context.close()
        self.model.close()


def load_draft(settings: ModelSettings, n_outputs: int) -> LoadedDraft:
    """Load a draft into the free memory, for one sequence, without checking it against a target.

    n_outputs: rows of logits of a decode. Raises IntegrityError, ResourceError, UsageError.
    """
    header = _checked_header(settings)
    alone = LoadSettings(target=settings)
    plan = plan_load(alone, header, None, available_memory(), gpus(), n_outputs, 0)
    fitted = _fitted(settings, plan.target.n_gpu_layers)
    model = LlamaModel(fitted)
    try:
        context = LlamaContext(model, plan.n_ctx, 1, n_outputs)
        warm_up(context)
    except BaseException:
        model.close()
        raise
    return LoadedDraft(fitted, header, model, context)


def _checked_header(settings: ModelSettings) -> Header:
    header = read_model(settings.path)
    check_model(header)
    for path, _ in settings.lora:
        read_model(path)  # adapters are GGUF files too
    return header


def gpus() -> tuple[DeviceMemory, ...]:
    """The GPUs of this build with their free memory, those of RPC workers too."""
    apple = platform.system() == "Darwin"
    return tuple(DeviceMemory(d.name, d.free, apple and not d.remote) for d in devices() if d.gpu)


def _fitted(s: ModelSettings, n_gpu_layers: int) -> ModelSettings:
    return replace(s, n_gpu_layers=n_gpu_layers if s.n_gpu_layers != ALL_LAYERS else ALL_LAYERS)


def _reporter(name: str, send: Callable[[protocol.Message], None]) -> Callable[[float], None]:
    last = 0.0

    def report(share: float) -> None:
        nonlocal last
        now = time.perf_counter()
        if now - last >= _REPORT_SECONDS or share >= 1:
            last = now
            send(protocol.Loading(name, share))

    return report


def warm_up(context: LlamaContext) -> None:
    """Decode one token, so that the first answer is not slowed down by page faults and allocations."""
    token = max(0, context.model.bos_id)
    context.decode([BatchRow(token, 0, 0, True)])
    context.truncate(0, 0)
