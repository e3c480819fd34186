"""The engine process without its pipes: loads a pair, serves requests, and sends events as messages.

Runs in the worker's main thread, or in a test. Knows nothing about how messages are transported.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from specllama.client import protocol, tune_messages
from specllama.clock import running_time
from specllama.config.load import AUTO
from specllama.config.store import Store
from specllama.core.engine import Engine
from specllama.core.gain import MIN_PLAIN_ROUNDS
from specllama.core.interfaces import CachingDrafter, DecodeError
from specllama.core.prefix.store import PrefixStore
from specllama.core.stats import RunStats
from specllama.errors import EngineError, Note, SpecllamaError, UsageError, option, warning
from specllama.llama.library import log
from specllama.llama.model import LlamaModel
from specllama.models.memory.available import available_memory
from specllama.prefix_disk.directory import StateDirectory, automatic_budget, default_directory
from specllama.prefix_disk.disk_store import DiskStore
from specllama.prefix_disk.memory_store import MemoryStore
from specllama.processor_time import WorkMeter, of_thread
from specllama.text.reasoning_budget import ReasoningBudget
from specllama.text.template_process import IsolatedTemplate, TemplateProcess
from specllama.worker.conversations import detokenize
from specllama.worker.corpus import Corpus
from specllama.worker.drafting_gain import drafting_verdict, store_answers
from specllama.worker.embedding import EmbeddingEngine, loads_embedder
from specllama.worker.idle import ExactMode, IdleMeasurer
from specllama.worker.images import ImageEncoder
from specllama.worker.intake import RequestIntake, SequenceOutput, refusing
from specllama.worker.load_info import inspect_build, load_info
from specllama.worker.loader import Loaded, slow_seconds
from specllama.worker.prefix_persister import PrefixPersister
from specllama.worker.prompts import Prompts
from specllama.worker.slot_actions import SlotActions, slots

if TYPE_CHECKING:
    from specllama.worker.tuning.tuner import Tuner

_PREFILL_REPORT_SECONDS = 0.5  # between two reports of a prefill
_MEMORY_SECONDS = 1.0  # at most, for writing texts at the end
_INDEXED_WHEN_IDLE = 16384  # tokens of earlier texts at a time, in 4 ms
_WITHOUT_AMX = (
    "AMX is not used: llama.cpp was compiled without it, or without specllama's amx.h and might crash; with "
    "both, prompts take a third to half of the time (docs/install.md)"
)


class LoadedEngine:
    """A loaded pair and its engine. send, post: as in EngineCore. Raises what `Loaded` raises, and UsageError
    for a width of exact decodes that does not fit.

    ready: its description for the front. running: the generations; the intake adds to them. persister:
    prompts on disk, None where none are kept; memory: texts on disk, likewise. corpus: files to draft from,
    None without any. tuner: while the engine is tuned. held: requests, with the bytes of their messages, that
    wait until it is decided how to be exact.
    """

    def __init__(
        self,
        order: protocol.Load,
        send: protocol.Send,
        store: Store,
        post: Callable[[Callable[[], None]], None] | None,
    ) -> None:
        process = TemplateProcess()  # it starts while the models are loaded
        try:
            self.loaded = loaded = Loaded(order.settings, send, store, order.open_draft, order.reserved)
        except BaseException:
            process.close()
            raise
        settings, self.send, self.engine = loaded.settings, send, _engine(loaded)
        self.idle = IdleMeasurer(loaded, self.engine, order.measure_when_idle)
        wake = partial(post, lambda: None) if post is not None else lambda: None
        encoder = ImageEncoder(loaded.vision, wake) if loaded.vision is not None else None
        prompts = Prompts(loaded, process, encoder)
        self.persister = _prefix_persister(loaded, self.engine.scheduler.store, send)
        self.memory: MemoryStore | None = None
        if self.persister is not None and loaded.history is not None and loaded.memory_key:
            name, say = loaded.header.name, _notice(send)
            self.memory = MemoryStore(default_directory(), loaded.memory_key, name, say)
            loaded.history.load = self.memory.load
        self.corpus: Corpus | None = None
        if loaded.corpus is not None:
            paths, say = settings.memory_from, _notice(send)
            tokenize = partial(loaded.model.tokenize, add_special=False, parse_special=False)
            self.corpus = Corpus(paths, loaded.corpus, tokenize, say)
            if not order.measure_when_idle:  # it is asked at once, and only then
                self.corpus.read(_CORPUS_SECONDS)
        self.idle.apply()
        self.exact = ExactMode(loaded, self.engine, self.idle)
        self.running, self.held = list[SequenceOutput](), list[tuple[protocol.Generate, int]]()
        of_requests = self.running, send, post, self.persister, self.memory
        self.intake = RequestIntake(loaded, self.engine, prompts, *of_requests)
        self.slot_actions = SlotActions(loaded, self.engine, send)
        self.tuner: Tuner | None = None
        self._step_seconds = self._reported = 0.0
        notes = template_notes(loaded.model, prompts.template) if prompts.works else []
        if settings.memory_from and self.corpus is None:
            notes.append(Note(f"{option('memory_from')} is not read: the drafter copy is off"))
        if prompts.problem is not None:
            notes = [warning(f"{prompts.problem.message}; {option('raw')} works without it")]
        if settings.exact:
            self.exact.decide()
            notes += self.exact.notes
            rows, given = self.engine.exact_rows, settings.exact_width
            if rows is not None and rows.width == 1 and not loaded.off_reason:
                loaded.off_reason = option("exact") if given is None else option("exact_width", 1)
        else:
            self.exact.hold_widths()
        notes += self.idle.notes()
        if loaded.model.leaves_amx:
            notes.append(Note(_WITHOUT_AMX))
        self.ready = protocol.Ready(load_info(loaded, prompts.works, notes, prompts.calls))

    def handle(self, message: protocol.Message, size: int = 0) -> None:
        """Handle a message from the front. size: its bytes. Raises SpecllamaError."""
        if isinstance(message, protocol.Generate):
            self._generate(message, size)
        elif isinstance(message, protocol.Cancel):
            self._cancel(message.id)
        elif isinstance(message, protocol.EndReasoning):
            for running in self.running:
                mask = running.generation.request.mask
                if running.id == message.id and isinstance(mask, ReasoningBudget):
                    mask.end()
        elif isinstance(message, tune_messages.Configure):
            self._configure(message)
        elif isinstance(message, protocol.Question):
            self._answer(message, size)
        elif isinstance(message, tune_messages.Tune):
            from specllama.worker.tuning.tuner import Tuner

            engine, prompts = None if self.busy else self.engine, self.intake.prompts
            self.tuner = Tuner(message, engine, self.loaded, prompts, self.send)
        elif isinstance(message, tune_messages.Calibrate):
            more, profile = self.idle.measure(message.seconds), self.loaded.profile
            self.send(tune_messages.Calibrated(profile.t1, profile.epsilon, more))
        else:
            raise EngineError(f"the engine process does not accept {type(message).__name__}")

    @property
    def busy(self) -> bool:
        return self.decoding or self.intake.busy

    @property
    def decoding(self) -> bool:
        return bool(self.running or self.held) or self.tuner is not None

    @property
    def step_due_in(self) -> float | None:
        if self.decoding:
            return _ENCODING_SECONDS if self.tuner is None and self.engine.scheduler.encoding else 0.0
        if self.intake.busy:
            return None
        history, due = self.loaded.history, [self.idle.due_in]
        if self.persister is not None:
            due.append(self.persister.due_in)
        if history is not None and history.pending:
            due.append(0.0)
        if self.corpus is not None:
            due.append(self.corpus.due_in)
        return min((seconds for seconds in due if seconds is not None), default=None)

    @property
    def predicted_seconds(self) -> float:
        """Of a step, by the last ones; of the first one, by the model's size."""
        predicted = self._step_seconds or slow_seconds(self.loaded.header, 64)
        return max(predicted, self.tuner.predicted if self.tuner is not None else 0.0)

    def step(self) -> None:
        """With nothing to decode, prompts are copied for the disk, or a slice of time is measured."""
        if self.held and not self.running and not self.intake.busy and self.tuner is None:
            held, self.held = self.held, []  # requests that waited until the engine was idle
            self.exact.decide()
            for message, size in held:
                with refusing(self.send, message):
                    self.handle(message, size)
        if not self.decoding:
            if self.persister is not None and self.persister.due_in == 0.0:
                self.persister.persist()
            elif self.loaded.history is not None and self.loaded.history.pending is not None:
                self.loaded.history.index_pending(_INDEXED_WHEN_IDLE)
            elif self.corpus is not None and self.corpus.due_in is not None:
                self.corpus.step()
            else:
                self.idle.measure()
            return
        started = running_time()
        try:
            if self.tuner is not None:
                self.tuner = self.tuner if self.tuner.step() else None
            else:
                self.loaded.profile.use_curve_at(sum(len(g.history) for g in self.engine.active))
                self.engine.step()
        except (DecodeError, SpecllamaError) as error:
            self._fail(error)
        finally:
            self._step_seconds = max(running_time() - started, 0.9 * self._step_seconds)
        for notice in self.engine.notices:
            self.send(protocol.Notice(notice))
        self.engine.notices.clear()
        self._report()
        if self.persister is not None and self.persister.overdue and self.tuner is None:
            self.persister.persist()
        waiting, self.slot_actions.waiting = self.slot_actions.waiting, []
        for action in waiting:
            with refusing(self.send, action):
                self.handle(action)

    def _configure(self, message: tune_messages.Configure) -> None:
        """Switch to another policy over the same drafters; the planner keeps what it has learnt."""
        if self.engine.busy or self.intake.busy:
            raise EngineError("only a loaded engine that is idle can be configured")
        self.loaded.settings = replace(
            self.loaded.settings,
            draft_max=message.draft_max,
            draft_min=message.draft_min,
            draft_p_min=message.draft_p_min,
        )
        self.engine.scheduler.policy = self.loaded.policy(message.runs_models)
        self.send(tune_messages.Configured())

    def _generate(self, message: protocol.Generate, size: int) -> None:
        if self.tuner is not None:
            raise EngineError("the engine is being tuned", "try again when tuning has ended")
        if message.exact and not self.exact.decided:
            if self.busy:
                self.held.append((message, size))
                return
            self.exact.decide()
        if self.held:
            self.held.append((message, size))
            return
        self.intake.generate(message, size)

    def _answer(self, question: protocol.Question, size: int) -> None:
        if isinstance(question, protocol.Embed):
            raise UsageError(f"{self.loaded.header.name} writes texts, and makes no vectors")
        if isinstance(question, protocol.GetSlots):
            costs = self.loaded.profile.decode_seconds
            self.send(slots(question.id, self.engine, self.running, costs))
        elif isinstance(question, protocol.SlotAction):
            if not self.slot_actions.act(question):
                self.slot_actions.waiting.append(question)
        else:
            self.intake.answer(question, size)

    def _cancel(self, id_: int) -> None:
        self.intake.cancel(id_)
        if self.tuner is not None:
            self.tuner.cancel(id_)
        for one in [one for one in self.held if one[0].id == id_]:
            self.held.remove(one)
            self.send(protocol.Done(id_, "", "cancel", RunStats()))
        for running in self.running:
            if running.id == id_:
                self.engine.cancel(running.generation)
        self._report()

    def _report(self) -> None:
        items = []
        now = running_time()
        for r in self.running:
            g = r.generation
            if g.seq_id < 0 and g.finish_reason is None:  # waiting for a slot
                if (queued := r.queue_report(self.engine.scheduler.waiting)) is not None:
                    self.send(queued)
                continue
            for report in r.prefill_reports():
                self.send(report)
            item = r.delta(self.loaded.model)
            if item is not None:
                items.append(item)
            elif not (r.message.progress or g.prefilled) and now - self._reported > _PREFILL_REPORT_SECONDS:
                self._reported = now
                at_image = g.next_image is not None
                self.send(protocol.Prefilled(r.id, g.n_past, g.n_prompt, g.stats.n_reused, at_image))
        if items:
            self.send(protocol.Tokens(items))
        for r in [r for r in self.running if r.generation.finish_reason is not None]:
            self.running.remove(r)
            self._finish(r)
        if self.engine.draft_failed and not self.running:
            self.loaded.drop_draft(self.loaded.profile.planner)

    def _finish(self, r: SequenceOutput) -> None:
        """Send the end of a generation, and keep its ids for the next turn."""
        g = r.generation
        unmeasured = self.idle.generation_ended(g)
        if g.problem is not None:
            self.send(protocol.Failed(g.problem.to_dict(), r.id))
            return
        text, runs = r.writer.finish()
        scope = g.request.history_scope
        if self.loaded.history is not None and scope is not None:
            ids = self.loaded.history.keep(scope, g.history, g.n_prompt)
            if self.memory is not None and g.request.kept:
                self.memory.add(scope, ids)
        if (chat := r.message.chat) is not None:
            self.intake.prompts.turns.keep(r.id, chat.messages, g.history, g.n_prompt, chat.prefix)
        self.send(self._done(r, text, runs, unmeasured))
        if self.persister is not None:
            self.persister.generation_ended()
        self.loaded.profile.save()

    def _done(
        self, r: SequenceOutput, text: str, runs: list[tuple[int, str]], unmeasured: bool
    ) -> protocol.Done:
        """The last message of a generation. text, runs: the output that was held back until now."""
        g, profile = r.generation, self.loaded.profile
        verdict = drafting_verdict(self.loaded.off_reason, self.engine.scheduler.policy, g)
        if verdict.by_costs:
            profile.distrust_stored_t2()
        stored_t1, pace = profile.plain_t1(len(g.history))
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
            prompt=detokenize(self.loaded.model, g.request.prompt) if r.message.show_prompt else "",
            complete=g.complete,
        )

    def _fail(self, error: Exception) -> None:
        problem = error if isinstance(error, SpecllamaError) else EngineError(f"decoding failed: {error}")
        for r in self.running:
            self.send(protocol.Failed(problem.to_dict(), r.id))
        self.running.clear()

    def shut_down(self) -> None:
        """See EngineCore."""
        self.loaded.profile.flush()
        if self.loaded.draft is not None and self.loaded.draft.translation is not None:
            store_answers(self.loaded)
        if self.memory is not None:
            self.memory.close(_MEMORY_SECONDS)
        if self.persister is not None and not self.busy:
            self.persister.close()


