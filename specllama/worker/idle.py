"""What an engine without work measures, on the cache that its last generation has left."""

from __future__ import annotations

from typing import Any

from specllama.core.engine import Engine
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Generation, Request
from specllama.worker.calibrate import goes_back
from specllama.worker.loader import Loaded

_EPSILON_SECONDS = 2.0
_BEHIND = 272  # ids: where llama.cpp's kernels for short texts and those for longer ones are both in use


class Idle:
    """Measures what is not known yet, and stores it."""

    def __init__(self, loaded: Loaded, engine: Engine) -> None:
        self._loaded, self._engine = loaded, engine
        self._ids: list[int] = []  # of the last generation, whose cache is slot _slot's
        self._slot = 0

    def ended(self, g: Generation) -> None:
        """Its cache is the one to measure on."""
        self._ids, self._slot = g.history[: g.n_past], g.seq_id

    def measure(self, seconds: float, with_widths: bool = True) -> dict[str, Any]:
        """See Learning.measure; nothing where the engine is busy or the cache is another by now."""
        slot = self._engine.slots[self._slot]
        if self._engine.busy or slot.owner is not None or slot.saved is not None or slot.ids != self._ids:
            return {}
        found = self._loaded.learning.measure(self._loaded.context, slot, seconds, with_widths)
        self._ids = slot.ids
        self.use()
        return found

    def use(self) -> None:
        """The engine goes by what is known of rows by now."""
        engine, slots = self._engine, len(self._engine.slots)
        engine.most_rows, engine.epsilon = self._loaded.learning.rows(slots, engine.exact)

    def notes(self, draft_max: int | None) -> list[str]:
        """What has to be said where drafts of the length that was asked for are not used."""
        most = self._engine.most_rows
        if most is None or draft_max is None or draft_max < most:
            return []
        return [
            f"drafts have {most - 1} tokens at most, not {draft_max}: rows of wider decodes are not known to"
            " be bit-equal to single ones, and the text could be another (`specllama tune` compares up to 63)"
        ]

    @property
    def misses_epsilon(self) -> bool:
        """Whether --exact has something to measure."""
        return goes_back(self._loaded.context) and not self._loaded.learning.covers(self._behind)

    @property
    def _behind(self) -> int:
        return min(_BEHIND, self._loaded.context.n_ctx - 2)

    def measure_epsilon(self) -> None:
        """--exact needs it before the first answer: measured on the model's own text, stored."""
        model, engine = self._loaded.model, self._engine
        ids = model.tokenize("def main():\n    print('Hello')\n" * 40, model.adds_bos, False)[: self._behind]
        generation = engine.submit(Request(ids, SamplingParams(temperature=0, max_tokens=1), 0))
        while engine.busy:
            engine.step()
        self.ended(generation)
        self.measure(_EPSILON_SECONDS, with_widths=False)
