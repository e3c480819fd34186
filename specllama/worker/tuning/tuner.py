"""Measures everything that `tune` reports: t(n), threads, epsilon, and the predicted gain of each draft.

Runs in steps of the engine core, so that the process stays responsive. Sends its progress (Tuning), each
measurement as soon as it is complete (TuneMeasurement), and the end (Tuned).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from specllama.client import protocol
from specllama.client.tune_messages import Tune, TuneAgenda, Tuned, TuneMeasurement, TunePart, Tuning
from specllama.clock import running_time
from specllama.config.load import ModelSettings
from specllama.core.engine import Engine
from specllama.core.interfaces import DecodeError, NoRoomError
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.prefix.store import empty
from specllama.errors import ContextLengthError, EngineError, SpecllamaError, option
from specllama.worker import profile
from specllama.worker.loader import Loaded
from specllama.worker.measured_gain import store_tuned
from specllama.worker.profile_data import bucket_of
from specllama.worker.tuning.drafts import STEP_SECONDS, DraftTrial, copy_drafter_factory, may_trim
from specllama.worker.tuning.head_trial import head_of, n_ahead
from specllama.worker.tuning.prompts import (
    PromptSelection,
    TextWriter,
    TuningText,
    compare_seconds,
    select_prompts,
)
from specllama.worker.tuning.target import (
    Clock,
    CurveTimes,
    ThreadTrial,
    TimingPosition,
    affordable_widths,
    curve_of,
    curve_seconds,
    repeated,
    thread_numbers,
    thread_seconds,
)

N_TOKENS = 64  # default length of a text
CURVE_SECONDS, THREAD_SECONDS = 3.0, 2.0
CONTEXT_SECONDS = 10.0  # limit for filling a longer context, to measure a curve there
TEXT_SECONDS = 60.0
_POSITION_IDS, _PROBES = 128, 3
_WIDEST_DECODE = 64  # limit of a step, in t(1)
_PROGRESS_SECONDS = 0.1  # between two progress messages
_ENDED = object()
_DISK = 1e9  # bytes per second when a draft is loaded
_PREFILL_COST = 0.3  # of an id of a text, relative to a step of the draft model


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of tuning. seconds: predicted. run: yields the share that is done."""

    label: str
    seconds: float
    run: Callable[[], Iterator[float]]


def begin(
    order: Tune,
    engine: Engine | None,
    loaded: Loaded,
    ids_of: Callable[[protocol.Generate], list[int]],
    send: Callable[[protocol.Message], None],
) -> Tuner:
    """Start tuning. engine: None if it is busy. Raises EngineError then, and if a draft is loaded."""
    if engine is None or loaded.draft is not None or loaded.head is not None:
        raise EngineError("only an idle engine without a draft can be tuned")
    return Tuner(order, engine, loaded, ids_of, send)


