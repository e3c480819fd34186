"""Measures the model while the engine is idle, on the cache that the last generation left.

Decides when and on which cache; calibrate.py does the measuring, and profile.py knows what is missing.
"""

from __future__ import annotations

from collections.abc import Callable

from specllama.core.engine import Engine
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Generation, Request
from specllama.errors import Note
from specllama.worker.calibrate import can_roll_back
from specllama.worker.loader import Loaded

IDLE_SECONDS = 1.0  # after the last answer, before measuring starts
SLICE_SECONDS = 0.25  # of measuring at a time, for which a request may have to wait
_EPSILON_SECONDS = 2.0
_LONG_TEXT = 272  # tokens: more than 256, so that llama.cpp's kernels for longer texts are compared too


class IdleMeasurer:
    """Measures and stores what is missing in the profile.

    automatic: measure whenever the engine is idle, without a Calibrate message. clock: seconds.
    """

    def __init__(self, loaded: Loaded, engine: Engine, automatic: bool, clock: Callable[[], float]) -> None:
        self._loaded, self._engine, self._clock = loaded, engine, clock
        self._automatic = automatic and loaded.settings.calibrate
        self._ids: list[int] = []  # of the last generation, whose cache is in slot _slot
        self._slot = 0
        self._ended_at = clock()
        self._more = False  # whether something is missing that can be measured on that cache

    def generation_ended(self, g: Generation) -> bool:
        """Measure on the cache of this generation from now on. Returns whether measurements are missing."""
        self._ids, self._slot, self._ended_at = g.history[: g.n_past], g.seq_id, self._clock()
        n_past = g.n_past if g.seq_id >= 0 else 0
        self._more = bool(self._loaded.profile.unmeasured(self._loaded.context, n_past))
        return self._more

    @property
    def due_in(self) -> float | None:
        """Seconds until the next slice of measuring if no request arrives; None for never."""
        if not self._automatic or not self._more:
            return None
        return max(0.0, self._ended_at + IDLE_SECONDS - self._clock())

    def measure(self, seconds: float = SLICE_SECONDS, with_widths: bool = True) -> bool:
        """Measure for `seconds`. Returns whether more is missing. Does nothing if the engine is busy or the
        cache has changed since. with_widths: False measures t(1) and epsilon only.
        """
        slot, self._more = self._engine.slots[self._slot], False
        if self._engine.busy or slot.owner is not None or slot.ids != self._ids:
            return False
        self._more = self._loaded.profile.measure(self._loaded.context, slot, seconds, with_widths)
        self._ids = slot.ids
        self.apply()
        return self._more

    def apply(self) -> None:
        """Set the engine's row limit and epsilon from the profile."""
        engine, slots = self._engine, len(self._engine.slots)
        engine.max_rows, engine.epsilon = self._loaded.profile.row_limit(slots)

    def notes(self) -> list[Note]:
        """A note for the user if drafts are shorter than the requested length."""
        max_rows, draft_max = self._engine.max_rows, self._loaded.settings.draft_max
        if max_rows is None or draft_max is None or draft_max < max_rows:
            return []
        return [
            Note(
                f"drafts have {max_rows - 1} tokens at most, not {draft_max}: rows of wider decodes are not "
                "known to be bit-equal to single rows, and the text could differ (`specllama tune` "
                "compares up to 63)"
            )
        ]

    def measure_epsilon(self) -> None:
        """Measure epsilon now, on a fixed text, unless it is known. --exact needs it for the first answer."""
        n = min(_LONG_TEXT, self._loaded.context.n_ctx - 2)
        if not can_roll_back(self._loaded.context) or self._loaded.profile.covers(n):
            return
        model, engine = self._loaded.model, self._engine
        ids = model.tokenize("def main():\n    print('Hello')\n" * 40, model.adds_bos, False)[:n]
        generation = engine.submit(Request(ids, SamplingParams(temperature=0, max_tokens=1), 0))
        while engine.busy:
            engine.step()
        self.generation_ended(generation)
        self.measure(_EPSILON_SECONDS, with_widths=False)
