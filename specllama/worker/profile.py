"""The measurements of a loaded pair and what its planner has learnt, stored from one process to the next.

For each target: t(1), epsilon, and cost curves by context length. For each pair: acceptance, and the times of
steps of each draft model and head. A thread writes the file as a whole; several processes may write it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specllama import wire
from specllama.config.load import ModelSettings
from specllama.config.store import ENOUGH_ROWS, Store
from specllama.core.exact import CHUNKS, ExactRows
from specllama.core.interfaces import Context, DecodeError, Drafter
from specllama.core.policy.config import DEFAULT, is_number
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.planner import Planner
from specllama.core.policy.posterior import PairState
from specllama.core.prefix.store import Slot
from specllama.drafters import words_of
from specllama.gguf.header import Header, content_of, identity
from specllama.heads.kind import HeadInfo
from specllama.json_types import JsonObject
from specllama.llama.context import LlamaContext
from specllama.llama.library import compiled, devices
from specllama.models.memory.available import machine_key
from specllama.stored_figures import can_take, is_fresh, measured_at
from specllama.worker import calibrate

_FIGURES = {  # of a comparison, by store key, with their ranges
    "t1": (1e-9, 1e6),
    "epsilon": (0, 1e6),
    "n_rows": (1, 1e12),
    "alike": (0, 1e6),
    "unlike": (2, 1e6),
    "reach": (1, 1e9),
    "exact_width": (1, max(calibrate.TIMED)),
    "exact_chunk": (1, CHUNKS[-1]),
    "change": (0, 10),
}
DATED = COMPARISON, EXACT_ROWS, CHANGE = "comparison", "exact", "change"  # measured again after a while
EXACT = ("exact_width", "exact_chunk")  # of them: how exact texts are decoded by width
KEPT = ("t1", "change", *EXACT)  # of them: those that no comparison of rows gives
BUCKETS = DEFAULT.context_buckets  # of context lengths in ids, by their lower ends: each has a cost curve
_MAX_PAIRS = 8  # kept for a target: those used last


def length_class(n_ids: int) -> int:
    """The class of a text length: 0 up to 256 tokens, 1 up to 512, 2 up to 1,024, ... Rows are compared once
    per class: llama.cpp pads the cells in use to a multiple of 256 and chooses kernels by their number.
    """
    return max(0, (n_ids - 1).bit_length() - 8)


def figures_of(data: Mapping[str, Any]) -> dict[str, float]:
    """The well-formed figures of a comparison; without the length of the text, or where widths are said to be
    both bit-equal and not, only those that it does not give.
    """
    figures = {name: data[name] for name, limits in _FIGURES.items() if is_number(data.get(name), *limits)}
    whole = "reach" in figures and figures.get("alike", 0) < figures.get("unlike", math.inf)
    return figures if whole else {name: x for name, x in figures.items() if name in KEPT}


def plain_times(data: Mapping[str, Any]) -> dict[int, float]:
    """Seconds of plain decodes by range of context lengths."""
    stored = wire.stored(dict[str, object], data.get("plain"), {})
    seconds = ((b, stored.get(str(b))) for b in BUCKETS)
    return {b: float(x) for b, x in seconds if is_number(x, *_FIGURES["t1"])}


def possible_times(times: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """(rows, seconds) without decodes that took too long next to others: more rows take as long as fewer at
    least, and in proportion at most. Other programs make them longer, nothing makes them shorter.
    """
    return [(n, t) for n, t in times if all(t <= s or can_take(n, t, m, s) for m, s in times)]


def merged(before: Mapping[str, float], calibration: calibrate.Calibration) -> dict[str, float]:
    """The worse figures of two comparisons: the earlier one, on texts of other lengths, and a new one."""
    now = {name: x for name, x in calibration.to_dict().items() if x is not None}
    if not calibration.n_rows or "epsilon" not in before:
        return {**before, **now} if calibration.n_rows else dict(before)
    unlike = [x["unlike"] for x in (before, now) if "unlike" in x]
    least = min(unlike, default=math.inf)
    equal_up_to = [x["alike"] for x in (before, now) if x.get("alike", math.inf) < least]
    return {
        **{name: x for name, x in now.items() if name == "t1"},
        **before,
        "epsilon": max(before["epsilon"], now["epsilon"]),
        "n_rows": before.get("n_rows", 0) + now["n_rows"],
        "alike": max(equal_up_to, default=0),
        **({"unlike": least} if unlike else {}),
        "reach": max(before["reach"], now["reach"]),
    }


class CostCurves:
    """A curve for each range of context lengths, made when used: attention costs more in longer texts."""

    def __init__(self) -> None:
        self._curves: dict[int, CostCurve] = {}
        self._used: set[int] = set()

    def at(self, n_ids: int) -> CostCurve:
        """The curve for `n_ids` ids in all; a new one starts with the times of the nearest measured one."""
        bucket, buckets = bucket_of(n_ids), BUCKETS
        self._used.add(bucket)
        if bucket not in self._curves:
            measured = [b for b, curve in self._curves.items() if curve.times]
            at = buckets.index(bucket)
            near = min(measured, key=lambda b: (abs(buckets.index(b) - at), b), default=None)
            self._curves[bucket] = CostCurve() if near is None else self._curves[near].as_prior()
        return self._curves[bucket]

    def put(self, n_ids: int, curve: CostCurve) -> None:
        bucket = bucket_of(n_ids)
        self._used.add(bucket)
        self._curves[bucket] = curve

    def to_dict(self, used: bool = False) -> dict[str, dict[str, object]]:
        """Plain data to be stored. used: only the curves used in this process."""
        return {
            str(b): curve.to_dict()
            for b, curve in sorted(self._curves.items())
            if curve.times and (b in self._used or not used)
        }

    @classmethod
    def from_dict(cls, data: object) -> CostCurves:
        """The stored curves; invalid ones are ignored."""
        curves = cls()
        stored = wire.stored(dict[str, object], data, {})
        for bucket in BUCKETS:
            curve = CostCurve.from_dict(stored.get(str(bucket)))
            if curve.times:
                curves._curves[bucket] = curve
        return curves


def bucket_of(n_ids: int) -> int:
    """The lower end of the range of context lengths that contains `n_ids`."""
    return max(b for b in BUCKETS if b <= n_ids)


StoredPair = dict[str, Mapping[str, Any]]
"""The learnt figures of a pair. pair: see `pair_key`. learnt: of `PairState.to_dict`."""


def merged_profiles(ours: JsonObject, data: Mapping[str, Any]) -> JsonObject:
    """A stored profile with this process's values; other entries, of other processes, stay."""
    theirs = [p for p in pairs_of(data) if p["pair"] not in [q["pair"] for q in ours["pairs"]]]
    curves = CostCurves.from_dict(data.get("curves")).to_dict()
    return {
        **figures_of(data),
        **ours,
        "measured": measured_at(data.get("measured"), DATED) | ours["measured"],
        "plain": {str(bucket): seconds for bucket, seconds in plain_times(data).items()} | ours["plain"],
        "curves": curves | ours["curves"],
        "pairs": [*theirs, *ours["pairs"]][-_MAX_PAIRS:],
    }


