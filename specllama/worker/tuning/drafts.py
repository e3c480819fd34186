"""Tries one draft, a model or a head: loads it, times its steps, records what it would draft on each text,
replays that, and unloads it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from specllama.client.tune_messages import (
    DraftPrediction,
    MeasuredDraft,
    Trim,
    TrimmedPrediction,
    WorkloadPrediction,
)
from specllama.config.load import ModelSettings
from specllama.config.store import cache_dir, temporary
from specllama.core.interfaces import BatchRow, CachingDrafter, DecodeError, Drafter, NoRoomError
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.posterior import StepCosts
from specllama.core.replay.break_even import break_evens
from specllama.core.replay.forecast import Forecast
from specllama.core.replay.recording import record, record_head, record_steps
from specllama.core.replay.simulator import WRONG, MakeDraft, Trace, TraceBlocks, TraceDrafter, TraceHead
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.sampler import KeyedSampler
from specllama.drafters import DrafterInputs
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.feature_drafter import KEPT_ROWS
from specllama.drafters.foreign import ForeignDrafter, make
from specllama.errors import EngineError, SpecllamaError
from specllama.gguf.header import Header, read_model
from specllama.gguf.parse import TensorInfo, row_bytes
from specllama.gguf.trimmed import is_trimmed
from specllama.heads import read_head
from specllama.models.trim.plan import EMBEDDINGS, OUTPUT
from specllama.pair.head_check import own_head, step_bytes
from specllama.worker.draft import LoadedDraft, LoadedHead, load_draft
from specllama.worker.load_info import model_info
from specllama.worker.loader import Loaded
from specllama.worker.profile_data import pair_key
from specllama.worker.trim.run import trim
from specllama.worker.tuning.head_trial import head_of, n_ahead, try_head
from specllama.worker.tuning.prompts import TuningText
from specllama.worker.tuning.target import Clock, Times, curve_of, points, repeated, time_step, time_steps

# What trimming a draft would gain here: a trimmed copy is written for the trial, tried like any draft, and
# removed again.


LEAST_SHARE = 0.1  # of the bytes of a step in the output matrix, below which trimming gains next to nothing
_HEAD_OUTPUT = ".nextn.shared_head_head.weight"
_NAME = "tune.gguf"
_LEFT_OVER = 24 * 3600.0  # seconds after which a file of another trial is one that a killed process has left


def may_trim(draft: ModelSettings, target: ModelSettings) -> bool:
    """Whether a trimmed copy of a draft, or of the head inside the target if that is its file, is worth a
    trial.
    """
    try:
        return _worth_trying(read_model(draft.path), draft.path == target.path)
    except SpecllamaError:
        return False


def _worth_trying(header: Header, inside: bool) -> bool:
    """Whether enough of what a step of the draft reads is its output matrix. header: of a draft model, of a
    head in a file, or of the model with the head inside.
    """
    head = read_head(header) if inside else None
    if is_trimmed(header) or (inside and (head is None or head.own_file)):
        return False
    output = _output(header)
    if output is None:
        return False
    read = step_bytes(header, head) if head is not None else header.bytes_per_token or header.weight_bytes
    rows = output.n_elements // output.shape[0]
    return bool(rows * row_bytes(output.type, output.shape[0]) >= LEAST_SHARE * read)


def _output(header: Header) -> TensorInfo | None:
    """The output matrix of a draft: that of a head, where it has one of its own."""
    tensors = {t.name: t for t in header.tensors}
    own = next((t for name, t in tensors.items() if name.endswith(_HEAD_OUTPUT)), None)
    return own or tensors.get(OUTPUT) or tensors.get(EMBEDDINGS)


@contextmanager
def trimmed_copy(
    draft: ModelSettings, inside: bool, n_threads: int
) -> Iterator[tuple[ModelSettings, int, int] | None]:
    """(the settings of a trimmed copy of a draft, its tokens, those of the draft), None where that cannot be
    written. inside: of the head inside the model. The copy is removed at the end.
    """
    folder = cache_dir()
    path, is_new = temporary(folder / _NAME), not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()
        _sweep(folder, path.stat().st_mtime)
        request = Trim(draft.path, str(path), str(temporary(path)), inside, verify=False, n_threads=n_threads)
        trimmed = trim(request, lambda _message: None)
    except (SpecllamaError, OSError):
        trimmed = None
    try:
        yield (replace(draft, path=str(path)), trimmed.n_kept, trimmed.n_vocab) if trimmed else None
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            if is_new:
                folder.rmdir()


def _sweep(folder: Path, now: float) -> None:
    """Remove what killed processes have left. now: when the newest file was made."""
    for path in folder.glob(f".*{_NAME}.*.tmp"):
        with contextlib.suppress(OSError):
            if now - path.stat().st_mtime > _LEFT_OVER:
                path.unlink()


LENGTHS = (1, 2, 3, 5, 7, 11, 15)  # draft lengths whose break-even acceptance is reported
STEP_SECONDS = 1.5
_STEP_IDS = 512  # length of the text on which steps are timed
_SLOW_DISK = 1e8  # bytes per second
_REPLAY_SECONDS = 1e-3  # per token, at most
_SHARES = 0.3, 0.6, 0.95  # of the progress: where loading, timing and recording end


def copy_drafter_factory(loaded: Loaded) -> Callable[[], Drafter] | None:
    """The factory of the model-free drafter for replays without a grammar; None if copying is off."""
    return CopyDrafter if any(isinstance(d, CopyDrafter) for d in loaded.drafters) else None


class DraftTrial:
    """The trial of one draft, or of copying alone.

    costs: of the target's decodes. stores: whether times of steps are stored. report: the results so far.
    traces: the recordings, each with its workload. predicted: seconds that the current step should take at
    most.
    """

    def __init__(
        self,
        loaded: Loaded,
        texts: Sequence[TuningText],
        costs: CostCurve,
        clock: Clock,
        stores: bool = True,
    ) -> None:
        self._stores = stores
        self.loaded, self.texts, self.costs, self.clock = loaded, [t for t in texts if t.text], costs, clock
        self.report = MeasuredDraft(-1)
        self.traces: list[tuple[str, Trace]] = []
        self.predicted = 0.0
        self._simulated: MakeDraft = TraceDrafter
        self.foreign: Header | None = None  # of a draft of another vocabulary

    def copying(self) -> Iterator[float]:
        """Replay the texts without a draft model. Yields the share that is done."""
        for text in self.texts:
            n = len(text.text)
            trace = Trace(text.prompt, text.text, [WRONG] * n, [0.0] * n)
            self.traces.append((text.workload, trace))
        yield from self._replay(None)

    def drafting(self, settings: ModelSettings) -> Iterator[float]:
        """Try this draft. Yields the share that is done; raises what loading and decoding raise."""
        loading, stepping, recording = _SHARES
        self.predicted = os.path.getsize(settings.path) / _SLOW_DISK
        yield 0.0
        head = head_of(settings, self.loaded.settings.target)
        draft: LoadedDraft | LoadedHead
        drafter: CachingDrafter
        if head is not None:
            blocks = head.block_size > 0 and head.n_draft_max
            self._simulated = partial(TraceHead, n_kept=KEPT_ROWS)
            if blocks:
                self._simulated = partial(TraceBlocks, n_kept=KEPT_ROWS, n_draft=blocks)
            draft, drafter = try_head(self.loaded, settings, head)
        else:
            loaded, translates = self.loaded, self.loaded.settings.draft_vocab == "auto"
            draft = load_draft(settings, DEFAULT.max_rows, loaded.header, loaded.model, translates)
            self.foreign = draft.header if draft.translation is not None else None
            drafter = self._model_drafter(draft)
        try:
            model = model_info(settings.path, draft.header, draft.settings.n_gpu_layers)
            self.report = replace(
                self.report,
                model=model,
                head=head.label if head else "",
                translated=self.foreign is not None,
            )
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
                step = steps.predict(1, self.costs.predict(1)) + (self.costs.predict(1) if head else 0.0)
                self.predicted = (len(text.prompt) + len(text.text)) * step
                self.traces.append((text.workload, self._record(text, draft, drafter)))
                yield stepping + (i + 1) / len(self.texts) * (recording - stepping)
            if isinstance(drafter, ForeignDrafter):
                steps.curve = curve_of(self._of_proposals(times, drafter.n_steps - n_timed))
        finally:
            draft.close()
        for share in self._replay(steps):
            yield recording + share * (1 - recording)

    def _of_proposals(self, times: Times, n_steps: int) -> Times:
        """The times that proposing a token takes, from those of steps of the draft model, if the tokens of
        the texts took so many of them.
        """
        n = sum(len(text.text) for text in self.texts)
        return {width: [n_steps / max(1, n) * t for t in samples] for width, samples in times.items()}

    def drafting_and_trimming(self, settings: ModelSettings) -> Iterator[float]:
        """Try this draft, then a trimmed copy where that may gain something; as `drafting`."""
        parts = 2 if may_trim(settings, self.loaded.settings.target) else 1
        yield from (share / parts for share in self.drafting(settings))
        if parts > 1:
            yield from ((1 + share) / 2 for share in self._trimming(settings))

    def _trimming(self, settings: ModelSettings) -> Iterator[float]:
        """Try a trimmed copy of a draft that was tried. Yields the share that is done; one that cannot be
        trimmed is left out, and one whose tokens are translated.
        """
        if self.foreign is not None:
            return
        self.predicted = 3 * os.path.getsize(settings.path) / _SLOW_DISK
        yield 0.0
        inside = settings.path == self.loaded.settings.target.path
        with trimmed_copy(settings, inside, self.loaded.context.n_threads) as copy:
            if copy is None:
                return
            trial = DraftTrial(self.loaded, self.texts, self.costs, self.clock, stores=False)
            with suppress(SpecllamaError, DecodeError, NoRoomError):
                for share in trial.drafting(copy[0]):
                    self.predicted = trial.predicted
                    yield share
            measured = trial.report
        if measured.step is not None and measured.forecast is not None:
            self.report = replace(
                self.report, trimmed=TrimmedPrediction(copy[1], copy[2], measured.step, measured.forecast)
            )

    def _model_drafter(self, draft: LoadedDraft) -> CachingDrafter:
        model = self.loaded.model
        made = make(DrafterInputs(model.n_vocab, model.end_ids, draft.context, translation=draft.translation))
        assert made is not None
        return made

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
        return timed(drafter, ids, DEFAULT.min_samples, STEP_SECONDS, sampler, self.clock, times)

    def _record(self, text: TuningText, draft: LoadedDraft | LoadedHead, drafter: CachingDrafter) -> Trace:
        if self.foreign is not None:
            return record_steps(text.prompt, text.text, drafter, self.loaded.model.n_vocab)
        if isinstance(draft, LoadedDraft):
            return record(text.prompt, text.text, draft.context)
        target, ahead = self.loaded.context, n_ahead(draft.head)
        return record_head(text.prompt, text.text, target, drafter, n_ahead=ahead)

    def _store(
        self, draft: LoadedDraft | LoadedHead, drafter: Drafter, times: Times, steps: StepCosts
    ) -> None:
        """Store the times of steps, unless other programs disturbed them, under the keys that runs with this
        pair read, with the target's own head next to a draft model and without it.
        """
        drafters = [*self.loaded.drafters, drafter]
        pairs = [pair_key(draft.key, drafters)]
        own, _ = own_head(self.loaded.header)
        if own is not None and isinstance(draft, LoadedDraft):
            pairs.append(pair_key(draft.key, drafters, own.head))
        for pair in pairs if self._stores else ():
            self.loaded.profile.store_steps(pair, drafter.name, steps.curve)
        step = steps.predict(1, self.costs.predict(1))
        self.report = replace(self.report, points=points(times), step=step)

    def _replay(self, steps: StepCosts | None) -> Iterator[float]:
        """Predict the speed-up by replaying text by text. steps: None without a draft model."""
        forecast = Forecast(self.costs, steps, copy_drafter_factory(self.loaded), self._simulated)
        step = 0.0 if steps is None else steps.predict(1, self.costs.predict(1))
        self.report = replace(self.report, break_even=break_evens(self.costs, step, LENGTHS))
        for i, (workload, trace) in enumerate(self.traces):
            self.predicted = len(trace.text) * _REPLAY_SECONDS
            forecast.add(workload, trace)
            yield (i + 1) / len(self.traces)
        self.report = replace(self.report, forecast=_prediction(forecast))


def _prediction(forecast: Forecast) -> DraftPrediction:
    figures = forecast.to_dict()
    workloads = {name: WorkloadPrediction(**part) for name, part in figures.pop("workloads").items()}
    return DraftPrediction(**figures, workloads=workloads)
