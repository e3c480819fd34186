"""Measures the model while the engine is idle, on the cache that the last generation left; and finds out how
the texts of exact requests are decoded here.

Decides when and on which cache; calibrate.py does the measuring, and profile.py knows what is missing.
"""

from __future__ import annotations

from math import inf

from specllama.clock import running_time
from specllama.core.engine import Engine
from specllama.core.exact import CHUNKS, DEFAULT_WIDTH, ExactRows, best_chunk, best_width
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.prefix.store import empty
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Generation, Request
from specllama.errors import Note, UsageError, option
from specllama.llama.library import KERNELS
from specllama.worker.calibrate import CHANGING, TIMED, can_roll_back, seconds_of
from specllama.worker.draft import timed_rows
from specllama.worker.loader import Loaded

IDLE_SECONDS = 1.0  # after the last answer, before measuring starts
SLICE_SECONDS = 0.25  # of measuring at a time, for which a request may have to wait
_EPSILON_SECONDS = 2.0
_LONG_TEXT = 272  # tokens: more than 256, so that llama.cpp's kernels for longer texts are compared too


class IdleMeasurer:
    """Measures and stores what is missing in the profile.

    automatic: measure whenever the engine is idle, without a Calibrate message.
    """

    def __init__(self, loaded: Loaded, engine: Engine, automatic: bool) -> None:
        self._loaded, self._engine = loaded, engine
        self._automatic = automatic and loaded.settings.calibrate
        self._ids: list[int] = []  # of the last generation, whose cache is in slot _slot
        self._slot = 0
        self._ended_at = running_time()
        self._more = False  # whether something is missing that can be measured on that cache

    def generation_ended(self, g: Generation) -> bool:
        """Measure on the cache of this generation from now on. Returns whether measurements are missing."""
        self._ids, self._slot, self._ended_at = g.history[: g.n_past], g.seq_id, running_time()
        n_past = g.n_past if g.seq_id >= 0 else 0
        self._more = bool(self._loaded.profile.unmeasured(self._loaded.context, n_past))
        return self._more

    @property
    def due_in(self) -> float | None:
        """Seconds until the next slice of measuring if no request arrives; None for never."""
        if not self._automatic or not self._more:
            return None
        return max(0.0, self._ended_at + IDLE_SECONDS - running_time())

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
        engine, slots = self._engine, len(self._engine.slots)
        engine.decoder.max_rows, engine.epsilon = self._loaded.profile.row_limit(slots)

    def notes(self) -> list[Note]:
        """A note for the user if drafts are shorter than the requested length."""
        max_rows, draft_max = self._engine.decoder.max_rows, self._loaded.settings.draft_max
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


# How the texts of exact requests are decoded here: by single rows where those of batches are bit-equal, else
# by width (core/exact.py). What is not known is found out and stored, so that a later process does the same.


_CURVE_SECONDS = 2.0  # of timing widths, once for a model


