"""What an engine without work measures, on the cache that its last generation has left.

Decides when and on which cache; how is calibrate.py's, and what is already known profile.py's.
"""

from __future__ import annotations

from collections.abc import Callable

from specllama.core.engine import Engine
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Generation, Request
from specllama.errors import Note
from specllama.worker.calibrate import goes_back
from specllama.worker.loader import Loaded

IDLE_SECONDS = 1.0  # after the last answer, before the time is used
SLICE_SECONDS = 0.25  # of measuring at once, which a request may have to wait for
_EPSILON_SECONDS = 2.0
_LONG_TEXT = 272  # ids: beyond 256, so that llama.cpp's kernels for longer texts are compared too


class IdleMeasurer:
    """Measures what is not known yet, and stores it. by_itself: without a Calibrate message, whenever there
    is nothing else to do. clock: seconds.
    """

    def __init__(self, loaded: Loaded, engine: Engine, by_itself: bool, clock: Callable[[], float]) -> None:
        self._loaded, self._engine, self._clock = loaded, engine, clock
        self._by_itself = by_itself and loaded.settings.calibrate
        self._ids: list[int] = []  # of the last generation, whose cache is that of slot _slot
        self._slot = 0
        self._ended_at = clock()
        self._more = False  # whether there is something that can be measured there

    def ended(self, g: Generation) -> bool:
        """A generation has ended, and its cache is the one to measure on. Whether there is something to."""
        self._ids, self._slot, self._ended_at = g.history[: g.n_past], g.seq_id, self._clock()
        n_past = g.n_past if g.seq_id >= 0 else 0
        self._more = bool(self._loaded.profile.unmeasured(self._loaded.context, n_past))
        return self._more

    @property
    def due_in(self) -> float | None:
        """Seconds until a slice is to be measured if nothing happens; None for never."""
        if not self._by_itself or not self._more:
            return None
        return max(0.0, self._ended_at + IDLE_SECONDS - self._clock())

    def measure(self, seconds: float = SLICE_SECONDS, with_widths: bool = True) -> bool:
        """Measure for `seconds`; whether there is more. Does nothing where the engine is busy or the cache is
        another one by now. with_widths: False measures t(1) and epsilon only.
        """
        slot, self._more = self._engine.slots[self._slot], False
        if self._engine.busy or slot.owner is not None or slot.saved is not None or slot.ids != self._ids:
            return False
        self._more = self._loaded.profile.measure(self._loaded.context, slot, seconds, with_widths)
        self._ids = slot.ids
        self.apply()
        return self._more

    def apply(self) -> None:
        """Let the engine use what is known about rows by now."""
        engine, slots = self._engine, len(self._engine.slots)
        engine.most_rows, engine.epsilon = self._loaded.profile.rows(slots, engine.exact)

    def notes(self) -> list[Note]:
        """What to say where drafts of the length that was asked for are not used."""
        most, draft_max = self._engine.most_rows, self._loaded.settings.draft_max
        if most is None or draft_max is None or draft_max < most:
            return []
        return [
            Note(
                f"drafts have {most - 1} tokens at most, not {draft_max}: rows of wider decodes are not "
                "known to be bit-equal to single ones, and the text could be another (`specllama tune` "
                "compares up to 63)"
            )
        ]

    def measure_epsilon(self) -> None:
        """Measure epsilon now, on the model's own text, unless it is known: --exact needs it before the first
        answer.
        """
        n = min(_LONG_TEXT, self._loaded.context.n_ctx - 2)
        if not goes_back(self._loaded.context) or self._loaded.profile.covers(n):
            return
        model, engine = self._loaded.model, self._engine
        ids = model.tokenize("def main():\n    print('Hello')\n" * 40, model.adds_bos, False)[:n]
        generation = engine.submit(Request(ids, SamplingParams(temperature=0, max_tokens=1), 0))
        while engine.busy:
            engine.step()
        self.ended(generation)
        self.measure(_EPSILON_SECONDS, with_widths=False)
