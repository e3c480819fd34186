"""An engine with its pair: accepts requests, steps, measures while it is idle, and sends what comes of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from specllama.client import protocol
from specllama.client.tune_messages import Tune
from specllama.clock import running_time
from specllama.core.engine import Engine
from specllama.core.gain import MIN_PLAIN_ROUNDS
from specllama.core.interfaces import DecodeError
from specllama.core.stats import RunStats
from specllama.errors import EngineError, SpecllamaError, UsageError
from specllama.worker.accepted import Send, refusing
from specllama.worker.exact import ExactMode
from specllama.worker.idle import IdleMeasurer
from specllama.worker.intake import RequestIntake
from specllama.worker.kept_prefixes import KeptPrefixes
from specllama.worker.loader import Loaded
from specllama.worker.measured_gain import store_answers
from specllama.worker.no_draft_reason import drafting_verdict
from specllama.worker.output import SequenceOutput
from specllama.worker.pieces import spelt
from specllama.worker.queries import slots
from specllama.worker.slot_actions import SlotActions
from specllama.worker.tuning.tuner import Tuner, begin

_PREFILL_REPORT_SECONDS = 0.5  # between two reports of a prefill


@dataclass(slots=True, kw_only=True)
class LoadedEngine:
    """A loaded pair and its engine.

    running: the generations; the intake adds to them. kept: prompts on disk, None where none are kept. tuner:
    while the engine is tuned. held: requests, with the bytes of their messages, that wait until it is decided
    how to be exact.
    """

    loaded: Loaded
    engine: Engine
    running: list[SequenceOutput]
    intake: RequestIntake
    idle: IdleMeasurer
    exact: ExactMode
    slot_actions: SlotActions
    send: Send
    kept: KeptPrefixes | None = None
    tuner: Tuner | None = None
    held: list[tuple[protocol.Generate, int]] = field(default_factory=list)
    _step_seconds: float = 0.0
    _reported: float = 0.0

    def handle(self, message: protocol.Message, size: int = 0) -> None:
        """Handle a message from the front. size: its bytes. Raises SpecllamaError."""
        if isinstance(message, protocol.Generate):
            self._generate(message, size)
        elif isinstance(message, protocol.Cancel):
            self._cancel(message.id)
        elif isinstance(message, protocol.Configure):
            self._configure(message)
        elif isinstance(message, protocol.Question):
            self._answer(message, size)
        elif isinstance(message, Tune):
            self.tuner = begin(message, None if self.busy else self.engine, self.loaded, self.ids, self.send)
        elif isinstance(message, protocol.Calibrate):
            more, profile = self.idle.measure(message.seconds), self.loaded.profile
            self.send(protocol.Calibrated(profile.t1, profile.epsilon, more))
        else:
            raise EngineError(f"the engine process does not accept {type(message).__name__}")

    @property
    def busy(self) -> bool:
        return self.decoding or self.intake.busy

    @property
    def decoding(self) -> bool:
        """Whether `step` has something to decode."""
        return bool(self.running or self.held) or self.tuner is not None

    @property
    def step_due_in(self) -> float | None:
        """Seconds until `step` has work to do if no message arrives; None for never."""
        if self.decoding:
            return 0.0
        if self.intake.busy:
            return None
        due = [self.idle.due_in, self.kept.due_in if self.kept is not None else None]
        return min((seconds for seconds in due if seconds is not None), default=None)

    @property
    def predicted_seconds(self) -> float:
        """Of a step, by the last ones; of the first one, by the model's size."""
        predicted = self._step_seconds or self.loaded.slow_step_seconds
        return max(predicted, self.tuner.predicted if self.tuner is not None else 0.0)

    def step(self) -> None:
        """See EngineCore."""
        if self.held and not self.running and not self.intake.busy and self.tuner is None:
            self._release_held()
        if not self.decoding:
            self._work_while_idle()
            return
        started = running_time()
        try:
            if self.tuner is not None:
                self.tuner = self.tuner if self.tuner.step() else None
            else:
                self._decode()
        except (DecodeError, SpecllamaError) as error:
            self._fail(error)
        finally:
            self._step_seconds = max(running_time() - started, 0.9 * self._step_seconds)
        for notice in self.engine.notices:
            self.send(protocol.Notice(notice))
        self.engine.notices.clear()
        self._report()
        if self.kept is not None and self.kept.overdue and self.tuner is None:
            self.kept.keep()
        waiting, self.slot_actions.waiting = self.slot_actions.waiting, []
        for action in waiting:
            with refusing(self.send, action):
                self.handle(action)

    def _decode(self) -> None:
        self.loaded.profile.use_curve_at(sum(len(g.history) for g in self.engine.active))
        self.engine.step()

    def _work_while_idle(self) -> None:
        """Copy prompts to be written to the disk; measure for one slice of time."""
        if self.kept is not None and self.kept.due_in == 0.0:
            self.kept.keep()
        else:
            self.idle.work()

    def _configure(self, message: protocol.Configure) -> None:
        """Switch to another policy over the same drafters; the planner keeps what it has learnt."""
        if self.engine.busy or self.intake.busy:
            raise EngineError("only a loaded engine that is idle can be configured")
        self.loaded.settings = replace(
            self.loaded.settings,
            draft_max=message.draft_max,
            draft_min=message.draft_min,
            draft_p_min=message.draft_p_min,
        )
        self.engine.policy = self.loaded.policy(message.priced)
        self.send(protocol.Configured())

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

    def _release_held(self) -> None:
        """Decide how exact requests are decoded, and accept those that waited for it."""
        held, self.held = self.held, []
        self.exact.decide()
        for message, size in held:
            with refusing(self.send, message):
                self.handle(message, size)

    def _answer(self, question: protocol.Question, size: int) -> None:
        if isinstance(question, protocol.GetSlots):
            costs = self.loaded.profile.decode_seconds
            self.send(slots(question.id, self.engine, self.running, costs))
        elif isinstance(question, protocol.SlotAction):
            if not self.slot_actions.act(question):
                self.slot_actions.waiting.append(question)
        else:
            self.intake.answer(question, size)

    def ids(self, message: protocol.Generate) -> list[int]:
        """The ids of a request's prompt. Raises UsageError, TemplateError, ContextLengthError."""
        return self.intake.prompts.prompt(message).ids

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
            elif not r.progress and not g.prefilled and now - self._reported > _PREFILL_REPORT_SECONDS:
                self._reported = now
                self.send(protocol.Prefilled(r.id, g.n_past, g.n_prompt, g.stats.n_reused))
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
        if g.problem:
            error = UsageError(f"the grammar is too complex: {g.problem}")
            self.send(protocol.Failed(error.to_dict(), r.id))
            return
        text, runs = r.writer.finish_runs()
        scope = g.request.history_scope
        if self.loaded.history is not None and scope is not None:
            self.loaded.history.keep(scope, g.history, g.n_prompt)
        if r.messages is not None:
            self.intake.prompts.turns.keep(r.id, r.messages, g.history, g.n_prompt, r.prefix)
        self.send(self._done(r, text, runs, unmeasured))
        if self.kept is not None:
            self.kept.generation_ended()
        self.loaded.profile.save()

    def _done(
        self, r: SequenceOutput, text: str, runs: list[tuple[int, str]], unmeasured: bool
    ) -> protocol.Done:
        """The last message of a generation. text, runs: the output that was held back until now."""
        g, profile = r.generation, self.loaded.profile
        verdict = drafting_verdict(self.loaded.off_reason, self.engine.policy, g)
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
            prompt=spelt(self.loaded.model, g.request.prompt) if r.show_prompt else "",
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
        store_answers(self.loaded)
        if self.kept is not None and not self.busy:
            self.kept.close()
