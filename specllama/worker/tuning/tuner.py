"""Measures everything that `tune` reports: t(n), threads, epsilon, and the predicted gain of each draft.

Runs in steps of the engine core, so that the process stays responsive. Sends its progress (Tuning), each
measurement as soon as it is complete (TuneMeasurement), and the end (Tuned). A draft, a model or a head, is
loaded, its steps are timed, what it would draft on each text is recorded and replayed, and it is unloaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from statistics import median

from specllama import wire
from specllama.client import protocol, tune_messages
from specllama.clock import running_time
from specllama.config.load import ModelSettings
from specllama.core.engine import Engine
from specllama.core.interfaces import BatchRow, CachingDrafter, DecodeError, Drafter, NoRoomError
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.posterior import StepCosts
from specllama.core.prefix.store import empty
from specllama.core.replay.break_even import break_evens
from specllama.core.replay.forecast import Forecast, record, record_steps
from specllama.core.replay.simulator import WRONG, MakeDraft, Trace, TraceBlocks, TraceDrafter, TraceHead
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.sampler import KeyedSampler
from specllama.core.sequence import Request
from specllama.drafters import DrafterInputs
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.feature_drafter import KEPT_ROWS, BlockDrafter
from specllama.drafters.foreign import ForeignDrafter
from specllama.drafters.foreign import make as make_model
from specllama.drafters.head import HeadDrafter
from specllama.drafters.head import make as make_head
from specllama.errors import ContextLengthError, EngineError, SpecllamaError, option
from specllama.gguf.header import Header, read_model
from specllama.heads import file_head, read_head
from specllama.heads.check import check_draft
from specllama.heads.kind import HeadInfo
from specllama.models.memory.available import available_memory
from specllama.models.memory.plan import plan_head
from specllama.pair.check import own_head
from specllama.worker import profile
from specllama.worker.calibrate import Calibration, can_roll_back, measure
from specllama.worker.draft import LoadedDraft, LoadedHead, gpus, load_draft, open_head
from specllama.worker.drafting_gain import store_tuned
from specllama.worker.load_info import model_info
from specllama.worker.loader import Loaded
from specllama.worker.prompts import Prompts
from specllama.worker.tuning.target import (
    Times,
    TimingPosition,
    TuneRun,
    curve_of,
    measure_curve,
    measure_threads,
    points,
    repeated,
    time_step,
    time_steps,
)

# The texts on which drafts are compared.


MIN_TOKENS = 16  # per text
_COMPARED_DECODES = 100  # decodes of one row whose time comparing rows may take in all
_MIN_COMPARE_SECONDS, _MAX_COMPARE_SECONDS = 2.0, 30.0
_DECODES_AT_ONCE = 60  # the same for one text


@dataclass(slots=True)
class TuningText:
    """A prompt and the target's completion, in ids. number: of the prompt in its workload, from 1."""

    workload: str
    number: int
    prompt: list[int] = field(repr=False)
    text: list[int] = field(default_factory=list, repr=False)

    @property
    def name(self) -> str:
        return f"{self.workload} {self.number}"


def select_prompts(
    texts: Sequence[TuningText], n_tokens: int, shorten: bool, t1: float, row_seconds: float, seconds: float
) -> tuple[list[TuningText], int]:
    """(as many texts as can be completed in `seconds`, taken from the workloads in turn, at least one of
    each; the most tokens of each). If even those take longer, `shorten` allows fewer tokens per text.

    t1: seconds per generated token; row_seconds: seconds per prompt token.
    """
    by_workload: dict[str, list[TuningText]] = {}
    for text in texts:
        by_workload.setdefault(text.workload, []).append(text)
    rounds = [[t for t in one if t is not None] for one in zip_longest(*by_workload.values())]
    first = rounds[0] if rounds else []
    prefill_seconds = sum(len(t.prompt) for t in first) * row_seconds
    if shorten and first:
        fitting = int((seconds - prefill_seconds) / (len(first) * t1)) if t1 else n_tokens
        n_tokens = min(n_tokens, max(MIN_TOKENS, fitting))
    selected: list[TuningText] = []
    total = 0.0
    for text in (t for one in rounds for t in one):
        cost = len(text.prompt) * row_seconds + n_tokens * t1
        if len(selected) >= len(first) and total + cost > seconds:
            break
        selected.append(text)
        total += cost
    return selected, n_tokens


