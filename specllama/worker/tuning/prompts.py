"""The texts that drafts are judged by: which prompts are answered within the time there is; writing them.

What the target writes is also what batched and single rows are compared on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from specllama.client import protocol
from specllama.core.engine import Engine
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Request
from specllama.worker.calibrate import Calibration, goes_back, measure

LEAST_TOKENS = 16  # of a text
_COMPARED, _LEAST_SECONDS, _MOST_SECONDS = 100, 2.0, 30.0  # decodes of one row, for epsilon; seconds of it
_AT_ONCE = 60  # decodes of one row


@dataclass(slots=True)
class TuningText:
    """A prompt and what the target writes behind it, in ids. number: of the prompt in its workload."""

    workload: str
    number: int
    prompt: list[int] = field(repr=False)
    text: list[int] = field(default_factory=list, repr=False)

    @property
    def name(self) -> str:
        return f"{self.workload} {self.number}"


@dataclass(frozen=True, slots=True)
class PromptSelection:
    """texts: in the order in which they are to be written. n_tokens: most of each. left_out: how many prompts
    were, for want of time. seconds: predicted.
    """

    texts: Sequence[TuningText]
    n_tokens: int
    left_out: int
    seconds: float


def choose(
    texts: Sequence[TuningText], n_tokens: int, shorten: bool, t1: float, row_seconds: float, seconds: float
) -> PromptSelection:
    """As many of the texts as can be written in `seconds`, workloads in turn, one of each at least; where
    those take longer, and `shorten`, fewer tokens of each. t1: seconds of a token; row_seconds: of one of a
    prompt.
    """
    by_workload: dict[str, list[TuningText]] = {}
    for text in texts:
        by_workload.setdefault(text.workload, []).append(text)
    turns = [[t for t in turn if t is not None] for turn in zip_longest(*by_workload.values())]
    first = turns[0] if turns else []
    reading = sum(len(t.prompt) for t in first) * row_seconds
    if shorten and first:
        fitting = int((seconds - reading) / (len(first) * t1)) if t1 else n_tokens
        n_tokens = min(n_tokens, max(LEAST_TOKENS, fitting))
    taken: list[TuningText] = []
    spent = 0.0
    for text in (t for turn in turns for t in turn):
        takes = len(text.prompt) * row_seconds + n_tokens * t1
        if len(taken) >= len(first) and spent + takes > seconds:
            break
        taken.append(text)
        spent += takes
    return PromptSelection(taken, n_tokens, len(texts) - len(taken), spent)


class Writing:
    """Has the target write the texts, greedily and without drafts, and compares rows on them.

    calibration: what was compared.
    """

    def __init__(
        self, engine: Engine, chosen: PromptSelection, t1: float, clock: Callable[[], float]
    ) -> None:
        self.engine, self.chosen, self.t1, self.clock = engine, chosen, t1, clock
        self.calibration = Calibration()
        self._left = compare_seconds(t1)

    def work(self) -> Iterator[float]:
        """A token at a time."""
        engine, texts = self.engine, self.chosen.texts
        params = SamplingParams(temperature=0, max_tokens=self.chosen.n_tokens)
        for i, text in enumerate(texts):
            generation = engine.submit(Request(text.prompt, params, 0, speculate=False))
            try:
                while engine.busy:
                    engine.step()
                    yield (i + generation.n_output / self.chosen.n_tokens) / len(texts)
            finally:
                engine.cancel(generation)
            text.text = generation.output
            self._compare()
            yield (i + 1) / len(texts)

    def _compare(self) -> None:
        """Batched and single rows of the text in the cache, for a while."""
        target, slot = self.engine.target, self.engine.slots[0]
        if self._left <= 0:
            return
        began = self.clock()
        seconds = min(self._left, max(_LEAST_SECONDS / 8, _AT_ONCE * self.t1))
        measure(target, slot.seq_id, slot.ids, seconds, self.clock, self.calibration)
        slot.ids = slot.ids[: target.n_past(slot.seq_id)]
        self._left -= self.clock() - began

    @property
    def found(self) -> protocol.WrittenTexts:
        """The texts that were written, counted."""
        texts: dict[str, list[int]] = {}
        for text in (t for t in self.chosen.texts if t.text):
            texts.setdefault(text.workload, []).append(len(text.text))
        return protocol.WrittenTexts({name: protocol.TextCount(len(n), sum(n)) for name, n in texts.items()})

    @property
    def epsilon(self) -> protocol.RowsComparison:
        """The comparison of rows, or why there is none."""
        reason = "" if goes_back(self.engine.target) else "the model's memory cannot go back"
        if not reason and not self.calibration.n_rows:
            reason = "no text was long enough"
        c = self.calibration
        return protocol.RowsComparison(c.epsilon, c.n_rows, c.reach, c.equal_up_to, c.unlike, reason)


def compare_seconds(t1: float) -> float:
    """What comparing rows may take in all."""
    return min(_MOST_SECONDS, max(_LEAST_SECONDS, _COMPARED * t1))
