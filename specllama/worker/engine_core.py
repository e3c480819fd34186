"""The engine process without its pipes: loads a pair, serves requests, and sends events as messages.

Runs in the worker's main thread, or in a test. Knows nothing about how messages are transported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from specllama.client import protocol
from specllama.client.tune_messages import Tune
from specllama.clock import running_time
from specllama.config.load import AUTO, LoadSettings
from specllama.config.store import Store
from specllama.core.engine import Engine
from specllama.core.gain import MIN_PLAIN_ROUNDS
from specllama.core.interfaces import DecodeError, Drafter, SavingDrafter
from specllama.core.policy.base import Policy
from specllama.core.policy.fixed import Fixed
from specllama.core.stats import RunStats
from specllama.drafters.block import BlockDrafter
from specllama.drafters.head import HeadDrafter
from specllama.drafters.model import ModelDrafter
from specllama.errors import EngineError, Note, SpecllamaError, UsageError, option, warning
from specllama.llama.log import show_log
from specllama.models.memory.available import available_memory
from specllama.prefix_disk.budget import automatic_budget
from specllama.prefix_disk.directory import StateDirectory, default_directory
from specllama.prefix_disk.disk_store import DiskStore
from specllama.text.template_process import TemplateProcess
from specllama.worker.accepted import choice_ids, refuse
from specllama.worker.exact import ExactMode
from specllama.worker.idle import IdleMeasurer
from specllama.worker.intake import RequestIntake
from specllama.worker.kept_prefixes import KeptPrefixes
from specllama.worker.load_info import inspect_build, load_info
from specllama.worker.loader import Loaded, load
from specllama.worker.no_draft_reason import drafting_verdict
from specllama.worker.output import SequenceOutput
from specllama.worker.pieces import spelt
from specllama.worker.prompts import Prompts
from specllama.worker.queries import compile_template, slots
from specllama.worker.slot_actions import SlotActions
from specllama.worker.template_notes import template_notes
from specllama.worker.tool_calls import ToolCalls
from specllama.worker.tuning.tuner import Tuner, begin

_OFFLOAD_SHARE = 0.25  # of the free memory that one offloaded idle cache may occupy
_CACHE_SHARE = 0.25  # of what is free after the load, for all prefix states
_PREFILL_REPORT_SECONDS = 0.5  # between two reports of a prefill


class EngineCore:
    """One loaded pair and its engine.

    send: sends a message to the front, in any thread. post: makes the thread that calls `handle` and `step`
    call a function; large requests are then prepared in another thread. None: everything happens in this one.
    busy_since: running_time at the start of the current work, None without any or during a load.
    """

    def __init__(
        self,
        send: Callable[[protocol.Message], None],
        store: Store | None = None,
        post: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self.send, self.store = send, store if store is not None else Store()
        self._post = post
        self.loaded: Loaded | None = None
        self.engine: Engine | None = None
        self.running: list[SequenceOutput] = []
        self.tuner: Tuner | None = None
        self._intake: RequestIntake | None = None
        self._idle: IdleMeasurer | None = None
        self._exact: ExactMode | None = None
        self._kept: KeptPrefixes | None = None
        self._slot_actions: SlotActions | None = None
        self._held: list[tuple[protocol.Generate, int]] = []  # wait until it is decided how to be exact
        self.busy_since: float | None = None
        self._step_seconds = 0.0
        self._reported = 0.0

    def handle(self, message: protocol.Message, size: int = 0) -> None:
        """Handle a message from the front. size: its bytes. Errors are sent as Failed, not raised."""
        # A load reports its progress, and has no time limit.
        self.busy_since = None if isinstance(message, protocol.Load) else running_time()
        try:
            if isinstance(message, protocol.Load):
                show_log(message.verbose)
                self._load(message.settings, message.measure_when_idle, message.open_draft)
            elif isinstance(message, protocol.Generate):
                self._generate(message, size)
            elif isinstance(message, protocol.Cancel):
                self._cancel(message.id)
            elif isinstance(message, protocol.Configure):
                self._configure(message)
            elif isinstance(message, protocol.Question):
                self._answer(message, size)
            elif isinstance(message, Tune):
                idle = None if self.busy else self.engine
                self.tuner = begin(message, idle, self.loaded, self._ids, self.send)
            elif isinstance(message, protocol.Inspect):
                self.send(protocol.Inspected(inspect_build(self.store)))
            elif isinstance(message, protocol.Calibrate):
                self._calibrate(message.seconds)
            else:
                raise EngineError(f"the engine process does not accept {type(message).__name__}")
        except SpecllamaError as error:
            refuse(self.send, error, getattr(message, "id", None), *choice_ids(message))
        finally:
            self.busy_since = None

    def run(self, posted: Callable[[], None]) -> None:
        """Call a function that was posted."""
        self.busy_since = running_time()
        try:
            posted()
        finally:
            self.busy_since = None

    @property
    def busy(self) -> bool:
        return self.decoding or self._preparing

    @property
    def _preparing(self) -> bool:
        return self._intake is not None and self._intake.busy

    @property
    def decoding(self) -> bool:
        """Whether `step` has something to decode."""
        return bool(self.running or self._held) or self.tuner is not None

    @property
    def step_due_in(self) -> float | None:
        """Seconds until `step` has work to do if no message arrives; None for never."""
        if self.decoding:
            return 0.0
        if self._preparing:
            return None
        due = [one.due_in for one in (self._idle, self._kept) if one is not None]
        return min((seconds for seconds in due if seconds is not None), default=None)

    def hang(self) -> tuple[float, float]:
        """How long the current work has run and how long it may, in seconds: of this thread, or of the
        preparer's if that is nearer to its end.
        """
        started = self.busy_since
        own = (running_time() - started if started is not None else 0.0, self.allowed_seconds())
        other = self._intake.hang if self._intake is not None else None
        return max(own, other, key=lambda found: found[0] / found[1]) if other is not None else own

    def allowed_seconds(self) -> float:
        """Seconds after which a step counts as hung: 30 s plus ten times its predicted duration."""
        predicted = self._step_seconds or (self.loaded.slow_step_seconds if self.loaded else 0.0)
        return 30.0 + 10.0 * max(predicted, self.tuner.predicted if self.tuner is not None else 0.0)

    def step(self) -> None:
        """Step the engine, and send the new tokens of all sequences in one message; if the engine is idle,
        measure for one slice of time.
        """
        if self._held and not self.running and not self._preparing and self.tuner is None:
            self._release_held()
        if not self.decoding:
            self._work_while_idle()
            return
        assert self.engine is not None
        assert self.loaded is not None
        started = self.busy_since = running_time()
        try:
            if self.tuner is not None:
                self.tuner = self.tuner if self.tuner.step() else None
            else:
                active = self.engine.active
                rows = active[0].exact_rows if active else None
                n_ids = sum(len(g.history) for g in active)
                self.loaded.profile.use_curve_at(n_ids, rows.width if rows is not None else None)
                self.engine.step()
        except (DecodeError, SpecllamaError) as error:
            self._fail(error)
        finally:
            self._step_seconds = max(running_time() - started, 0.9 * self._step_seconds)
            self.busy_since = None
        for notice in self.engine.notices:
            self.send(protocol.Notice(notice))
        self.engine.notices.clear()
        self._report()
        if self._kept is not None and self._kept.overdue and self.tuner is None:
            self._kept.keep()
        if self._slot_actions is not None and self._slot_actions.waiting:
            waiting, self._slot_actions.waiting = self._slot_actions.waiting, []
            for action in waiting:
                self.handle(action)

    def _load(self, settings: LoadSettings, measure_when_idle: bool, open_draft: bool) -> None:
        if self.loaded is not None:
            raise EngineError("this engine process has loaded its models already")
        process = TemplateProcess()  # it starts while the models are loaded
        try:
            self.loaded = loaded = load(settings, self.send, self.store, open_draft)
        except BaseException:
            process.close()
            raise
        self.engine = Engine(
            loaded.context,
            self._policy(loaded),
            end_ids=loaded.model.end_ids,
            suppressed=loaded.model.suppressed,
            clock=running_time,
            exact=settings.exact,
            room=lambda size: not settings.rpc and size < _OFFLOAD_SHARE * available_memory(),
            cache_budget=_cache_budget(settings.cache_ram),
            max_partials=settings.ctx_checkpoints,
            draft_tree=settings.draft_tree,
        )
        savers = (d for d in loaded.drafters if isinstance(d, SavingDrafter))
        self.engine.store.copies.drafter = next(savers, None)
        self._idle = IdleMeasurer(loaded, self.engine, measure_when_idle, running_time)
        template, problem = compile_template(loaded, process)
        source = settings.chat_template or loaded.header.chat_template or ""
        calls = ToolCalls(loaded.model, source, template if problem is None else None, settings.tool_format)
        context = loaded.context
        prompts = Prompts(
            loaded.model,
            context.n_ctx,
            context.n_batch,
            template,
            problem,
            calls,
            with_boundaries=not context.cuts_anywhere,
        )
        self._kept = self._opened_disk(loaded, self.engine)
        self._slot_actions = SlotActions(
            self.engine,
            loaded.prefix_key,
            loaded.header.name,
            self.send,
            running_time,
            loaded.draft_prefix_key,
        )
        self._intake = RequestIntake(
            loaded, self.engine, prompts, self.running, self.send, self._post, self._kept
        )
        notes = list[Note]()
        if problem is not None:
            notes.append(warning(f"{problem.message}; {option('raw')} works without it"))
        elif template is not None:
            notes += template_notes(loaded.model, template)
        self._idle.apply()
        self._exact = ExactMode(loaded, self.engine, self._idle, running_time)
        if settings.exact:
            self._exact.decide()
            notes += self._exact.notes
        works = template is not None and problem is None
        self.send(protocol.Ready(load_info(loaded, works, [*notes, *self._idle.notes()], calls)))

    def _work_while_idle(self) -> None:
        """Copy prompts to be written to the disk; measure for one slice of time."""
        self.busy_since = running_time()
        try:
            if self._kept is not None and self._kept.due_in == 0.0:
                self._kept.keep()
            elif self._idle is not None:
                self._idle.work()
        finally:
            self.busy_since = None

    def _opened_disk(self, loaded: Loaded, engine: Engine) -> KeptPrefixes | None:
        """The prompts of the model on disk, None where none are kept."""
        s, directory = loaded.settings, default_directory()
        if not s.cache_disk or not loaded.prefix_key or s.rpc:
            return None
        budget, held = s.cache_disk, 0
        if budget == AUTO:
            with contextlib.suppress(OSError):
                held = sum(StateDirectory(directory).sizes().values())
            budget = automatic_budget(directory, held)
        if budget <= 0:
            return None
        open_disk = partial(
            DiskStore,
            directory,
            budget,
            loaded.prefix_key,
            model=loaded.header.name,
            say=lambda text: self.send(protocol.Notice(text)),
        )
        return KeptPrefixes(
            engine, open_disk, directory.exists(), s.kept_seconds, running_time, loaded.draft_prefix_key
        )

    def _policy(self, loaded: Loaded) -> Policy:
        s, drafters = loaded.settings, loaded.drafters
        for drafter in drafters:
            if isinstance(drafter, ModelDrafter | HeadDrafter | BlockDrafter):
                drafter.confident = s.draft_max is None or s.draft_p_min > 0
        if s.draft_max == 0 or not drafters:
            return Fixed([], 0)
        if s.draft_max is None:
            return loaded.profile.planner_of(drafters)
        ordered: list[Drafter] = sorted(drafters, key=lambda d: d.priced)
        return Fixed(ordered, s.draft_max, s.draft_min, s.draft_p_min)

    def _configure(self, message: protocol.Configure) -> None:
        """Switch to another policy over the same drafters; the planner keeps what it has learnt."""
        if self.engine is None or self.loaded is None or self.engine.busy or self._preparing:
            raise EngineError("only a loaded engine that is idle can be configured")
        self.loaded.settings = replace(
            self.loaded.settings,
            draft_max=message.draft_max,
            draft_min=message.draft_min,
            draft_p_min=message.draft_p_min,
        )
        self.engine.policy = self._policy(self.loaded)
        self.send(protocol.Configured())

    def _generate(self, message: protocol.Generate, size: int) -> None:
        if self._intake is None:
            raise EngineError("no model is loaded")
        if self.tuner is not None:
            raise EngineError("the engine is being tuned", "try again when tuning has ended")
        if message.exact and self._exact is not None and not self._exact.decided:
            if self.busy:
                self._held.append((message, size))
                return
            self._exact.decide()
        if self._held:
            self._held.append((message, size))
            return
        self._intake.generate(message, size)

    def _release_held(self) -> None:
        """Decide how exact requests are decoded, and accept those that waited for it."""
        assert self._exact is not None
        held, self._held = self._held, []
        self._exact.decide()
        for message, size in held:
            self.handle(message, size)

    def _answer(self, question: protocol.Question, size: int) -> None:
        if self._intake is None or self.engine is None or self.loaded is None:
            raise EngineError("no model is loaded")
        if isinstance(question, protocol.GetSlots):
            costs = self.loaded.profile.decode_seconds
            self.send(slots(question.id, self.engine, self.running, costs))
        elif isinstance(question, protocol.SlotAction):
            assert self._slot_actions is not None
            if not self._slot_actions.act(question):
                self._slot_actions.waiting.append(question)
        else:
            self._intake.answer(question, size)

    def _ids(self, message: protocol.Generate) -> list[int]:
        assert self._intake is not None
        return self._intake.prompts.prompt(message).ids

    def _calibrate(self, seconds: float) -> None:
        if self._idle is None or self.loaded is None:
            self.send(protocol.Calibrated(None, None, False))
            return
        more, profile = self._idle.measure(seconds), self.loaded.profile
        self.send(protocol.Calibrated(profile.t1, profile.epsilon, more))

    def _cancel(self, id_: int) -> None:
        if self._intake is not None:
            self._intake.cancel(id_)
        if self.tuner is not None:
            self.tuner.cancel(id_)
        for one in [one for one in self._held if one[0].id == id_]:
            self._held.remove(one)
            self.send(protocol.Done(id_, "", "cancel", RunStats()))
        for running in self.running:
            if running.id == id_ and self.engine is not None:
                self.engine.cancel(running.generation)
        self._report()

    def _report(self) -> None:
        if self.loaded is None:
            return
        items = []
        now = running_time()
        for r in self.running:
            g = r.generation
            if g.seq_id < 0 and g.finish_reason is None:  # waiting for a slot
                waiting = self.engine.waiting if self.engine is not None else []
                if (queued := r.queue_report(waiting)) is not None:
                    self.send(queued)
                continue
            for report in r.prefill_reports():
                self.send(report)
            item = r.delta(self.loaded.model)
            if item is not None:
                items.append(item)
            elif not r.progress and not g.prefilled and now - self._reported > _PREFILL_REPORT_SECONDS:
                self._reported = now
                self.send(protocol.Prefilled(r.id, g.n_past, g.n_prompt, g.stats.n_reused))
        if items:
            self.send(protocol.Tokens(items))
        for r in [r for r in self.running if r.generation.finish_reason is not None]:
            self.running.remove(r)
            self._finish(r)
        if self.engine is not None and self.engine.draft_failed and not self.running:
            self.loaded.drop_draft(self.loaded.profile.planner)

    def _finish(self, r: SequenceOutput) -> None:
        """Send the end of a generation, and keep its ids for the next turn."""
        g = r.generation
        unmeasured = self._idle.generation_ended(g) if self._idle is not None else False
        if g.problem:
            error = UsageError(f"the grammar is too complex: {g.problem}")
            self.send(protocol.Failed(error.to_dict(), r.id))
            return
        text, runs = r.writer.finish_runs()
        scope = g.request.memory_scope
        if self.loaded is not None and self.loaded.memory is not None and scope is not None:
            self.loaded.memory.keep(scope, g.history, g.n_prompt)
        if r.messages is not None:
            assert self._intake is not None
            self._intake.prompts.turns.keep(r.id, r.messages, g.history, g.n_prompt, r.prefix)
        self.send(self._done(r, text, runs, unmeasured))
        if self._kept is not None:
            self._kept.generation_ended()
        if self.loaded is not None:
            self.loaded.profile.save()

    def _done(
        self, r: SequenceOutput, text: str, runs: list[tuple[int, str]], unmeasured: bool
    ) -> protocol.Done:
        """The last message of a generation. text, runs: the output that was held back until now."""
        assert self.loaded is not None
        assert self.engine is not None
        g, profile = r.generation, self.loaded.profile
        verdict = drafting_verdict(self.loaded.off_reason, self.engine.policy, g)
        if verdict.by_costs:
            profile.distrust_stored_t2()
        stored_t1, pace = profile.plain_t1(len(g.history), g.stats.exact_width)
        count, seconds = g.stats.steady_by_rows.get(1, (0, 0.0))
        if count >= MIN_PLAIN_ROUNDS:
            profile.observe_plain(len(g.history), seconds / count)
        return protocol.Done(
            r.id,
            text,
            g.finish_reason or "cancel",
            g.stats,
            runs,
            stop_string=r.writer.stopped_by,
            queue_seconds=g.admitted - g.submitted if g.admitted else None,
            off_reason=verdict.reason,
            stored_t1=stored_t1,
            pace=pace,
            epsilon=self.engine.epsilon if profile.covers(len(g.history)) else None,
            unmeasured=unmeasured,
            slot=g.seq_id,
            prompt=spelt(self.loaded.model, g.request.prompt) if r.show_prompt else "",
        )

    def _fail(self, error: Exception) -> None:
        problem = error if isinstance(error, SpecllamaError) else EngineError(f"decoding failed: {error}")
        for r in self.running:
            self.send(protocol.Failed(problem.to_dict(), r.id))
        self.running.clear()

    def shut_down(self) -> None:
        """Store what was learnt and the prompts that are worth it, when the front is gone."""
        if self.loaded is not None:
            self.loaded.profile.flush()
        if self._kept is not None and not self.busy:
            self._kept.close()


def _cache_budget(cache_ram: int) -> float:
    """Bytes for prefix states outside of the context; AUTO: a quarter of what is free after the load."""
    return cache_ram if cache_ram != AUTO else _CACHE_SHARE * available_memory()