# Notes on a chat template that does not fit its model.


_ANSWER = "specllama"
_MARKER = re.compile(r"<[^<>\s]{1,60}>")


def template_notes(model: LlamaModel, template: IsolatedTemplate) -> list[Note]:
    """That the model lacks the tokens with which the template ends an answer: it then has none to write
    there, and goes on with the next message itself.
    """
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER}]
    ending = ""
    with contextlib.suppress(SpecllamaError):  # a template that takes no such messages
        parts = template.render(messages, add_generation_prompt=False)
        ending = "".join(part.text for part in parts).rpartition(_ANSWER)[2]
    markers = _MARKER.findall(ending)
    if not markers or any(len(model.tokenize(marker, False, True)) == 1 for marker in markers):
        return []
    reverse = option("stop", f"'{markers[0]}'")
    return [
        Note(
            f"the chat template ends answers with {markers[0]}, no token of this model: they may not "
            f"end by themselves; use the model's own template, or {reverse}"
        )
    ]


_CORPUS_SECONDS = 20.0  # at most, for reading a corpus at the start
_OFFLOAD_SHARE = 0.25  # of the free memory that one offloaded idle cache may occupy
_CACHE_SHARE = 0.25  # of what is free after the load, for all prefix states


def _engine(loaded: Loaded) -> Engine:
    settings, cache = loaded.settings, loaded.settings.cache_ram
    engine = Engine(
        loaded.context,
        loaded.policy(),
        end_ids=loaded.model.end_ids,
        suppressed=loaded.model.suppressed,
        clock=running_time,
        exact=settings.exact,
        room=lambda size: not settings.rpc and size < _OFFLOAD_SHARE * available_memory(),
        cache_budget=cache if cache != AUTO else _CACHE_SHARE * available_memory(),
        max_partials=settings.ctx_checkpoints,
        draft_tree=settings.draft_tree or 0,
    )
    caching = (d for d in loaded.drafters if isinstance(d, CachingDrafter))
    engine.scheduler.store.drafter = next(caching, None)
    return engine