class ExactMode:
    """Sets `Engine.exact_rows`. notes: for the user; empty before `decide`. decided: whether it was called.

    Raises UsageError at construction for a width that does not fit a decode.
    """

    def __init__(self, loaded: Loaded, engine: Engine, idle: IdleMeasurer) -> None:
        self._loaded, self._engine, self._idle = loaded, engine, idle
        self.decided, self.notes = False, list[Note]()
        given, most = loaded.settings.exact_width, loaded.widest
        if given is not None and given > most:
            problem = f"must be at most {most} rows, not {given}: decodes of this model have no more here"
            raise UsageError(problem, option="exact_width")

    def hold_widths(self) -> None:
        """Give all texts one width, each its own, where a change of it costs something."""
        loaded = self._loaded
        if loaded.holds_widths:
            self._engine.text_chunk = self._chunk()

    def _chunk(self) -> int:
        """Rows of a decode of a prompt: as stored, else by what they take, which is stored then."""
        loaded, context = self._loaded, self._loaded.context
        stored = loaded.profile.exact_chunk
        if stored is not None:
            return min(stored, context.n_batch)
        for slot in self._engine.slots:
            empty(context, slot)
        seconds = inf
        n = min(CHUNKS[-1], context.n_batch, context.n_ctx)
        for _ in range(2):
            seconds = seconds_of(context, timed_rows(context, n, 0), running_time) / n
        return loaded.profile.agree_on_exact_chunk(best_chunk(seconds, context.n_batch))

    def decide(self) -> None:
        """Decide once, while the engine is idle."""
        if self.decided:
            return
        self.decided = True
        self._idle.measure_epsilon()
        given = self._loaded.settings.exact_width
        if given is None and self._by_single_rows():
            return
        rows = self._rows(given)
        self._engine.exact_rows = rows
        notes = _notes(rows, len(self._engine.slots), self._loaded, given is not None)
        self.notes = [Note(note) for note in notes]

    def _by_single_rows(self) -> bool:
        """Whether single rows are bit-equal to those of batches after any text. Comparisons after some texts
        do not show that: llama.cpp chooses its own kernels by the number of cells in use, so specllama's must
        compute everything.
        """
        loaded = self._loaded
        on_gpu, flash = loaded.plan.target.n_gpu_layers, loaded.settings.target.flash_attn != "off"
        if not KERNELS.level or on_gpu or not flash:
            return False
        limit, epsilon = loaded.profile.row_limit(len(self._engine.slots))
        return limit is not None and epsilon == 0

    def _rows(self, given: int | None) -> ExactRows:
        """The rows of decodes: as given, as stored, or the best measured ones. A value stored with other
        batch sizes is kept; decodes then have as many of those rows as fit. One that was stored long ago is
        measured again, and kept unless another one is clearly better.
        """
        loaded, most = self._loaded, self._loaded.widest
        profile, context = loaded.profile, loaded.context
        stored = profile.exact_rows
        if stored is not None:
            stored = ExactRows(min(stored.width, most), min(stored.chunk, context.n_batch))
        if given is not None:
            known = self._chunk() if profile.change_seconds and profile.keep else profile.exact_chunk
            return ExactRows(given, min(known or best_chunk(inf, context.n_batch), context.n_batch))
        if stored is not None and (profile.exact_rows_are_sure or not profile.keep):
            return stored
        narrow = min(context.n_batch, loaded.settings.target.n_ubatch) < max(TIMED)
        if narrow or not profile.keep:  # nothing is stored that other runs could not repeat
            return stored or ExactRows(min(DEFAULT_WIDTH, most), best_chunk(inf, context.n_batch))
        before = profile.exact_rows
        width = best_width(self._curve(most), most, DEFAULT_WIDTH if before is None else before.width)
        chunk, row_seconds = profile.exact_chunk, self._engine.scheduler.chunk_size.row_seconds
        if chunk is None:
            chunk = best_chunk(inf if row_seconds is None else row_seconds, context.n_batch)
        held = before.width if before is not None else DEFAULT_WIDTH
        return profile.agree_on_exact_rows(ExactRows(width or min(held, most), chunk), before)

    def _curve(self, most: int) -> CostCurve:
        """The seconds of steady decodes of up to `most` rows, in an empty cache, as far as there is time: the
        shortest of several, one of each width in turn.
        """
        context, curve, began = self._loaded.context, CostCurve(), running_time()
        for slot in self._engine.slots:
            empty(context, slot)
        n_before = CHANGING if self._loaded.profile.change_seconds != 0 else 0
        for n in [n for n in TIMED if n <= most] * curve.config.min_samples:
            for left in range(n_before, -1, -1):
                if running_time() - began > _CURVE_SECONDS:
                    return curve
                seconds = seconds_of(context, timed_rows(context, n, n), running_time)
                if not left:
                    curve.observe(n, seconds)
        return curve


def _notes(rows: ExactRows, n_slots: int, loaded: Loaded, given: bool) -> list[str]:
    notes = []
    if rows.width == 1 and given:
        notes.append(f"{option('exact_width', 1)}: every decode has one row, so nothing is drafted")
    elif rows.width == 1:
        why = "" if loaded.context.can_pad else ", as this model's memory cannot remove further rows again"
        notes.append(f"{option('exact')} decodes row by row here{why}: nothing is drafted")
    else:
        why = "" if given else ", since single rows and batches may round differently here"
        notes.append(
            f"{option('exact')}: every decode has {rows.width} rows{why}; "
            f"{option('exact_width', rows.width)} gives the same texts on machines of this kind"
        )
    if n_slots > 1:
        notes.append(f"{option('exact')}: texts are written one after another")
    return notes
