"""The texts on which drafts are compared: selects the prompts that fit the time limit, and has the target
complete them.

Batched and single rows are compared on the same texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from specllama.client.tune_messages import RowsComparison, TextCount, WrittenTexts
from specllama.clock import running_time
from specllama.core.prefix.store import empty
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Request
from specllama.worker.calibrate import Calibration, can_roll_back, measure
from specllama.worker.tuning.target import TuneRun

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


@dataclass(frozen=True, slots=True)
class PromptSelection:
    """texts: in the order in which they will be completed. n_tokens: limit per text. left_out: number of
    prompts for which there is no time.
    """

    texts: Sequence[TuningText]
    n_tokens: int
    left_out: int


def select_prompts(
    texts: Sequence[TuningText], n_tokens: int, shorten: bool, t1: float, row_seconds: float, seconds: float
) -> PromptSelection:
    """As many texts as can be completed in `seconds`, taken from the workloads in turn, at least one of each.
    If even those take longer, `shorten` allows fewer tokens per text.

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
    return PromptSelection(selected, n_tokens, len(texts) - len(selected))


def write_texts(run: TuneRun, selection: PromptSelection) -> Iterator[float]:
    """Have the target complete the texts, greedily and without drafts, in steps of one decode, and compare
    batched with single rows on them. Yields the share that is done.
    """
    engine, context, slot = run.engine, run.engine.target, run.engine.slots[0]
    texts, calibration = selection.texts, Calibration()
    params = SamplingParams(temperature=0, max_tokens=selection.n_tokens)
    seconds_left = min(_MAX_COMPARE_SECONDS, max(_MIN_COMPARE_SECONDS, _COMPARED_DECODES * run.t1))
    empty(context, slot)
    try:
        for i, text in enumerate(texts):
            generation = engine.submit(Request(text.prompt, params, 0, speculate=False))
            try:
                while engine.busy:
                    engine.step()
                    yield (i + generation.n_output / selection.n_tokens) / len(texts)
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
        run.report(WrittenTexts({name: TextCount(len(n), sum(n)) for name, n in lengths.items()}))


def _compared(c: Calibration, can: bool) -> RowsComparison:
    """The comparison of batched and single rows, or the reason why there is none."""
    reason = "" if can else "the model's memory cannot be rolled back"
    if not reason and not c.n_rows:
        reason = "no text was long enough"
    return RowsComparison(c.epsilon, c.n_rows, c.reach, c.equal_up_to, c.unlike, reason)
