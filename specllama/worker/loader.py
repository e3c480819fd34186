"""Loads a pair: reads and checks both headers, checks the pair, plans the memory, then calls llama.cpp.

llama.cpp opens no file before its header has passed the check.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from specllama.client import protocol
from specllama.config.load import LoadSettings
from specllama.config.store import Store
from specllama.core.interfaces import Drafter, RememberingDrafter
from specllama.core.policy.base import Policy
from specllama.drafters import DrafterInputs, make_drafters, wants_draft_model
from specllama.drafters.block import BlockDrafter
from specllama.drafters.head import HeadDrafter
from specllama.drafters.ring import RequestHistory
from specllama.errors import IncompatiblePairError, ResourceError, option
from specllama.gguf.architectures import ROLLBACK
from specllama.gguf.check import check_draft
from specllama.gguf.head import HeadInfo
from specllama.gguf.header import Header, read_model
from specllama.gguf.heads import is_head_file, read_head, unusable_head
from specllama.llama.context import LlamaContext
from specllama.llama.devices import devices
from specllama.llama.model import LlamaModel
from specllama.models.memory.available import available_memory
from specllama.models.memory.load_plan import on_gpus, plan_load, rollback, rows_of_logits
from specllama.models.memory.plan import MemoryPlan
from specllama.pair.check import PairVerdict, check_pair
from specllama.pair.heads import HeadVerdict, check_head
from specllama.text.grammar import Grammars
from specllama.worker.draft import LoadedDraft, checked_header, fitted_to, gpus, open_model, reporter, warm_up
from specllama.worker.head import LoadedHead, open_head
from specllama.worker.profile import ModelProfile
from specllama.worker.profile_keys import pair_key, target_key
from specllama.worker.rpc.attach import attach

MIN_ROLLBACK = 2  # recurrent states below which drafts are not worth their memory
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
    verdict: PairVerdict | HeadVerdict | None = None
    draft: LoadedDraft | LoadedHead | None = None
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


def load(
    settings: LoadSettings,
    send: Callable[[protocol.Message], None],
    store: Store,
    open_draft: bool = True,
) -> Loaded:
    """Load target and draft. Raises IntegrityError, IncompatiblePairError, ResourceError, UsageError,
    NotFoundError, NetworkError.

    send: receives Loading and Notice messages. open_draft: see protocol.Load.
    """
    started = time.perf_counter()
    header = checked_header(settings.target)
    checked, verdict = _checked_draft(settings, header, send)
    settings = on_gpus(attach(settings, send), [d.name for d in devices() if d.gpu])
    plan, checked, n_rs_seq = _planned(settings, header, checked, send)
    fitted = fitted_to(settings.target, plan.target.n_gpu_layers)
    inside = isinstance(checked, HeadInfo) and not checked.own_file
    model = LlamaModel(fitted, reporter("target", send), with_head=inside)
    context = LlamaContext(model, plan.n_ctx, settings.n_slots, rows_of_logits(settings), n_rs_seq)
    draft: LoadedDraft | LoadedHead | None = None
    problem = ""
    if isinstance(checked, HeadInfo) and open_draft:
        draft, problem = open_head(settings, checked, context, plan, send)
    elif isinstance(checked, Header) and open_draft:
        draft, problem = open_model(settings, checked, plan, send)
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


def _checked_draft(
    settings: LoadSettings, target: Header, send: Callable[[protocol.Message], None]
) -> tuple[Header | HeadInfo | None, PairVerdict | HeadVerdict | None]:
    """The header of the draft model or the head, and the verdict on the pair; (None, None) if there is none.
    A head of the model itself that cannot be used is left out with a notice. Raises IncompatiblePairError,
    GGUFError.
    """
    if settings.draft is None or settings.draft_max == 0 or not wants_draft_model(settings.drafters):
        return None, None
    if settings.draft.path == settings.target.path:
        if head := read_head(target):
            verdict = check_head(target, head)
            if verdict.ok:
                return head, verdict
            send(protocol.Notice(f"the head of the model is not used: {verdict.reason}"))
            return None, None
        if reason := unusable_head(target):
            send(protocol.Notice(f"the head of the model is not used: {reason}"))
            return None, None
    header = read_model(settings.draft.path)
    check_draft(header)
    draft = (read_head(header) if is_head_file(header) else None) or header
    found = check_head(target, draft) if isinstance(draft, HeadInfo) else check_pair(target, draft)
    if not found.ok:
        both = "model and head" if isinstance(draft, HeadInfo) else "target and draft"
        raise IncompatiblePairError(
            f"{both} do not fit together: {found.reason}",
            f"choose another draft, or {option('draft_model', 'none')}",
        )
    return draft, found


def _planned(
    settings: LoadSettings,
    header: Header,
    draft: Header | HeadInfo | None,
    send: Callable[[protocol.Message], None],
) -> tuple[MemoryPlan, Header | HeadInfo | None, int]:
    """The memory plan, the draft that it has room for, and the recurrent states of each sequence.

    Where there is no room for as many states as drafts may be long, there are fewer; where there is none for
    all layers of a head, the first drafts all tokens; where there is none for the model's own head, it is
    left out with a notice. Raises ResourceError, UsageError.
    """
    available, devices_, n_rs_seq = available_memory(), gpus(), rollback(settings)
    while True:
        try:
            plan = plan_load(settings, header, draft, available, devices_, n_rs_seq=n_rs_seq)
            return plan, draft, n_rs_seq
        except ResourceError as error:
            if header.architecture in ROLLBACK and n_rs_seq > MIN_ROLLBACK:
                n_rs_seq //= 2
            elif isinstance(draft, HeadInfo) and draft.n_chained > 1:
                draft = replace(draft, n_chained=1)
            elif isinstance(draft, HeadInfo) and not draft.own_file:
                send(protocol.Notice(f"the head of the model is not used: {error.args[0]}"))
                draft, n_rs_seq = None, rollback(settings)
            else:
                raise


def _drafters(
    settings: LoadSettings,
    model: LlamaModel,
    draft: LoadedDraft | LoadedHead | None,
    memory: RequestHistory | None,
) -> list[Drafter]:
    """The drafters that the settings name, without those that cannot be used."""
    if settings.draft_max == 0:
        return []
    confident = settings.draft_max is None or settings.draft_p_min > 0
    inputs = DrafterInputs(
        model.n_vocab,
        model.end_ids,
        draft_context=draft.context if isinstance(draft, LoadedDraft) else None,
        head=draft.context if isinstance(draft, LoadedHead) else None,
        confident=confident,
        history=memory,
    )
    made = make_drafters(settings.drafters, inputs)
    if isinstance(draft, LoadedHead):
        draft.features.reader = next((d for d in made if isinstance(d, HeadDrafter | BlockDrafter)), None)
    return made
