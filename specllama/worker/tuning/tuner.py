"""Measuring everything now: t(n), threads, epsilon, and what each of several drafts is predicted to gain.

Runs in steps of the engine core, so that the process goes on answering. Reports what it does (Tuning), what
it has measured (TuneMeasurement, one part at a time) and that it has ended (Tuned).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from specllama.client import protocol
from specllama.config.load import ModelSettings
from specllama.core.engine import Engine
from specllama.core.interfaces import DecodeError, NoRoomError
from specllama.core.policy.cost_curve import CostCurve, bucket_of
from specllama.core.scheduler import empty
from specllama.errors import ContextLengthError, EngineError, SpecllamaError, option
from specllama.worker import profile
from specllama.worker.loader import Loaded
from specllama.worker.tuning.drafts import STEP_SECONDS, DraftTrial, drafted_free
from specllama.worker.tuning.prompts import PromptSelection, TuningText, Writing, choose, compare_seconds
from specllama.worker.tuning.target import (
    CurveTimes,
    ThreadsTried,
    affordable,
    curve_seconds,
    thread_numbers,
    thread_seconds,
)
from specllama.worker.tuning.timing import Clock, TimingPosition, curve_of, cycled

N_TOKENS = 64  # of a text, where nobody said
CURVE_SECONDS, THREAD_SECONDS = 3.0, 2.0
CONTEXT_SECONDS = 10.0  # of filling a longer context, for a curve there
TEXT_SECONDS = 60.0
_TRACK_IDS, _PROBES = 128, 3
_WIDEST_DECODE = 64  # t(1), that a step may take
_SAY_SECONDS = 0.1
_ENDED = object()
_DISK, _READ = 1e9, 0.3  # bytes a second of loading; of a step of the draft model, to read an id of a text


@dataclass(frozen=True, slots=True)
class Stage:
    """seconds: predicted. work: yields the share that is done."""

    label: str
    seconds: float
    work: Callable[[], Iterator[float]]


def begin(
    order: protocol.Tune,
    engine: Engine | None,
    loaded: Loaded | None,
    ids_of: Callable[[protocol.Generate], list[int]],
    send: Callable[[protocol.Message], None],
) -> Tuner:
    """Start tuning. engine: None where it is busy. Raises EngineError there, and where a draft is loaded."""
    if engine is None or loaded is None or loaded.draft is not None:
        raise EngineError("only an idle engine without a draft can be tuned")
    return Tuner(order, engine, loaded, ids_of, send)


class Tuner:
    """One Tune at work. ids_of: of a prompt. predicted: seconds that the step at hand should take at most."""

    def __init__(
        self,
        order: protocol.Tune,
        engine: Engine,
        loaded: Loaded,
        ids_of: Callable[[protocol.Generate], list[int]],
        send: Callable[[protocol.Message], None],
        clock: Clock = time.perf_counter,
    ) -> None:
        self.id, self.order, self.trials = order.id, order, list[DraftTrial]()
        self._engine, self._loaded, self._context = engine, loaded, loaded.context
        self._ids_of, self._send, self._clock = ids_of, send, clock
        self._began, self._said, self._cancelled = clock(), 0.0, False
        self._t1, self._row_seconds, self._costs = 0.0, 0.0, CostCurve()
        self._work = self._all()

    def cancel(self, id_: int) -> None:
        """End it with the next step, if it is the one."""
        self._cancelled |= id_ == self.id

    @property
    def predicted(self) -> float:
        here = self.trials[-1].predicted if self.trials else 0.0
        return max(_WIDEST_DECODE * self._t1, here)

    def step(self) -> bool:
        """Go on a little; False once it has ended."""
        try:
            if not self._cancelled and next(self._work, _ENDED) is not _ENDED:
                return True
            self._work.close()
            last: protocol.Message = protocol.Tuned(self.id, self._clock() - self._began, self._cancelled)
        except (DecodeError, NoRoomError, SpecllamaError) as error:
            last = protocol.Failed(_problem(error).to_dict(), self.id)
        empty(self._context, self._engine.slots[0])
        self._send(last)
        return False

    def _all(self) -> Generator[None, None, None]:
        """Everything, in steps."""
        empty(self._context, self._engine.slots[0])
        texts, too_long = [], dict[str, str]()
        for text in self._texts(too_long):
            texts.append(text)
            yield
        if not texts:
            why = next(iter(too_long.values()), "there is none")
            raise ContextLengthError(f"no prompt fits the context: {why}", f"use a larger {option('n_ctx')}")
        track = TimingPosition(self._context, self._track_ids(texts), self._clock)
        yield from (None for _ in track.fill())
        self._row_seconds = track.row_seconds
        self._t1 = median(track.time(1) for _ in range(_PROBES))
        yield
        shorten = self.order.n_tokens is None
        n_tokens = self.order.n_tokens or N_TOKENS
        chosen = choose(texts, n_tokens, shorten, self._t1, self._row_seconds, TEXT_SECONDS)
        agenda = list(self._agenda(track, chosen))
        self._report(
            protocol.TuneAgenda(
                seconds=sum(stage.seconds for stage in agenda),
                t1=self._t1,
                n_texts=len(chosen.texts),
                n_tokens=chosen.n_tokens,
                n_left_out=chosen.left_out,
                too_long=too_long,
                replays=self._context.cuts_need_checkpoint,
            )
        )
        yield from self._run(agenda)

    def _texts(self, too_long: dict[str, str]) -> Iterator[TuningText]:
        """The prompts in ids, those that fit."""
        order, numbers = self.order, dict[str, int]()
        for workload, prompt in order.prompts:
            number = numbers[workload] = numbers.get(workload, 0) + 1
            if order.raw:
                request = protocol.Generate(order.id, prompt=prompt)
            else:
                messages = [{"role": "user", "content": prompt}]
                request = protocol.Generate(order.id, messages=messages, variables=order.variables)
            text = TuningText(workload, number, self._ids_of(request))
            if len(text.prompt) >= self._context.n_ctx - 1:
                too_long[text.name] = (
                    f"the prompt has {len(text.prompt)} tokens, the context {self._context.n_ctx}"
                )
            else:
                yield text

    def _track_ids(self, texts: Sequence[TuningText], n: int = _TRACK_IDS) -> list[int]:
        ids = [t for text in texts for t in text.prompt]
        return cycled(ids, max(1, min(n, self._context.n_ctx // 2)))

    def _agenda(self, track: TimingPosition, chosen: PromptSelection) -> Iterator[Stage]:
        t1, writing = self._t1, Writing(self._engine, chosen, self._t1, self._clock)
        seconds = curve_seconds(affordable(track, t1)[0], t1, CURVE_SECONDS)
        yield Stage("t(n)", seconds, partial(self._curve, track, CURVE_SECONDS))
        seconds = thread_seconds(thread_numbers(self._context), t1, THREAD_SECONDS)
        yield Stage("threads", seconds, partial(self._threads, track))
        for bucket in profile.POLICY.context_buckets[1:]:
            filling = bucket * self._row_seconds
            if 2 * _WIDEST_DECODE + bucket < self._context.n_ctx and filling < CONTEXT_SECONDS:
                far = TimingPosition(self._context, cycled(track.ids, bucket + 1), self._clock)
                seconds = filling + curve_seconds(affordable(far, t1)[0], t1, CURVE_SECONDS / 2)
                yield Stage(f"t(n) behind {bucket} tokens", seconds, partial(self._far, far))
        seconds = chosen.seconds + compare_seconds(t1)
        yield Stage("writing texts", seconds, partial(self._write, writing))
        if drafted_free(self._loaded) is not None:
            yield Stage("copying", 0.5, partial(self._try, -1, None, chosen.texts))
        n_ids = sum(len(t.prompt) + chosen.n_tokens for t in chosen.texts)
        for i, draft in enumerate(self.order.drafts):
            size = os.path.getsize(draft.path)
            step = t1 * size / max(1, self._loaded.header.file_bytes)
            seconds = size / _DISK + STEP_SECONDS + n_ids * step * _READ + 0.5
            name = f"draft {os.path.basename(draft.path)}"
            yield Stage(name, seconds, partial(self._try, i, draft, chosen.texts))

    def _run(self, agenda: Sequence[Stage]) -> Iterator[None]:
        total, done = sum(stage.seconds for stage in agenda), 0.0
        for stage in agenda:
            for share in stage.work():
                now, so_far = self._clock(), done + min(1.0, share) * stage.seconds
                if now - self._said >= _SAY_SECONDS:
                    self._said = now
                    self._send(protocol.Tuning(self.id, stage.label, so_far / total, total - so_far))
                yield
            done += stage.seconds

    def _report(self, found: protocol.TunePart) -> None:
        self._send(protocol.TuneMeasurement(self.id, found))

    # Stages

    def _curve(self, track: TimingPosition, seconds: float) -> Iterator[float]:
        curve = CurveTimes(track, self._loaded.profile, self._t1)
        try:
            yield from curve.work(seconds)
        finally:
            self._report(curve.found)
        if bucket_of(len(track.ids), profile.POLICY) == 0:
            self._costs = curve_of(curve.times)

    def _far(self, track: TimingPosition) -> Iterator[float]:
        for share in track.fill():
            yield share / 2
        for share in self._curve(track, CURVE_SECONDS / 2):
            yield (1 + share) / 2

    def _threads(self, track: TimingPosition) -> Iterator[float]:
        tried = ThreadsTried(track, self._context)
        try:
            yield from tried.work(THREAD_SECONDS)
        finally:
            self._report(tried.found)

    def _write(self, writing: Writing) -> Iterator[float]:
        empty(self._context, self._engine.slots[0])
        try:
            yield from writing.work()
        finally:
            self._loaded.profile.compared(writing.calibration)
            self._report(writing.epsilon)
            self._report(writing.found)

    def _try(self, index: int, draft: ModelSettings | None, texts: Sequence[TuningText]) -> Iterator[float]:
        trial = DraftTrial(self._loaded, texts, self._costs, self._clock)
        self.trials.append(trial)
        try:
            yield from trial.copying() if draft is None else trial.drafting(draft)
        except (SpecllamaError, DecodeError, NoRoomError) as error:
            trial.found = replace(trial.found, problem=_problem(error).message)
        finally:
            self._report(replace(trial.found, index=index))


def _problem(error: Exception) -> SpecllamaError:
    return error if isinstance(error, SpecllamaError) else EngineError(f"decoding failed: {error}")
