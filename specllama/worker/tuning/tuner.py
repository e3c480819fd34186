"""Measures everything that `tune` reports: t(n), threads, epsilon, and the predicted gain of each draft.

Runs in steps of the engine core, so that the process stays responsive. Sends its progress (Tuning), each
measurement as soon as it is complete (TuneMeasurement), and the end (Tuned).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

from specllama.client import protocol
from specllama.client.tune_messages import Tune, TuneAgenda, Tuned, TuneMeasurement, Tuning
from specllama.clock import running_time
from specllama.config.load import ModelSettings
from specllama.core.engine import Engine
from specllama.core.interfaces import DecodeError, NoRoomError
from specllama.core.prefix.store import empty
from specllama.errors import ContextLengthError, EngineError, SpecllamaError, option
from specllama.worker import profile
from specllama.worker.loader import Loaded
from specllama.worker.measured_gain import store_tuned
from specllama.worker.tuning.drafts import (
    DraftTrial,
    TuningText,
    copy_drafter_factory,
    select_prompts,
    write_texts,
)
from specllama.worker.tuning.target import (
    TimingPosition,
    TuneRun,
    measure_curve,
    measure_threads,
    repeated,
)

N_TOKENS = 64  # default length of a text
CURVE_SECONDS, THREAD_SECONDS = 3.0, 2.0
CONTEXT_SECONDS = 10.0  # limit for filling a longer context, to measure a curve there
TEXT_SECONDS = 60.0
_POSITION_IDS, _PROBES = 128, 3
_WIDEST_DECODE = 64  # limit of a step, in t(1)
_PROGRESS_SECONDS = 0.1  # between two progress messages
_ENDED = object()
_SLOW_DISK = 1e8  # bytes per second

Stage = tuple[str, Callable[[], Iterator[float]]]  # its label, and what yields the share that is done


class Tuner:
    """One Tune request in progress. engine: None if it is busy. ids_of: tokenises a prompt. trials: of
    drafts, so far. predicted: seconds that the next step should take at most.

    Raises EngineError where the engine is busy, or a draft is loaded.
    """

    def __init__(
        self,
        order: Tune,
        engine: Engine | None,
        loaded: Loaded,
        ids_of: Callable[[protocol.Generate], list[int]],
        send: protocol.Send,
    ) -> None:
        if engine is None or loaded.draft is not None or loaded.head is not None:
            raise EngineError("only an idle engine without a draft can be tuned")
        self.id, self.order, self.trials = order.id, order, list[DraftTrial]()
        self.predicted = 0.0
        self._loaded, self._context, self._slot = loaded, loaded.context, engine.slots[0]
        self._ids_of, self._send = ids_of, send
        self._began, self._last_progress, self._cancelled = running_time(), 0.0, False
        self._run = TuneRun(order, engine, loaded, lambda part: send(TuneMeasurement(order.id, part)))
        self._work = self._all()

    def cancel(self, id_: int) -> None:
        """End with the next step, if this is the request of that id."""
        self._cancelled |= id_ == self.id

    def step(self) -> bool:
        """Run until the next yield; False once tuning has ended."""
        try:
            if not self._cancelled and next(self._work, _ENDED) is not _ENDED:
                return True
            self._work.close()
            last: protocol.Message = Tuned(self.id, running_time() - self._began, self._cancelled)
        except (DecodeError, NoRoomError, SpecllamaError) as error:
            last = protocol.Failed(_problem(error).to_dict(), self.id)
        empty(self._context, self._slot)
        self._send(last)
        return False

    def _all(self) -> Generator[None, None, None]:
        run, order = self._run, self.order
        empty(self._context, self._slot)
        texts, too_long = [], dict[str, str]()
        for text in self._texts(too_long):
            texts.append(text)
            yield
        if not texts:
            why = next(iter(too_long.values()), "there is none")
            raise ContextLengthError(f"no prompt fits the context: {why}", f"use a larger {option('n_ctx')}")
        ids = [t for text in texts for t in text.prompt]
        position = self._position(ids, max(1, min(_POSITION_IDS, self._context.n_ctx // 2)))
        yield from (None for _ in position.fill())
        run.row_seconds = position.row_seconds
        run.t1 = median(position.time(1) for _ in range(_PROBES))
        yield
        n_tokens, shorten = order.n_tokens or N_TOKENS, order.n_tokens is None
        chosen, n_tokens = select_prompts(texts, n_tokens, shorten, run.t1, run.row_seconds, TEXT_SECONDS)
        self.predicted = self._longest_step(chosen, n_tokens)
        run.report(
            TuneAgenda(
                n_texts=len(chosen),
                n_tokens=n_tokens,
                n_left_out=len(texts) - len(chosen),
                too_long=too_long,
                replays=self._context.cuts_need_checkpoint,
            )
        )
        stages = list(self._stages(position, chosen, n_tokens))
        for i, (label, stage) in enumerate(stages):
            for share in stage():
                now = running_time()
                if now - self._last_progress >= _PROGRESS_SECONDS:
                    self._last_progress = now
                    self._send(Tuning(self.id, label, (i + min(1.0, share)) / len(stages)))
                yield

    def _longest_step(self, texts: Sequence[TuningText], n_tokens: int) -> float:
        """Seconds of the longest step: a wide decode, recording a draft on a text, or loading one."""
        longest = max(len(text.prompt) for text in texts) + n_tokens
        sizes = [os.path.getsize(draft.path) for draft in self.order.drafts]
        return max(
            _WIDEST_DECODE * self._run.t1, 2 * longest * self._run.t1, max(sizes, default=0) / _SLOW_DISK
        )

    def _texts(self, too_long: dict[str, str]) -> Iterator[TuningText]:
        """The tokenised prompts that fit the context; the others are added to `too_long`."""
        order, numbers = self.order, dict[str, int]()
        for workload, prompt in order.prompts:
            number = numbers[workload] = numbers.get(workload, 0) + 1
            content: protocol.TextInput | protocol.ChatInput = protocol.TextInput(prompt)
            if not order.raw:
                content = protocol.ChatInput([{"role": "user", "content": prompt}], order.variables)
            text = TuningText(workload, number, self._ids_of(protocol.Generate(order.id, content)))
            if len(text.prompt) >= self._context.n_ctx - 1:
                too_long[text.name] = (
                    f"the prompt has {len(text.prompt)} tokens, the context {self._context.n_ctx}"
                )
            else:
                yield text

    def _position(self, ids: Sequence[int], n: int) -> TimingPosition:
        changing = bool(self._loaded.profile.change_seconds)
        return TimingPosition(self._context, repeated(ids, n), running_time, changing)

    def _stages(
        self, position: TimingPosition, texts: Sequence[TuningText], n_tokens: int
    ) -> Iterator[Stage]:
        run = self._run
        yield "t(n)", partial(measure_curve, run, position, CURVE_SECONDS)
        yield "threads", partial(measure_threads, run, position, THREAD_SECONDS)
        for bucket in profile.POLICY.context_buckets[1:]:
            fits = 2 * _WIDEST_DECODE + bucket < self._context.n_ctx
            if fits and bucket * run.row_seconds < CONTEXT_SECONDS:
                far = self._position(position.ids, bucket + 1)
                yield f"t(n) after {bucket} tokens", partial(measure_curve, run, far, CURVE_SECONDS / 2)
        yield "writing texts", partial(write_texts, run, texts, n_tokens)
        if copy_drafter_factory(self._loaded) is not None:
            yield "copying", partial(self._try_draft, -1, None, texts)
        for i, draft in enumerate(self.order.drafts):
            inside = draft.path == self._loaded.settings.target.path
            label = "head of the model" if inside else f"draft {os.path.basename(draft.path)}"
            yield label, partial(self._try_draft, i, draft, texts)

    def _try_draft(
        self, index: int, draft: ModelSettings | None, texts: Sequence[TuningText]
    ) -> Iterator[float]:
        trial = DraftTrial(self._run, texts, index)
        self.trials.append(trial)
        try:
            yield from trial.copying() if draft is None else trial.drafting(draft)
        except (SpecllamaError, DecodeError, NoRoomError) as error:
            trial.report = replace(trial.report, problem=_problem(error).message)
        else:
            if trial.foreign is not None and not self._run.disturbed:
                copying = [one.report for one in self.trials if one.report.model is None]
                store_tuned(self._loaded, trial.foreign, trial.report, copying)
        finally:
            self._run.report(trial.report)


def _problem(error: Exception) -> SpecllamaError:
    return error if isinstance(error, SpecllamaError) else EngineError(f"decoding failed: {error}")