def write_texts(run: TuneRun, texts: Sequence[TuningText], n_tokens: int) -> Iterator[float]:
    """Have the target complete the texts, greedily and without drafts, in steps of one decode, and compare
    batched with single rows on them. Yields the share that is done.
    """
    engine, context, slot = run.engine, run.engine.target, run.engine.slots[0]
    calibration, params = Calibration(), SamplingParams(temperature=0, max_tokens=n_tokens)
    seconds_left = min(_MAX_COMPARE_SECONDS, max(_MIN_COMPARE_SECONDS, _COMPARED_DECODES * run.t1))
    empty(context, slot)
    try:
        for i, text in enumerate(texts):
            generation = engine.submit(Request(text.prompt, params, 0, speculate=False))
            try:
                while engine.busy:
                    engine.step()
                    yield (i + generation.n_output / n_tokens) / len(texts)
            finally:
                engine.cancel(generation)
            text.text = generation.output
            if seconds_left > 0:
                began, most = running_time(), max(_MIN_COMPARE_SECONDS / 8, _DECODES_AT_ONCE * run.t1)
                measure(context, slot.seq_id, slot.ids, min(seconds_left, most), running_time, calibration)
                slot.ids = slot.ids[: context.n_past(slot.seq_id)]
                seconds_left -= running_time() - began
            yield (i + 1) / len(texts)
    finally:
        run.loaded.profile.store_comparison(calibration)
        run.report(_compared(calibration, can_roll_back(context)))
        lengths: dict[str, list[int]] = {}
        for text in (t for t in texts if t.text):
            lengths.setdefault(text.workload, []).append(len(text.text))
        run.report(
            tune_messages.WrittenTexts(
                {name: tune_messages.TextCount(len(n), sum(n)) for name, n in lengths.items()}
            )
        )


def _compared(c: Calibration, can: bool) -> tune_messages.RowsComparison:
    """The comparison of batched and single rows, or the reason why there is none."""
    reason = "" if can else "the model's memory cannot be rolled back"
    if not reason and not c.n_rows:
        reason = "no text was long enough"
    return tune_messages.RowsComparison(c.epsilon, c.n_rows, c.reach, c.equal_up_to, c.unlike, reason)


# The trial of one draft.


LENGTHS = (1, 2, 3, 5, 7, 11, 15)  # draft lengths whose break-even acceptance is reported
STEP_SECONDS = 1.5
_STEP_IDS = 512  # length of the text on which steps are timed
_SHARES = 0.3, 0.6, 0.95  # of the progress: where loading, timing and recording end
_N_AHEAD = 32  # tokens of a text that the target evaluates together, for a head that does not read its cache


def head_of(draft: ModelSettings, target: ModelSettings) -> HeadInfo | None:
    """The head in a draft's file, or inside the target if that is the file; None for a draft model.

    Raises GGUFError for an incomplete head, EngineError for a target without one.
    """
    header = read_model(draft.path)
    if draft.path != target.path:
        check_draft(header)
        return file_head(header)
    if (head := read_head(header)) is None:
        raise EngineError("the model has no head that can be used")
    return head


def try_head(
    loaded: Loaded, draft: ModelSettings, head: HeadInfo
) -> tuple[LoadedHead, HeadDrafter | BlockDrafter]:
    """The head, opened over the target, and a drafter that drafts with it in sequence 0.

    Raises EngineError where it cannot be used; IntegrityError, ResourceError, UsageError.
    """
    settings, plan = replace(loaded.settings, draft=draft), loaded.plan
    if head.own_file:
        plan = plan_head(settings, loaded.header, head, plan, available_memory(), gpus())
    elif plan.draft is None:
        raise EngineError("the model was loaded without its head")
    opened, problem = open_head(settings, head, loaded.header, loaded.context, plan, lambda _message: None)
    if opened is None:
        raise EngineError(problem)
    drafter = make_head(DrafterInputs(loaded.model.n_vocab, loaded.model.end_ids, head=opened.drafting))
    assert drafter is not None
    opened.features.reader = drafter
    return opened, drafter