def _prefix_persister(loaded: Loaded, store: PrefixStore, send: protocol.Send) -> PrefixPersister | None:
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
        say=_notice(send),
    )
    return PrefixPersister(
        store, open_disk, directory.exists(), s.kept_seconds, running_time, loaded.draft_prefix_key
    )


def _notice(send: protocol.Send) -> Callable[[str], None]:
    return lambda text: send(protocol.Notice(text))


_ENCODING_SECONDS = 0.1  # between looks at time limits while an image is encoded
_LEAST_SECONDS = 30.0  # of work that a step may take


class EngineCore:
    """An engine before and after its pair is loaded.

    send: sends a message to the front, in any thread. post: makes the thread that calls `handle` and `step`
    call a function; large requests are then prepared in another thread. None: everything happens in this one.
    loaded_engine: None before a Load. busy_since: running_time at the start of the current work, None without
    any or during a load.
    """

    def __init__(
        self,
        send: protocol.Send,
        store: Store | None = None,
        post: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self.send, self.store = send, store if store is not None else Store()
        self._post = post
        self.loaded_engine: LoadedEngine | EmbeddingEngine | None = None
        self.busy_since: float | None = None
        self._thread = threading.current_thread()  # which calls `handle` and `step`
        self._metered: tuple[float, WorkMeter] | None = None  # the work of that start

    @property
    def loaded(self) -> Loaded | None:
        return self.loaded_engine.loaded if self.loaded_engine is not None else None

    @property
    def engine(self) -> Engine | None:
        return self.loaded_engine.engine if self.loaded_engine is not None else None

    def handle(self, message: protocol.Message, size: int = 0) -> None:
        """Handle a message from the front. size: its bytes. Errors are sent as Failed, not raised."""
        with refusing(self.send, message):
            if not isinstance(message, protocol.Load):
                with self._working():
                    self._handle(message, size)
                return
            log.verbose = message.verbose
            if self.loaded_engine is not None:
                raise EngineError("this engine process has loaded its models already")
            # Without `_working`: a load reports its progress, and has no time limit.
            if loads_embedder(message):
                self.loaded_engine = EmbeddingEngine(message, self.send)
            else:
                self.loaded_engine = LoadedEngine(message, self.send, self.store, self._post)
            self.send(self.loaded_engine.ready)

    def _handle(self, message: protocol.Message, size: int) -> None:
        if isinstance(message, tune_messages.Inspect):
            self.send(tune_messages.Inspected(inspect_build()))
        elif self.loaded_engine is not None:
            self.loaded_engine.handle(message, size)
        elif isinstance(message, tune_messages.Calibrate):
            self.send(tune_messages.Calibrated(None, None, False))
        elif not isinstance(message, (protocol.Cancel, protocol.EndReasoning)):
            raise EngineError("no model is loaded")

    def run(self, posted: Callable[[], None]) -> None:
        with self._working():
            posted()

    def step(self) -> None:
        """Send the new tokens of all sequences in one message; idle engines measure for a slice of time."""
        if self.loaded_engine is not None:
            with self._working():
                self.loaded_engine.step()

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        self.busy_since = running_time()
        try:
            yield
        finally:
            self.busy_since = None

    @property
    def busy(self) -> bool:
        return self.loaded_engine is not None and self.loaded_engine.busy

    @property
    def decoding(self) -> bool:
        """Whether `step` has something to decode."""
        return self.loaded_engine is not None and self.loaded_engine.decoding

    @property
    def step_due_in(self) -> float | None:
        """Seconds until `step` has work to do if no message arrives; None for never."""
        return self.loaded_engine.step_due_in if self.loaded_engine is not None else None

    def hang(self) -> tuple[float, float]:
        """How long the current work has run and how long it may, in seconds (WorkMeter.seconds): of this
        thread, or of the preparer's if that is nearer to its end. Called every half second by another thread,
        from whose first call on it counts.
        """
        started = self.busy_since
        if started is None:
            self._metered = None
        elif self._metered is None or self._metered[0] != started:
            self._metered = started, WorkMeter(of_thread(self._thread))
        own = (self._metered[1].seconds if self._metered is not None else 0.0, self.allowed_seconds())
        opened = self.loaded_engine
        other = opened.intake.hang if isinstance(opened, LoadedEngine) else None
        return max(own, other, key=lambda hang: hang[0] / hang[1]) if other is not None else own

    def allowed_seconds(self) -> float:
        """Seconds after which a step counts as hung: 30 s plus ten times its predicted duration."""
        predicted = self.loaded_engine.predicted_seconds if self.loaded_engine is not None else 0.0
        return _LEAST_SECONDS + 10.0 * predicted

    def shut_down(self) -> None:
        """Store what was learnt and the prompts that are worth it, when the front is gone."""
        if self.loaded_engine is not None:
            self.loaded_engine.shut_down()