def pairs_of(data: Mapping[str, Any]) -> list[StoredPair]:
    """The stored pairs that are well-formed."""
    pairs = (wire.stored(StoredPair, pair, {}) for pair in wire.stored(list[object], data.get("pairs"), []))
    return [pair for pair in pairs if pair.keys() >= {"pair", "learnt"}]


RUN_SECONDS = 1.0  # of measuring at a time
_COMPARE_SECONDS = 2.0  # of measuring t(1) and epsilon, once per length class
_WRITE_SECONDS = 5.0  # between two writes
_FASTER_RATE, _SLOWER_RATE = 0.5, 0.05  # weights of an answer in the time of plain decodes, by its direction


class ModelProfile:
    """The stored profile of a pair; a malformed file counts as empty.

    key: of the target's measurements, pair: of those of the draft (`pair_key`). keep: whether
    anything is written. clock: seconds. t1: in seconds, epsilon: in logits, None if not measured yet. reach:
    length in tokens of the longest text after which rows were compared. time_of_day: in seconds, of what is
    dated. kernels: their instruction set, "" for llama.cpp's own, for people; the key has a checksum of them.
    on_device: whether a device computes, where a change of the number of rows may cost something; on
    processors building the graph again is all of it, which no width for all texts is worth.
    """

    def __init__(
        self,
        store: Store,
        key: Mapping[str, Any],
        pair: Mapping[str, Any],
        keep: bool,
        clock: Callable[[], float],
        time_of_day: Callable[[], float] = time.time,
        kernels: str | None = None,
        on_device: bool = True,
    ) -> None:
        self.store, self.key, self.pair, self.keep, self.clock = store, key, pair, keep, clock
        data, self._now, self._kernels = store.read(key), time_of_day, kernels
        self._measured, self._on_device = measured_at(data.get("measured"), DATED), on_device
        self._figures, self._plain = figures_of(data), plain_times(data)
        self._learnt = next((p["learnt"] for p in pairs_of(data) if p["pair"] == pair), None)
        self.curves = CostCurves.from_dict(data.get("curves"))
        self.planner: Planner | None = None
        self._model_free: Planner | None = None
        self._calibration, self._before = calibrate.Calibration(), self._figures
        self._compared, self._compare_left = -1, 0.0  # length class, and the seconds left to compare in it
        self._known = 0  # rows of batches that are not compared again
        self._replaces = self.t1 is not None and self.epsilon is not None and not self._fresh(COMPARISON)
        if self.t1 is not None and self.epsilon is not None and not self._replaces:
            self._compared = length_class(self.reach)
            if "unlike" not in self._figures:
                self._known, self._compare_left = int(self._figures.get("alike", 0)), _COMPARE_SECONDS
        self._disturbed_change: float | None = None  # as a load has seen it next to other programs
        self._disturbed: dict[int, int] = {}  # how often such a load has measured each width
        self._refused = False  # whether the memory refused to be rolled back
        self._changed, self._written = False, -_WRITE_SECONDS
        self._writer: threading.Thread | None = None

    @property
    def t1(self) -> float | None:
        return self._figures.get("t1")

    @property
    def change_seconds(self) -> float | None:
        """Seconds that a change of the number of rows costs, 0 for nothing; None if not measured."""
        return self._figures.get("change", self._disturbed_change) if self._on_device else 0.0

    def _fresh(self, name: str) -> bool:
        return is_fresh(self._measured.get(name), self._now())

    @property
    def change_is_sure(self) -> bool:
        """Whether a change is known to cost nothing, by a measurement not long ago."""
        return not self._on_device or (self.change_seconds == 0 and self._fresh(CHANGE))

    def observe_change(self, seconds: float) -> None:
        self._figures["change"], self._measured[CHANGE] = seconds, self._now()
        self._changed = True

    def observe_disturbed_load(self, before: object, t1: float, change: float | None) -> None:
        """Use what a load has measured next to other programs, which is not stored: the times where there
        were none, else their scale alone, and what a change of the number of rows costs where that is
        unknown. before: the stored curve, None without any. t1: see `observe_load`. change: see
        `observe_change`.
        """
        if before is not None:
            curve = CostCurve.from_dict(before)
            curve.set_scale(1, t1)
            self.curves.put(0, curve)
        else:
            curve = self.curves.at(0)
            self._disturbed = {n: curve.count(n) for n, _ in curve.times}
        self._disturbed_change = change

    def observe_load(self, t1: float) -> None:
        """Correct plain times that an undisturbed load refutes. t1: seconds of a decode of one row."""
        factor = math.exp(DEFAULT.most_off)
        if not t1 / factor <= self._figures.get("t1", t1) <= t1 * factor:
            self._figures["t1"] = t1
        if not t1 / factor <= self._plain.get(0, t1) <= t1 * factor:
            self._plain[0] = t1
        self._plain = {b: seconds for b, seconds in self._plain.items() if seconds >= t1 / factor}

    def plain_t1(self, n_ids: int) -> tuple[float | None, float | None]:
        """(seconds of a plain decode after `n_ids` ids, how many times that one takes now); None where it
        is not measured. The first follows a slower machine slowly, since most often it is busy for a while.
        """
        bucket = bucket_of(n_ids)
        t1 = self._plain.get(bucket) or (self.t1 if bucket == 0 else None)
        curve = self.curves.at(n_ids)
        return t1, curve.predict(1) / t1 if t1 and curve.count(1) else None

    def observe_plain(self, n_ids: int, seconds: float) -> None:
        """Record the seconds of a plain decode after `n_ids` ids, the mean of several in one answer."""
        bucket = bucket_of(n_ids)
        before = self._plain.get(bucket, seconds)
        rate = _FASTER_RATE if seconds < before else _SLOWER_RATE
        self._plain[bucket] = before + rate * (seconds - before)
        self._changed = True

    @property
    def epsilon(self) -> float | None:
        return self._figures.get("epsilon")

    @property
    def reach(self) -> int:
        return int(self._figures.get("reach", 0))

    @property
    def exact_rows(self) -> ExactRows | None:
        """How exact texts are decoded by width, as this process knows it, or as another one has stored it
        meanwhile; None where that was not decided yet.
        """
        width, chunk = (self._agreed(name) for name in EXACT)
        return None if width is None or chunk is None else ExactRows(width, chunk)

    def _agreed(self, name: str) -> int | None:
        if name not in self._figures and (x := figures_of(self.store.read(self.key)).get(name)) is not None:
            self._figures[name] = x
        return int(self._figures[name]) if name in self._figures else None

    @property
    def exact_chunk(self) -> int | None:
        """The rows of a decode of a prompt of a text with one width; None where that was not decided yet."""
        return self._agreed("exact_chunk")

    def agree_on_exact_chunk(self, chunk: int) -> int:
        """As `agree_on_exact_rows`, for the rows of a decode of a prompt alone."""
        with self.store.lock():
            if (stored := self.exact_chunk) is not None:
                return stored
            self._figures["exact_chunk"] = chunk
            self.flush(True)
        return chunk

    @property
    def exact_rows_are_sure(self) -> bool:
        """Whether the number of rows of exact texts need not be measured again."""
        return self._fresh(EXACT_ROWS)

    def agree_on_exact_rows(self, rows: ExactRows, before: ExactRows | None = None) -> ExactRows:
        """Decode exact texts in this way from now on, unless another process was first: all have to use the
        same one. Returns what was agreed on. before: what was stored, and is measured again.
        """
        with self.store.lock():
            if (stored := self.exact_rows) is not None and stored != before:
                return stored
            self._figures |= {"exact_width": rows.width, "exact_chunk": rows.chunk}
            self._measured[EXACT_ROWS] = self._now()
            self.flush(True)
        return rows

    def covers(self, n_ids: int) -> bool:
        """Whether epsilon was measured after a text of this length class, or of a longer one."""
        return self.epsilon is not None and length_class(n_ids) <= length_class(self.reach)

    def row_limit(self, n_slots: int) -> tuple[int | None, float | None]:
        """(the most rows of a decode, None for no limit; epsilon of such decodes, None if not measured).

        If decodes of up to ENOUGH_ROWS rows are bit-equal to single rows, the limit is the widest decode
        known to be; otherwise there is none. Before anything was compared the limit is ENOUGH_ROWS.
        """
        equal_up_to, unlike = int(self._figures.get("alike", 0)), self._figures.get("unlike")
        limit = max(ENOUGH_ROWS, equal_up_to) if unlike is None else equal_up_to
        if limit < max(ENOUGH_ROWS, 2 * n_slots):
            return None, self.epsilon
        return limit, self.epsilon if unlike is None else 0.0

    def planner_of(self, drafters: Sequence[Drafter]) -> Planner:
        """The planner of this pair, made from the stored data by the first call."""
        if self.planner is None:
            self.planner = Planner(drafters, self.clock, self.curves.at(0), self._learnt)
            self.planner.change_seconds = self.change_seconds or 0.0
        return self.planner

    def model_free_planner(self, drafters: Sequence[Drafter]) -> Planner:
        """A planner of these drafters, which are without draft models and heads, that begins with what the
        pair's has learnt. What it learns is not stored.
        """
        if self._model_free is None:
            costs = self.planner.costs if self.planner else self.curves.at(0)
            learnt = self.planner.learnt.to_dict() if self.planner else self._learnt
            self._model_free = Planner(drafters, self.clock, costs, learnt)
            self._model_free.change_seconds = self.change_seconds or 0.0
        return self._model_free

    def use_curve_at(self, n_ids: int) -> None:
        """Let the planners use the cost curve for sequences of `n_ids` ids in all."""
        curve = self.curves.at(n_ids)
        for planner in (self.planner, self._model_free):
            if planner is not None and planner.costs is not curve:
                planner.use_costs(curve)

    def distrust_stored_t2(self) -> None:
        """Measure a decode of two rows again if its time is a stored one: by that time no draft could pay."""
        if self.planner is not None:
            self.planner.costs.forget(2)

    @property
    def decode_seconds(self) -> list[tuple[int, float]]:
        """(rows, seconds of such a decode) of the measured widths at the context length used last, by rows,
        without those that cannot be; empty without a planner.
        """
        return possible_times(self.planner.costs.times) if self.planner is not None else []

    # Measuring

    def unmeasured(self, context: Context, n_ids: int, seconds: float = RUN_SECONDS) -> list[int]:
        """Widths that can be timed after a text of `n_ids` ids; 1 stands for t(1) and epsilon too."""
        if self._refused or not calibrate.can_roll_back(context) or n_ids < 1:
            return []
        widths = (
            calibrate.missing_widths(context, n_ids, self.curves.at(n_ids), seconds) if self.planner else []
        )
        return widths if self._seconds_left(context, n_ids) <= 0 or n_ids < 3 else sorted({1, *widths})

    def _seconds_left(self, context: Context, n_ids: int) -> float:
        """Seconds left to compare rows after a text of `n_ids` ids, in its length class."""
        if length_class(n_ids) > self._compared:
            return _COMPARE_SECONDS
        if self._known:  # wider batches than an earlier process had time for
            most = min(context.n_outputs_max, context.n_batch, context.n_ctx - n_ids)
            width = next((w for w in calibrate.WIDTHS if self._known < w <= most), None)
            if "unlike" in self._figures or width is None:
                return 0.0
            if calibrate.comparing_seconds(width, self._known, self.t1 or 0.0) > _COMPARE_SECONDS / 2:
                return 0.0
        return self._compare_left

    def measure(self, context: Context, slot: Slot, seconds: float, with_widths: bool = True) -> bool:
        """Measure what is missing for `seconds`, on the text in the cache of an idle slot, and store it.

        If the memory refuses to be rolled back, the slot is empty afterwards. Returns whether another call
        could measure more. with_widths: False measures t(1) and epsilon only.
        """
        before = dict(self._figures)
        try:
            n_timed = self._measure(context, slot, seconds, with_widths)
        except DecodeError:
            n_timed, self._refused = 0, True
        n_kept, measured = context.n_past(slot.seq_id), n_timed > 0 or self._figures != before
        slot.ids = slot.ids[:n_kept]
        self.flush(measured)
        return measured and bool(self.unmeasured(context, n_kept, seconds))

    def _measure(self, context: Context, slot: Slot, seconds: float, with_widths: bool) -> int:
        """Returns the number of decodes that were timed, and of rows that were compared."""
        started, seq_id, ids = self.clock(), slot.seq_id, slot.ids
        n_timed, compares = 0, self._seconds_left(context, len(ids)) > 0
        if with_widths and self.planner is not None and not self._refused:
            share, curve = seconds / 2 if compares else seconds, self.curves.at(len(ids))
            changing = bool(self.change_seconds)
            n_timed = calibrate.time_widths(context, seq_id, ids, curve, share, self.clock, changing)
            self._refused = context.n_past(seq_id) != len(ids)
        if compares and not self._refused:
            began = self.clock()
            if length_class(len(ids)) > self._compared:
                self._compared, self._compare_left = length_class(len(ids)), _COMPARE_SECONDS
                self._calibration, self._before, self._known = calibrate.Calibration(), dict(self._figures), 0
            left = max(seconds / 2, seconds - (began - started))
            t1, n_rows = self.t1 if self._known else None, self._calibration.n_rows
            calibrate.measure(context, seq_id, ids, left, self.clock, self._calibration, self._known, t1)
            self._compare_left -= self.clock() - began
            self._known = max(self._known, self._calibration.equal_up_to) if self._known else 0
            self._use_comparison(len(ids))
            n_timed += self._calibration.n_rows - n_rows
            self._refused = context.n_past(seq_id) != len(ids)
        return n_timed

    def _use_comparison(self, n_ids: int) -> None:
        """Merge the new comparison with the stored one, or replace an old one once it says as much."""
        new = self._calibration
        if not new.n_rows:
            return
        self._measured[COMPARISON] = self._now()
        says_as_much = new.unlike is not None or new.equal_up_to >= self._before.get("alike", 0)
        if self._replaces and (says_as_much or self._compare_left <= 0):
            self._replaces = False
            self._before = {name: x for name, x in self._before.items() if name in KEPT}
        if not self._replaces:
            self._figures = merged(self._before, new)
        if (t1 := new.t1) is not None:
            bucket = bucket_of(n_ids)
            self._plain[bucket] = min(t1, self._plain.get(bucket, t1))

    def store_curve(self, n_ids: int, curve: CostCurve) -> None:
        """Replace the cost curve for texts of `n_ids` ids, and store it."""
        self.curves.put(n_ids, curve)
        if bucket_of(n_ids) == 0:
            self._disturbed.clear()
            self._figures["t1"] = curve.predict(1)
        self._plain[bucket_of(n_ids)] = curve.predict(1)
        self.flush(True)

    def store_comparison(self, calibration: calibrate.Calibration) -> None:
        """Replace the comparison of batched and single rows, unless the new one is empty, and store it."""
        if calibration.n_rows:
            others = {name: self._figures[name] for name in KEPT if name in self._figures}
            self._figures = merged({}, calibration) | others
            self._compared, self._compare_left = length_class(calibration.reach), 0.0
            self._measured[COMPARISON] = self._now()
            self.flush(True)

    def store_steps(self, pair: Mapping[str, Any], name: str, steps: CostCurve) -> None:
        """Store the times of the steps of the draft model or head of this name for a pair, which need not be
        the loaded one. Everything else that was learnt about that pair is kept.
        """
        states = (p["learnt"] for p in pairs_of(self.store.read(self.key)) if p["pair"] == pair)
        learnt = PairState()
        learnt.restore(next(states, None))
        learnt.set_steps(name, steps)
        if self.keep:
            pairs = [{"pair": dict(pair), "learnt": learnt.to_dict()}]
            self._write({"measured": {}, "plain": {}, "curves": {}, "pairs": pairs})

    # Storing

    def save(self) -> None:
        """After an answer: write in the background, at most every few seconds."""
        self._changed |= self.planner is not None
        writing = self._writer is not None and self._writer.is_alive()
        if not self.keep or not self._changed or writing or self.clock() - self._written < _WRITE_SECONDS:
            return
        self._changed, self._written = False, self.clock()
        self._writer = threading.Thread(target=self._write, args=(self._snapshot(),), daemon=True)
        self._writer.start()

    def flush(self, changed: bool = False) -> None:
        """Write what is not stored yet, and wait until it is written. changed: whether something is new."""
        self._changed |= changed
        if self._writer is not None:
            self._writer.join()
        if self.keep and self._changed:
            self._changed, self._written = False, self.clock()
            self._write(self._snapshot())

    def _snapshot(self) -> JsonObject:
        """A copy of what this process has measured and learnt, which a thread can write during decodes."""
        curves = self.curves.to_dict(used=True)
        if self._disturbed and (own := curves.pop("0", None)) is not None:
            widths = wire.stored(list[tuple[int, float, int]], own["widths"], [])
            if sure := [[n, x, count] for n, x, count in widths if count > self._disturbed.get(n, 0)]:
                curves["0"] = {"widths": sure}
        return {
            **self._figures,
            "measured": dict(self._measured),
            "plain": {str(bucket): seconds for bucket, seconds in self._plain.items()},
            "curves": curves,
            "pairs": [{"pair": self.pair, "learnt": self.planner.learnt.to_dict()}] if self.planner else [],
        }

    def _write(self, ours: JsonObject) -> None:
        """Merge with the file: entries of other processes stay unless this process has newer ones."""
        whole = merged_profiles(ours, self.store.read(self.key))
        self.store.write(self.key, whole | ({"kernels": self._kernels} if self._kernels is not None else {}))


