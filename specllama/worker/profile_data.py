"""The file of a profile: reading its parts, of which malformed ones count as missing, and
merging comparisons of rows.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

from specllama import wire
from specllama.config.load import ModelSettings
from specllama.core.exact import CHUNKS
from specllama.core.interfaces import Drafter
from specllama.core.policy.config import DEFAULT, PolicyConfig, is_number
from specllama.core.policy.cost_curve import CostCurve
from specllama.drafters import words_of
from specllama.gguf.header import Header, content_of, identity
from specllama.heads.kind import HeadInfo
from specllama.json_types import JsonObject
from specllama.llama.context import LlamaContext
from specllama.llama.library import compiled, devices
from specllama.models.memory.available import physical_cores
from specllama.stored_figures import can_take, measured_at
from specllama.worker.calibrate import TIMED, Calibration

_FIGURES = {  # of a comparison, by store key, with their ranges
    "t1": (1e-9, 1e6),
    "epsilon": (0, 1e6),
    "n_rows": (1, 1e12),
    "alike": (0, 1e6),
    "unlike": (2, 1e6),
    "reach": (1, 1e9),
    "exact_width": (1, max(TIMED)),
    "exact_chunk": (1, CHUNKS[-1]),
    "change": (0, 10),
}
DATED = COMPARISON, EXACT_ROWS, CHANGE = "comparison", "exact", "change"  # measured again after a while
EXACT = ("exact_width", "exact_chunk")  # of them: how exact texts are decoded by width
KEPT = ("t1", "change", *EXACT)  # of them: those that no comparison of rows gives
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
    seconds = ((b, stored.get(str(b))) for b in DEFAULT.context_buckets)
    return {b: float(x) for b, x in seconds if is_number(x, *_FIGURES["t1"])}


def possible_times(times: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """(rows, seconds) without the decodes that took too long to be true next to others: more rows take as
    long as fewer at least, and in proportion at most. Other programs make them longer, nothing makes them
    shorter.
    """
    return [(n, t) for n, t in times if all(t <= s or can_take(n, t, m, s) for m, s in times)]


def merged(before: Mapping[str, float], calibration: Calibration) -> dict[str, float]:
    """The worse figures of two comparisons: the earlier one, on texts of other lengths, and a new one."""
    now = {name: x for name, x in calibration.to_dict().items() if x is not None}
    if not calibration.n_rows or "epsilon" not in before:
        return {**before, **now} if calibration.n_rows else dict(before)
    unlike = [x["unlike"] for x in (before, now) if "unlike" in x]
    equal_up_to = [
        x["alike"] for x in (before, now) if "alike" in x and x["alike"] < min(unlike, default=math.inf)
    ]
    return {
        **{name: x for name, x in now.items() if name == "t1"},
        **before,
        "epsilon": max(before["epsilon"], now["epsilon"]),
        "n_rows": before.get("n_rows", 0) + now["n_rows"],
        "alike": max(equal_up_to, default=0),
        **({"unlike": min(unlike)} if unlike else {}),
        "reach": max(before["reach"], now["reach"]),
    }


class CostCurves:
    """One curve for each range of context lengths, made at the first use: the longer the text, the more
    attention costs per row.
    """

    def __init__(self, config: PolicyConfig = DEFAULT) -> None:
        self.config = config
        self._curves: dict[int, CostCurve] = {}
        self._used: set[int] = set()

    def at(self, n_ids: int) -> CostCurve:
        """The curve for `n_ids` ids in the decoded sequences. A new one starts with the times of the nearest
        measured one.
        """
        bucket, buckets = bucket_of(n_ids, self.config), self.config.context_buckets
        self._used.add(bucket)
        if bucket not in self._curves:
            measured = [b for b, curve in self._curves.items() if curve.times]
            at = buckets.index(bucket)
            near = min(measured, key=lambda b: (abs(buckets.index(b) - at), b), default=None)
            self._curves[bucket] = CostCurve(self.config) if near is None else self._curves[near].as_prior()
        return self._curves[bucket]

    def put(self, n_ids: int, curve: CostCurve) -> None:
        """Replace the curve for `n_ids` ids."""
        bucket = bucket_of(n_ids, self.config)
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
    def from_dict(cls, data: object, config: PolicyConfig = DEFAULT) -> CostCurves:
        """The stored curves; invalid ones are ignored."""
        curves = cls(config)
        stored = wire.stored(dict[str, object], data, {})
        for bucket in config.context_buckets:
            curve = CostCurve.from_dict(stored.get(str(bucket)), config)
            if curve.times:
                curves._curves[bucket] = curve
        return curves


def bucket_of(n_ids: int, config: PolicyConfig = DEFAULT) -> int:
    """The lower end of the range of context lengths that contains `n_ids`."""
    return max(b for b in config.context_buckets if b <= n_ids)


StoredPair = dict[str, Mapping[str, Any]]
"""The learnt figures of a pair. pair: its key (PairKey). learnt: of `PairState.to_dict`."""


@dataclass(frozen=True, slots=True)
class ProfileSnapshot:
    """The part that is merged with the stored profile: figures, seconds of plain decodes and curves by range
    of context lengths, and pairs. measured: times of day, by `DATED`.
    """

    figures: Mapping[str, float]
    plain: dict[str, float]
    curves: JsonObject
    pairs: list[StoredPair]
    measured: Mapping[str, float] = field(default_factory=dict)

    def merged_with(self, data: Mapping[str, Any], config: PolicyConfig) -> JsonObject:
        """A stored profile with this one's values; its other entries, of other processes, stay. config: of
        the curves.
        """
        curves = CostCurves.from_dict(data.get("curves"), config).to_dict() | self.curves
        ours = [p["pair"] for p in self.pairs]
        others = [p for p in pairs_of(data) if p["pair"] not in ours]
        plain = {str(bucket): seconds for bucket, seconds in plain_times(data).items()} | self.plain
        pairs = [*others, *self.pairs][-_MAX_PAIRS:]
        measured = {**measured_at(data.get("measured"), DATED), **self.measured}
        figures = {**figures_of(data), **self.figures}
        return {**figures, "measured": measured, "plain": plain, "curves": curves, "pairs": pairs}


def pairs_of(data: Mapping[str, Any]) -> list[StoredPair]:
    """The stored pairs that are well-formed."""
    pairs = (wire.stored(StoredPair, pair, {}) for pair in wire.stored(list[object], data.get("pairs"), []))
    return [pair for pair in pairs if pair.keys() >= {"pair", "learnt"}]


# The keys under which a ModelProfile is stored: everything that the measured times and the learnt acceptance
# depend on. After a change of a key everything is measured again.


class ModelKey(TypedDict):
    """A model and the settings that affect its speed. lora: content and scale. draft_vocab: of a draft,
    "auto" where its vocabulary is another one.
    """

    model: list[str | int]
    lora: list[list[str | float]]
    n_gpu_layers: int
    placed: list[object]
    threads: list[int]
    cache: list[str]
    draft_vocab: NotRequired[str]


class TargetKey(ModelKey):
    """The target, the machine and the build of llama.cpp."""

    machine: list[str | int]
    compiled: str
    devices: list[list[str]]


class HeadKey(TypedDict):
    """A head, wherever its layers are; n_gpu_layers of the one that drafts."""

    head: str
    model: list[str | int]
    n_gpu_layers: NotRequired[int]


class PairKey(TypedDict):
    """The drafters: a draft model or a head, the target's own head next to a draft model, and the
    drafters."""

    draft: ModelKey | HeadKey | None
    head: NotRequired[HeadKey]
    drafters: list[str]


def model_key(header: Header, s: ModelSettings, context: LlamaContext) -> ModelKey:
    """A model and the settings that affect its speed, in types that JSON preserves.

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


def target_key(header: Header, s: ModelSettings, context: LlamaContext) -> TargetKey:
    """The target, the machine and the build of llama.cpp."""
    return {
        **model_key(header, s, context),
        "machine": [platform.machine(), platform.processor(), physical_cores()],
        "compiled": compiled(),
        "devices": [["" if d.remote else d.name, d.description] for d in devices()],
    }


def head_key(head: HeadInfo) -> HeadKey:
    """A head, wherever its layers are, in types that JSON preserves."""
    return {"head": head.kind.name, "model": identity(head.header)}


def pair_key(
    draft: ModelKey | HeadKey | None, drafters: Sequence[Drafter], second: HeadInfo | None = None
) -> PairKey:
    """The key of a pair: the key of the draft model or the head, and the drafters. second: the target's own
    head next to a draft model; its layers are where the target's are. The request history is not part of the
    key, since it has an acceptance table of its own.
    """
    key: PairKey = {"draft": draft, "drafters": words_of(drafters)}
    if second is not None:
        key["head"] = head_key(second)
    return key