class Tuner:
    """One Tune request in progress. ids_of: tokenises a prompt. trials: of drafts, so far."""

    def __init__(
        self,
        order: Tune,
        engine: Engine,
        loaded: Loaded,
        ids_of: Callable[[protocol.Generate], list[int]],
        send: Callable[[protocol.Message], None],
        clock: Clock = running_time,
    ) -> None:
        self.id, self.order, self.trials = order.id, order, list[DraftTrial]()
        self._engine, self._loaded, self._context = engine, loaded, loaded.context
        self._ids_of, self._send, self._clock = ids_of, send, clock
        self._began, self._last_progress, self._cancelled = clock(), 0.0, False
        self._t1, self._row_seconds, self._costs = 0.0, 0.0, CostCurve()
        self._changing = bool(loaded.profile.change_seconds)
        self._disturbed = False  # whether other programs changed the times so far
        self._work = self._all()

    def cancel(self, id_: int) -> None:
        """End with the next step, if this is the request of that id."""
        self._cancelled |= id_ == self.id

    @property
    def predicted(self) -> float:
        """Seconds that the next step should take at most."""
        trial_seconds = self.trials[-1].predicted if self.trials else 0.0
        return max(_WIDEST_DECODE * self._t1, trial_seconds)

    def step(self) -> bool:
        """Run until the next yield; False once tuning has ended."""
        try:
            if not self._cancelled and next(self._work, _ENDED) is not _ENDED:
                return True
            self._work.close()
            last: protocol.Message = Tuned(self.id, self._clock() - self._began, self._cancelled)
        except (DecodeError, NoRoomError, SpecllamaError) as error:
            last = protocol.Failed(_problem(error).to_dict(), self.id)
        empty(self._context, self._engine.slots[0])
        self._send(last)
        return False

    def _all(self) -> Generator[None, None, None]:
        """All of tuning, in steps."""
        empty(self._context, self._engine.slots[0])
        texts, too_long = [], dict[str, str]()
        for text in self._texts(too_long):
            texts.append(text)
            yield
        if not texts:
            why = next(iter(too_long.values()), "there is none")
            raise ContextLengthError(f"no prompt fits the context: {why}", f"use a larger {option('n_ctx')}")
        position = TimingPosition(self._context, self._position_ids(texts), self._clock, self._changing)
        yield from (None for _ in position.fill())
        self._row_seconds = position.row_seconds
        self._t1 = median(position.time(1) for _ in range(_PROBES))
        yield
        shorten = self.order.n_tokens is None
        n_tokens = self.order.n_tokens or N_TOKENS
        selection = select_prompts(texts, n_tokens, shorten, self._t1, self._row_seconds, TEXT_SECONDS)
        agenda = list(self._agenda(position, selection))
        self._report(
            TuneAgenda(
                seconds=sum(stage.seconds for stage in agenda),
                t1=self._t1,
                n_texts=len(selection.texts),
                n_tokens=selection.n_tokens,
                n_left_out=selection.left_out,
                too_long=too_long,
                replays=self._context.cuts_need_checkpoint,
            )
        )
        yield from self._run_stages(agenda)

    def _texts(self, too_long: dict[str, str]) -> Iterator[TuningText]:
        """The tokenised prompts that fit the context; the others are added to `too_long`."""
        order, numbers = self.order, dict[str, int]()
        for workload, prompt in order.prompts:
            number = numbers[workload] = numbers.get(workload, 0) + 1
            if order.raw:
                request = protocol.Generate(order.id, protocol.TextInput(prompt))
            else:
                messages = [{"role": "user", "content": prompt}]
                chat = protocol.ChatInput(messages, order.variables)
                request = protocol.Generate(order.id, chat)
            text = TuningText(workload, number, self._ids_of(request))
            if len(text.prompt) >= self._context.n_ctx - 1:
                too_long[text.name] = (
                    f"the prompt has {len(text.prompt)} tokens, the context {self._context.n_ctx}"
                )
            else:
                yield text

    def _position_ids(self, texts: Sequence[TuningText], n: int = _POSITION_IDS) -> list[int]:
        ids = [t for text in texts for t in text.prompt]
        return repeated(ids, max(1, min(n, self._context.n_ctx // 2)))

    def _agenda(self, position: TimingPosition, selection: PromptSelection) -> Iterator[Stage]:
        t1, writer = self._t1, TextWriter(self._engine, selection, self._t1, self._clock)
        seconds = curve_seconds(affordable_widths(position, t1)[0], t1, CURVE_SECONDS)
        yield Stage("t(n)", seconds, partial(self._curve, position, CURVE_SECONDS))
        seconds = thread_seconds(thread_numbers(self._context), t1, THREAD_SECONDS)
        yield Stage("threads", seconds, partial(self._threads, position))
        for bucket in profile.POLICY.context_buckets[1:]:
            filling = bucket * self._row_seconds
            if 2 * _WIDEST_DECODE + bucket < self._context.n_ctx and filling < CONTEXT_SECONDS:
                ids = repeated(position.ids, bucket + 1)
                far = TimingPosition(self._context, ids, self._clock, self._changing)
                seconds = filling + curve_seconds(affordable_widths(far, t1)[0], t1, CURVE_SECONDS / 2)
                yield Stage(f"t(n) after {bucket} tokens", seconds, partial(self._long_context_curve, far))
        seconds = selection.seconds + compare_seconds(t1)
        yield Stage("writing texts", seconds, partial(self._write, writer))
        if copy_drafter_factory(self._loaded) is not None:
            yield Stage("copying", 0.5, partial(self._try_draft, -1, None, selection.texts))
        for i, draft in enumerate(self.order.drafts):
            inside = draft.path == self._loaded.settings.target.path
            label = "head of the model" if inside else f"draft {os.path.basename(draft.path)}"
            seconds = self._trial_seconds(draft, selection)
            seconds *= 2 if may_trim(draft, self._loaded.settings.target) else 1
            yield Stage(label, seconds, partial(self._try_draft, i, draft, selection.texts))

    def _trial_seconds(self, draft: ModelSettings, selection: PromptSelection) -> float:
        """Predicted seconds of trying a draft."""
        n_prompt = sum(len(t.prompt) for t in selection.texts)
        n_text = len(selection.texts) * selection.n_tokens
        head = None
        with suppress(SpecllamaError):  # which its trial reports
            head = head_of(draft, self._loaded.settings.target)
        size = head.weight_bytes if head else os.path.getsize(draft.path)
        step = self._t1 * size / max(1, self._loaded.header.file_bytes)
        seconds = size / _DISK + STEP_SECONDS + 0.5
        if head is None:
            return seconds + (n_prompt + n_text) * step * _PREFILL_COST
        again = self._t1 if n_ahead(head) == 1 else self._row_seconds  # the target reads the texts again
        return seconds + n_prompt * self._row_seconds + n_text * (again + step)

    def _run_stages(self, agenda: Sequence[Stage]) -> Iterator[None]:
        total, done = sum(stage.seconds for stage in agenda), 0.0
        for stage in agenda:
            for share in stage.run():
                now, so_far = self._clock(), done + min(1.0, share) * stage.seconds
                if now - self._last_progress >= _PROGRESS_SECONDS:
                    self._last_progress = now
                    self._send(Tuning(self.id, stage.label, so_far / total, total - so_far))
                yield
            done += stage.seconds

    def _report(self, part: TunePart) -> None:
        self._send(TuneMeasurement(self.id, part))

    # Stages

    def _curve(self, position: TimingPosition, seconds: float) -> Iterator[float]:
        curve = CurveTimes(position, self._loaded.profile, self._t1, self.order.ignore_load)
        try:
            yield from curve.run(seconds, self._context.n_threads)
        finally:
            self._disturbed |= curve.disturbed
            self._report(curve.report)
        if bucket_of(len(position.ids), profile.POLICY) == 0:
            self._costs = curve_of(curve.times)

    def _long_context_curve(self, position: TimingPosition) -> Iterator[float]:
        for share in position.fill():
            yield share / 2
        for share in self._curve(position, CURVE_SECONDS / 2):
            yield (1 + share) / 2

    def _threads(self, position: TimingPosition) -> Iterator[float]:
        tried = ThreadTrial(position, self._context)
        try:
            yield from tried.run(THREAD_SECONDS)
        finally:
            self._disturbed |= tried.disturbed and not self.order.ignore_load
            self._report(replace(tried.report, disturbed=self._disturbed))

    def _write(self, writer: TextWriter) -> Iterator[float]:
        empty(self._context, self._engine.slots[0])
        try:
            yield from writer.run()
        finally:
            self._loaded.profile.store_comparison(writer.calibration)
            self._report(writer.epsilon)
            self._report(writer.report)

    def _try_draft(
        self, index: int, draft: ModelSettings | None, texts: Sequence[TuningText]
    ) -> Iterator[float]:
        trial = DraftTrial(self._loaded, texts, self._costs, self._clock, stores=not self._disturbed)
        self.trials.append(trial)
        try:
            yield from trial.copying() if draft is None else trial.drafting_and_trimming(draft)
        except (SpecllamaError, DecodeError, NoRoomError) as error:
            trial.report = replace(trial.report, problem=_problem(error).message)
        else:
            if trial.foreign is not None and not self._disturbed:
                copying = [one.report for one in self.trials if one.report.model is None]
                store_tuned(self._loaded, trial.foreign, trial.report, copying)
        finally:
            self._report(replace(trial.report, index=index))


def _problem(error: Exception) -> SpecllamaError:
    return error if isinstance(error, SpecllamaError) else EngineError(f"decoding failed: {error}")
