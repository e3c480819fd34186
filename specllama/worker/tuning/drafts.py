"""One draft after the other: loaded, timed, asked what it would say of each text, replayed, and unloaded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from specllama.client import protocol
from specllama.config.load import ModelSettings
from specllama.core.interfaces import Drafter
from specllama.core.policy.break_even import break_evens
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve, StepCosts
from specllama.core.replay.forecast import Forecast
from specllama.core.replay.recording import record
from specllama.core.replay.simulator import WRONG, Trace
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.sampler import KeyedSampler
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.model import ModelDrafter
from specllama.errors import EngineError
from specllama.worker.load_info import model_info
from specllama.worker.loader import Loaded, LoadedDraft, load_draft
from specllama.worker.profile_keys import pair_key
from specllama.worker.tuning.prompts import TuningText
from specllama.worker.tuning.timing import Clock, Times, curve_of, cycled, points, time_steps

LENGTHS = (1, 2, 3, 5, 7, 11, 15)  # of drafts whose break-even is told
STEP_SECONDS = 1.5
_STEP_IDS = 512  # of the text that steps are timed on
_SLOW_DISK, _REPLAY_SECONDS = 1e8, 1e-3  # bytes a second; of a token, at most
_SHARES = 0.3, 0.6, 0.95  # of the whole: where loading, timing and reading the texts end


def drafted_free(loaded: Loaded) -> Callable[[], Drafter] | None:
    """Makes what drafts for nothing here, without a grammar; None where nobody does."""
    return CopyDrafter if any(isinstance(d, CopyDrafter) for d in loaded.drafters) else None


class DraftTrial:
    """One draft, or copying alone. costs: of the target. found: what is known by now, of which `ended` says
    whether it is all; traces: what was recorded, each with its workload.
    """

    def __init__(self, loaded: Loaded, texts: Sequence[TuningText], costs: CostCurve, clock: Clock) -> None:
        self.loaded, self.texts, self.costs, self.clock = loaded, [t for t in texts if t.text], costs, clock
        self.found = protocol.MeasuredDraft(-1)
        self.traces: list[tuple[str, Trace]] = []
        self.predicted = 0.0

    def copying(self) -> Iterator[float]:
        """Without a draft model."""
        for text in self.texts:
            n = len(text.text)
            trace = Trace(text.prompt, text.text, [WRONG] * n, [0.0] * n)
            self.traces.append((text.workload, trace))
        yield from self._replay(None)

    def drafting(self, settings: ModelSettings) -> Iterator[float]:
        """With this draft model. Raises what loading and decoding raise."""
        loading, stepping, recording = _SHARES
        self.predicted = os.path.getsize(settings.path) / _SLOW_DISK
        yield 0.0
        draft = load_draft(settings, DEFAULT.max_rows)
        try:
            model = model_info(settings.path, draft.header, draft.settings.n_gpu_layers)
            self.found = replace(self.found, model=model)
            yield loading
            times: Times = {}
            for share in self._steps(draft, times):
                yield loading + share * (stepping - loading)
            steps = StepCosts()
            steps.curve = curve_of(times)
            if not steps.curve.measured:
                raise EngineError("its steps could not be timed: no text has an id that it knows")
            self._keep(draft, times, steps)
            for i, text in enumerate(self.texts):
                self.predicted = (len(text.prompt) + len(text.text)) * steps.predict(1, self.costs.predict(1))
                trace = record(text.prompt, text.text, draft.context)
                self.traces.append((text.workload, trace))
                yield stepping + (i + 1) / len(self.texts) * (recording - stepping)
        finally:
            draft.close()
        for share in self._replay(steps):
            yield recording + share * (1 - recording)

    def _steps(self, draft: LoadedDraft, times: Times) -> Iterator[float]:
        model = self.loaded.model
        n_vocab = min(model.n_vocab, draft.model.n_vocab)
        ids = [t for text in self.texts for t in (*text.prompt, *text.text) if t < n_vocab]
        drafter = ModelDrafter(draft.context, model.n_vocab, end_ids=model.end_ids)
        chooser = KeyedSampler(SamplingParams(temperature=0), 0, model.n_vocab)
        return time_steps(
            drafter, cycled(ids, _STEP_IDS), DEFAULT.min_samples, STEP_SECONDS, chooser, self.clock, times
        )

    def _keep(self, draft: LoadedDraft, times: Times, steps: StepCosts) -> None:
        """Store what steps take, as a run with this pair would read it."""
        drafters = [*self.loaded.drafters, ModelDrafter(draft.context, self.loaded.model.n_vocab)]
        pair = pair_key(draft.key, drafters)
        self.loaded.profile.stepped(pair, steps.curve)
        step = steps.predict(1, self.costs.predict(1))
        self.found = replace(self.found, points=points(times), step=step)

    def _replay(self, steps: StepCosts | None) -> Iterator[float]:
        """Replay text by text."""
        forecast = Forecast(self.costs, steps, drafted_free(self.loaded))
        step = 0.0 if steps is None else steps.predict(1, self.costs.predict(1))
        self.found = replace(self.found, break_even=break_evens(self.costs, step, LENGTHS))
        for i, (workload, trace) in enumerate(self.traces):
            self.predicted = len(trace.text) * _REPLAY_SECONDS
            forecast.add(workload, trace)
            yield (i + 1) / len(self.traces)
        self.found = replace(self.found, forecast=_prediction(forecast))


def _prediction(forecast: Forecast) -> protocol.DraftPrediction:
    found = forecast.to_dict()
    workloads = {name: protocol.WorkloadPrediction(**part) for name, part in found.pop("workloads").items()}
    return protocol.DraftPrediction(**found, workloads=workloads)