# The keys under which a profile is stored: everything that the measured times and the learnt acceptance
# depend on. After a change of a key everything is measured again.


def model_key(header: Header, s: ModelSettings, context: LlamaContext) -> JsonObject:
    """A model and the settings that affect its speed, in types that JSON preserves. lora: content and scale.
    The size of the context is not part of the key: only the length in use matters, and there is a cost curve
    for each range of lengths.
    """
    placed = [s.split_mode, s.main_gpu, list(s.devices), list(s.tensor_split), s.n_cpu_moe]
    overrides = [list(override) for override in s.override_tensor]
    return {
        "model": identity(header),
        "lora": [[content_of(path), scale] for path, scale in s.lora],
        "n_gpu_layers": s.n_gpu_layers,
        "placed": [*placed, overrides],
        "threads": [context.n_threads, context.n_threads_batch],
        "cache": [s.cache_type_k, s.cache_type_v, s.flash_attn],
    }


def target_key(header: Header, s: ModelSettings, context: LlamaContext) -> JsonObject:
    """The target, the machine and the build of llama.cpp."""
    return {
        **model_key(header, s, context),
        "machine": machine_key(),
        "compiled": compiled(),
        "devices": [["" if d.remote else d.name, d.description] for d in devices()],
    }


def head_key(head: HeadInfo) -> JsonObject:
    """A head, wherever its layers are, in types that JSON preserves."""
    return {"head": head.kind.name, "model": identity(head.header)}


def pair_key(
    draft: JsonObject | None, drafters: Sequence[Drafter], second: HeadInfo | None = None
) -> JsonObject:
    """The key of a pair: the key of the draft model or the head, and the drafters. second: the target's own
    head next to a draft model; its layers are where the target's are. The request history is not part of the
    key, since it has an acceptance table of its own.
    """
    own = {"head": head_key(second)} if second is not None else {}
    return {"draft": draft, "drafters": words_of(drafters), **own}