def copy_drafter_factory(loaded: Loaded) -> Callable[[], Drafter] | None:
    """The factory of the model-free drafter for replays without a grammar; None if copying is off."""
    return CopyDrafter if any(isinstance(d, CopyDrafter) for d in loaded.drafters) else None


class DraftTrial:
    """The trial of one draft, or of copying alone.

    report: the results so far. traces: the recordings, each with its workload. foreign: the header of a draft
    of another vocabulary.
    """

    def __init__(self, run: TuneRun, texts: Sequence[TuningText], index: int = -1) -> None:
        self.run, self.texts, self.loaded = run, [t for t in texts if t.text], run.loaded
        self.report = tune_messages.MeasuredDraft(index)
        self.traces: list[tuple[str, Trace]] = []
        self.foreign: Header | None = None
        self._simulated: MakeDraft = TraceDrafter

    def copying(self) -> Iterator[float]:
        """Replay the texts without a draft model. Yields the share that is done."""
        for text in self.texts:
            n = len(text.text)
            self.traces.append((text.workload, Trace(text.prompt, text.text, [WRONG] * n, [0.0] * n)))
        yield from self._replay(None)

    def drafting(self, settings: ModelSettings) -> Iterator[float]:
        """Try this draft. Yields the share that is done; raises what loading and decoding raise."""
        loading, stepping, recording = _SHARES
        yield 0.0
        head = head_of(settings, self.loaded.settings.target)
        draft, drafter = self._opened(settings, head)
        try:
            model = model_info(settings.path, draft.header, draft.settings.n_gpu_layers)
            label, translated = head.label if head else "", self.foreign is not None
            self.report = replace(self.report, model=model, head=label, translated=translated)
            yield loading
            times: Times = {}
            for share in self._steps(draft, drafter, times):
                yield loading + share * (stepping - loading)
            steps = StepCosts()
            steps.curve = curve_of(times)
            if not steps.curve.times:
                raise EngineError("its steps could not be timed: no text has an id in its vocabulary")
            self._store(draft, drafter, times, steps)
            n_timed = drafter.n_steps if isinstance(drafter, ForeignDrafter) else 0
            for i, text in enumerate(self.texts):
                self.traces.append((text.workload, self._record(text, draft, drafter)))
                yield stepping + (i + 1) / len(self.texts) * (recording - stepping)
            if isinstance(drafter, ForeignDrafter):
                n = (drafter.n_steps - n_timed) / max(1, sum(len(text.text) for text in self.texts))
                proposing = {width: [n * t for t in samples] for width, samples in times.items()}
                steps.curve = curve_of(proposing)  # a token, which takes n steps
        finally:
            draft.close()
        for share in self._replay(steps):
            yield recording + share * (1 - recording)

    def _opened(
        self, settings: ModelSettings, head: HeadInfo | None
    ) -> tuple[LoadedDraft | LoadedHead, CachingDrafter]:
        loaded, model = self.loaded, self.loaded.model
        if head is not None:
            blocks = head.block_size > 0 and head.n_draft_max
            self._simulated = partial(TraceHead, n_kept=KEPT_ROWS)
            if blocks:
                self._simulated = partial(TraceBlocks, n_kept=KEPT_ROWS, n_draft=blocks)
            return try_head(loaded, settings, head)
        translates = loaded.settings.draft_vocab == "auto"
        draft = load_draft(settings, DEFAULT.max_rows, loaded.header, model, translates)
        self.foreign = draft.header if draft.translation is not None else None
        inputs = DrafterInputs(model.n_vocab, model.end_ids, draft.context, translation=draft.translation)
        drafter = make_model(inputs)
        assert drafter is not None
        return draft, drafter

    def _steps(
        self, draft: LoadedDraft | LoadedHead, drafter: CachingDrafter, times: Times
    ) -> Iterator[float]:
        model, target = self.loaded.model, self.loaded.context
        n_vocab, n_ids = min(model.n_vocab, draft.context.n_vocab), min(_STEP_IDS, draft.context.n_ctx)
        if isinstance(draft, LoadedHead):
            n_ids = min(n_ids, KEPT_ROWS, target.n_ctx, target.n_batch)
        known = [t for text in self.texts for t in (*text.prompt, *text.text) if t < n_vocab]
        ids = repeated(known, n_ids)
        if isinstance(draft, LoadedHead) and ids:  # it reads the target's features of the text
            target.truncate(0, 0)
            target.decode([BatchRow(t, i, 0, i == len(ids) - 2) for i, t in enumerate(ids[:-1])])
        sampler = KeyedSampler(SamplingParams(temperature=0), 0, model.n_vocab)
        timed = time_step if isinstance(draft, LoadedHead) and draft.head.kind.shares_cache else time_steps
        return timed(drafter, ids, DEFAULT.min_samples, STEP_SECONDS, sampler, running_time, times)

    def _record(self, text: TuningText, draft: LoadedDraft | LoadedHead, drafter: CachingDrafter) -> Trace:
        if isinstance(draft, LoadedDraft) and self.foreign is None:
            return record(text.prompt, text.text, draft.context)
        target, ahead = None, 0
        if isinstance(draft, LoadedHead):
            target, ahead = self.loaded.context, 1 if draft.head.kind.shares_cache else _N_AHEAD
        n_vocab = self.loaded.model.n_vocab
        return record_steps(text.prompt, text.text, drafter, n_vocab, target=target, n_ahead=ahead)

    def _store(
        self, draft: LoadedDraft | LoadedHead, drafter: Drafter, times: Times, steps: StepCosts
    ) -> None:
        """Store the times of steps, unless other programs disturbed them, under the keys that runs with this
        pair read, with the target's own head next to a draft model and without it.
        """
        drafters = [*self.loaded.drafters, drafter]
        pairs = [profile.pair_key(draft.key, drafters)]
        own, _ = own_head(self.loaded.header)
        if own is not None and isinstance(draft, LoadedDraft):
            pairs.append(profile.pair_key(draft.key, drafters, own.head))
        for pair in pairs if not self.run.disturbed else ():
            self.loaded.profile.store_steps(pair, drafter.name, steps.curve)
        step = steps.predict(1, self.run.costs.predict(1))
        self.report = replace(self.report, points=points(times), step=step)

    def _replay(self, steps: StepCosts | None) -> Iterator[float]:
        """Predict the speed-up by replaying text by text. steps: None without a draft model."""
        costs = self.run.costs
        forecast = Forecast(costs, steps, copy_drafter_factory(self.loaded), self._simulated)
        step = 0.0 if steps is None else steps.predict(1, costs.predict(1))
        self.report = replace(self.report, break_even=break_evens(costs, step, LENGTHS))
        for i, (workload, trace) in enumerate(self.traces):
            forecast.add(workload, trace)
            yield (i + 1) / len(self.traces)
        predicted = wire.from_plain(tune_messages.DraftPrediction, forecast.to_dict())
        self.report = replace(self.report, forecast=predicted)


