"""Loads a pair: reads and checks both headers, checks the pair, plans the memory, then calls llama.cpp.

llama.cpp opens no file before its header has passed the check.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from specllama.client import protocol
from specllama.clock import running_time
from specllama.config.load import LoadSettings
from specllama.config.store import Store
from specllama.core.interfaces import Drafter
from specllama.core.policy.base import Policy
from specllama.core.policy.fixed import Fixed
from specllama.drafters import DrafterInputs, make_drafters
from specllama.drafters.ngrams import RequestHistory
from specllama.errors import ResourceError, option
from specllama.gguf.architectures import ROLLBACK
from specllama.gguf.header import FileIdentity, Header
from specllama.gguf.projector import Projector
from specllama.llama.context import LlamaContext
from specllama.llama.library import KERNELS, devices
from specllama.llama.model import LlamaModel
from specllama.models.memory import plan as memory
from specllama.models.memory.available import available_memory
from specllama.models.memory.cost import keeps_all_cells
from specllama.other_work import OtherWork
from specllama.prefix_disk.scopes import model_key
from specllama.text.grammar import Grammars
from specllama.worker.corpus import BITS
from specllama.worker.draft import (
    CheckedDrafts,
    LoadedDraft,
    LoadedHead,
    checked_drafts,
    checked_header,
    fitted_to,
    gpus,
    open_head,
    open_model,
    reporter,
    warm_up_drafts,
    warm_up_target,
)
from specllama.worker.images import checked_projector, open_encoder
from specllama.worker.prefix_persister import model_files, prefix_key
from specllama.worker.profile import ModelProfile, pair_key, target_key

MIN_ROLLBACK = 2  # recurrent states below which drafts are not worth their memory
_SLOW_FLOPS, _SLOW_BYTES = 2e10, 1e9  # per second, on a very slow machine


class Loaded:
    """A loaded target with its drafts. send: gets Loading and Notice. open_draft, reserved: see
    protocol.Load. Raises IntegrityError, IncompatiblePairError, ResourceError, UsageError, NotFoundError,
    NetworkError.

    drafters: in the order in which they draft. off_reason: why nothing drafts, "" if something does.
    verdicts: on the draft model and on the head. draft: a draft model. head: in a file of its own or inside
    the target. history: the output of earlier requests, None if it is not kept. corpus: texts of files, None
    without any. vision: the encoder of images, None for a model that sees none. prefix_key, draft_prefix_key:
    of their prefix states on disk, memory_key: of the texts there; "": none.
    """

    def __init__(
        self,
        settings: LoadSettings,
        send: protocol.Send,
        store: Store,
        open_draft: bool = True,
        reserved: int = 0,
    ) -> None:
        started = running_time()
        self.header = header = checked_header(settings.target)
        checked = checked_drafts(settings, header, send)
        if settings.rpc:
            from specllama.worker.rpc import attach

            settings = attach(settings, send)
        settings = memory.on_gpus(settings, [d.name for d in devices() if d.gpu])
        projector = checked_projector(settings, header, send)
        plan, checked, n_rs_seq, projector = _planned(settings, header, checked, projector, send, reserved)
        if projector is not None and (raised := memory.with_images(settings, projector)) is not settings:
            rows = f"{option('n_ubatch')} is {raised.target.n_ubatch}: as many rows has an image"
            send(protocol.Notice(rows))
            settings = raised
        fitted = fitted_to(settings.target, plan.target.n_gpu_layers)
        fitted = replace(fitted, swa_full=keeps_all_cells(settings, checked.head is not None))
        files = model_files(header, fitted, settings.rpc)
        with_head = checked.own_head is not None
        self.model = model = LlamaModel(fitted, reporter("target", send), with_head=with_head)
        self.vision = open_encoder(settings, projector, model, send)
        if self.vision is None:
            settings = replace(settings, mmproj="none", mmproj_found=False)
        n_outputs, n_spare = memory.rows_of_logits(settings), memory.spare_cells(settings)
        rotates = self.vision is not None and self.vision.mrope  # branches would take positions of their own
        n_branches = 0 if checked.reads_target or rotates else memory.branch_sequences(settings)
        size = plan.n_ctx, settings.n_slots, n_outputs, n_rs_seq, n_spare, n_branches
        self.context = context = LlamaContext(model, *size)
        self.settings, self.plan, self.verdicts = settings, plan, checked.verdicts
        self.draft: LoadedDraft | None = None
        self.head: LoadedHead | None = None
        problems = list[str]()
        if checked.head is not None and open_draft:
            self.head, problem = open_head(settings, checked.head.head, header, context, plan, send)
            problems.append(problem)
        draft_files: tuple[FileIdentity, ...] = ()
        if checked.model is not None and settings.draft is not None and open_draft:
            draft_files = model_files(checked.model, settings.draft, settings.rpc)
            pair = checked.model, header, model, checked.overlap
            self.draft, problem = open_model(settings, *pair, plan, send)
            problems.append(problem)
        draft, head = self.draft, self.head
        history = RequestHistory() if settings.memory else None
        corpus = RequestHistory(BITS) if settings.memory_from and settings.copies else None
        self.drafters = self._made_drafters(history, corpus)
        self.history = history if any(drafter.remembers for drafter in self.drafters) else None
        self.corpus = corpus if self.drafters else None
        self.grammars = Grammars(model)
        problem = "; ".join(filter(None, problems))
        self.off_reason = "" if self.drafters else _off_reason(settings, problem)
        drafting, second = draft or head, head.head if draft is not None and head is not None else None
        key = pair_key(drafting.key if drafting is not None else None, self.drafters, second)
        self.profile = ModelProfile(
            store,
            target_key(header, fitted, context),
            key,
            settings.calibrate,
            running_time,
            kernels=KERNELS.level or "",
            on_device=bool(plan.target.n_gpu_layers or settings.rpc),
        )
        self.prefix_key = prefix_key(header, context, files, settings)
        self.draft_prefix_key = ""
        if draft is not None:
            self.draft_prefix_key = prefix_key(draft.header, draft.context, draft_files, settings)
        self.memory_key = model_key(files, {}, {}) if files else ""
        warm_up_target(context, self.profile, running_time, OtherWork(self.n_working))
        if settings.draft_max is None:
            warm_up_drafts(self.profile, self.drafters, draft, head, running_time)
        self.load_seconds = running_time() - started

    def _made_drafters(self, history: RequestHistory | None, corpus: RequestHistory | None) -> list[Drafter]:
        """The drafters that the settings name, without those that cannot be used."""
        settings, model, draft, head = self.settings, self.model, self.draft, self.head
        if settings.draft_max == 0:
            return []
        inputs = DrafterInputs(
            model.n_vocab,
            model.end_ids,
            draft_context=draft.context if draft is not None else None,
            translation=draft.translation if draft is not None else None,
            head=head.drafting if head is not None else None,
            confident=settings.draft_max is None or settings.draft_p_min > 0,
            history=history,
            corpus=corpus,
        )
        made = make_drafters(settings.drafters, inputs)
        if head is not None:
            head.features.reader = next((d for d in made if d.reads_features), None)
        return made

    @property
    def n_working(self) -> int:
        """Threads that compute in a decode: one, which waits, where all layers are on devices."""
        target, n = self.settings.target, self.plan.target.n_gpu_layers
        split = n <= self.header.n_layer or target.n_cpu_moe or target.override_tensor
        return self.context.n_threads_batch if split else 1

    @property
    def longest_draft(self) -> int:
        """The most tokens of a draft that fit into a decode and can be rolled back."""
        return min(self.context.n_outputs_max - self.settings.n_slots, self.context.max_rollback)

    @property
    def holds_widths(self) -> bool:
        """Whether every text has one width, since a change of it costs something."""
        return bool(self.profile.change_seconds) and self.widest > 1

    @property
    def widest(self) -> int:
        """The most rows of a decode, all of the same width, whose rejected rows can be removed again."""
        context = self.context
        if not context.can_pad or not context.swa_full:  # rows that take cells of a window move later ones
            return 1
        n_ubatch = self.settings.target.n_ubatch
        return min(context.n_outputs_max, context.n_batch, n_ubatch, context.max_rollback + 1)

    def policy(self, models: bool = True) -> Policy:
        """The policy that the settings ask for; the planner is always the same one. models: False leaves
        draft models and heads out, for a planner of its own.
        """
        s, drafters = self.settings, [d for d in self.drafters if models or not d.runs_model]
        for drafter in drafters:
            drafter.confident = s.draft_max is None or s.draft_p_min > 0
        if s.draft_max == 0 or not drafters:
            return Fixed([], 0)
        if s.draft_max is None:
            return self.profile.planner_of(drafters) if models else self.profile.model_free_planner(drafters)
        ordered: list[Drafter] = sorted(drafters, key=lambda d: d.runs_model)
        return Fixed(ordered, s.draft_max, s.draft_min, s.draft_p_min)

    def drop_draft(self, policy: Policy | None) -> None:
        """Free the draft model and the head after one of them failed. policy: the planner, from which their
        drafters are removed too, since it need not be the policy in use.
        """
        if policy is not None:
            for drafter in self.drafters:
                if drafter.runs_model:
                    policy.remove_drafter(drafter.name)
        self.drafters = [d for d in self.drafters if not d.runs_model]
        for one in (self.draft, self.head):
            if one is not None:
                one.close()
        self.draft = self.head = None


def slow_seconds(header: Header, n_rows: int) -> float:
    """Seconds of a decode of so many rows on a very slow machine."""
    return 2 * header.n_params * n_rows / _SLOW_FLOPS + header.weight_bytes / _SLOW_BYTES


def _off_reason(settings: LoadSettings, problem: str) -> str:
    """The reason why there is no drafter. problem: of the draft model or head, "" if it can be used."""
    if settings.draft_max == 0:
        return option("draft_max", 0)
    if not settings.drafters:
        return f"drafting is switched off by {option('drafters', 'none')}"
    return problem or f"none of the drafters of {option('drafters')} can be used here"


def _planned(
    settings: LoadSettings,
    header: Header,
    drafts: CheckedDrafts,
    projector: Projector | None,
    send: protocol.Send,
    reserved: int,
) -> tuple[memory.MemoryPlan, CheckedDrafts, int, Projector | None]:
    """The memory plan, the drafts that it has room for, the recurrent states of each sequence, the projector.

    Where there is no room, there are fewer states than drafts may be long, then the first layer of a head
    drafts all tokens, then the model's own head is left out with a notice. Next to a draft model, the
    head is reduced and left out before there are fewer states. A projector that nobody named is left out
    last. Raises ResourceError, UsageError.
    """
    plan_of = partial(memory.plan_load, settings, header)
    available = max(0, available_memory() - reserved)
    devices_, n_rs_seq = gpus(), memory.rollback(settings)
    while True:
        try:
            draft, second = drafts.draft, drafts.second
            plan = plan_of(draft, available, devices_, n_rs_seq=n_rs_seq, head=second, projector=projector)
            return plan, drafts, n_rs_seq, projector
        except ResourceError as error:
            fewer = header.architecture in ROLLBACK and n_rs_seq > MIN_ROLLBACK
            if fewer and drafts.second is None:
                n_rs_seq //= 2
            elif drafts.head is not None and drafts.head.head.n_chained > 1:
                head = replace(drafts.head.head, n_chained=1)  # whose first layer drafts all tokens
                drafts = replace(drafts, head=replace(drafts.head, head=head))
            elif drafts.own_head is not None:
                send(protocol.Notice(f"the head of the model is not used: {error.args[0]}"))
                drafts, n_rs_seq = replace(drafts, head=None), memory.rollback(settings)
            elif projector is not None and settings.mmproj_found:
                send(protocol.Notice(f"images are not read: {error.args[0]}"))
                projector, n_rs_seq = None, memory.rollback(settings)
            else:
                raise
