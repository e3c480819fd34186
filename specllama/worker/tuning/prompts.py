"""The texts on which drafts are compared: selects the prompts that fit the time limit, and has the target
complete them.

Batched and single rows are compared on the same texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from specllama.client.tune_messages import RowsComparison, TextCount, WrittenTexts
from specllama.core.engine import Engine
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Request
from specllama.worker.calibrate import Calibration, can_roll_back, measure

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
    prompts for which there is no time. seconds: predicted.
    """

    texts: Sequence[TuningText]
    n_tokens: int
    left_out: int
    seconds: float


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
    return PromptSelection(selected, n_tokens, len(texts) - len(selected), total)


class TextWriter:
    """Has the target complete the texts, greedily and without drafts, and compares batched with single rows
    on them.

    calibration: the comparison so far.
    """

    def __init__(
        self, engine: Engine, selection: PromptSelection, t1: float, clock: Callable[[], float]
    ) -> None:
        self.engine, self.selection, self.t1, self.clock = engine, selection, t1, clock
        self.calibration = Calibration()
        self._seconds_left = compare_seconds(t1)

    def run(self) -> Iterator[float]:
        """Generate in steps of one decode. Yields the share that is done."""
        engine, texts = self.engine, self.selection.texts
        params = SamplingParams(temperature=0, max_tokens=self.selection.n_tokens)
        for i, text in enumerate(texts):
            generation = engine.submit(Request(text.prompt, params, 0, speculate=False))
            try:
                while engine.busy:
                    engine.step()
                    yield (i + generation.n_output / self.selection.n_tokens) / len(texts)
            finally:
                engine.cancel(generation)
            text.text = generation.output
            self._compare()
            yield (i + 1) / len(texts)

    def _compare(self) -> None:
        """Compare batched and single rows after the text in the cache, for a part of the time left."""
        target, slot = self.engine.target, self.engine.slots[0]
        if self._seconds_left <= 0:
            return
        began = self.clock()
        seconds = min(self._seconds_left, max(_MIN_COMPARE_SECONDS / 8, _DECODES_AT_ONCE * self.t1))
        measure(target, slot.seq_id, slot.ids, seconds, self.clock, self.calibration)
        slot.ids = slot.ids[: target.n_past(slot.seq_id)]
        self._seconds_left -= self.clock() - began

    @property
    def report(self) -> WrittenTexts:
        """The number of completed texts and their tokens, by workload."""
        lengths: dict[str, list[int]] = {}
        for text in (t for t in self.selection.texts if t.text):
            lengths.setdefault(text.workload, []).append(len(text.text))
        return WrittenTexts({name: TextCount(len(n), sum(n)) for name, n in lengths.items()})

    @property
    def epsilon(self) -> RowsComparison:
        """The comparison of batched and single rows, or the reason why there is none."""
        reason = "" if can_roll_back(self.engine.target) else "the model's memory cannot be rolled back"
        if not reason and not self.calibration.n_rows:
            reason = "no text was long enough"
        c = self.calibration
        return RowsComparison(c.epsilon, c.n_rows, c.reach, c.equal_up_to, c.unlike, reason)


def compare_seconds(t1: float) -> float:
    """Seconds that comparing rows may take in all. t1: seconds per token."""
    return min(_MAX_COMPARE_SECONDS, max(_MIN_COMPARE_SECONDS, _COMPARED_DECODES * t1))