# All that is measured, in stages.


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
    """One Tune request in progress. engine: None if it is busy. trials: of drafts, so far. predicted: seconds
    that the next step should take at most.

    Raises EngineError where the engine is busy, or a draft is loaded.
    """

    def __init__(
        self,
        order: tune_messages.Tune,
        engine: Engine | None,
        loaded: Loaded,
        prompts: Prompts,
        send: protocol.Send,
    ) -> None:
        if engine is None or loaded.draft is not None or loaded.head is not None:
            raise EngineError("only an idle engine without a draft can be tuned")
        self.id, self.order, self.trials = order.id, order, list[DraftTrial]()
        self.predicted = 0.0
        self._loaded, self._context, self._slot = loaded, loaded.context, engine.slots[0]
        self._prompts, self._send = prompts, send
        self._began, self._last_progress, self._cancelled = running_time(), 0.0, False
        self._run = TuneRun(
            order, engine, loaded, lambda part: send(tune_messages.TuneMeasurement(order.id, part))
        )
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
            last: protocol.Message = tune_messages.Tuned(
                self.id, running_time() - self._began, self._cancelled
            )
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
            tune_messages.TuneAgenda(
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
                    self._send(tune_messages.Tuning(self.id, label, (i + min(1.0, share)) / len(stages)))
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
            prompt_ids = self._prompts.prompt(protocol.Generate(order.id, content)).ids
            text = TuningText(workload, number, prompt_ids)
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
        for bucket in profile.BUCKETS[1:]:
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
