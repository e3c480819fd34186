"""Cost curves by context length: the longer the text, the dearer each row's attention. Knows no models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specllama.core.policy.cost_curve import CostCurve

BUCKETS = (0, 4096, 16384, 65536, 262144)  # ids; each curve holds from its own to the next


class Curves:
    """One curve for each range of context lengths, made when it is asked for."""

    def __init__(self) -> None:
        self._curves: dict[int, CostCurve] = {}
        self._used: set[int] = set()

    def at(self, n_ids: int) -> CostCurve:
        """The curve for so many ids in the sequences that are decoded; one where nothing was measured begins
        as the nearest one that was.
        """
        bucket = bucket_of(n_ids)
        self._used.add(bucket)
        if bucket not in self._curves:
            measured = [b for b, curve in self._curves.items() if curve.measured]
            at = BUCKETS.index(bucket)
            near = min(measured, key=lambda b: (abs(BUCKETS.index(b) - at), b), default=None)
            self._curves[bucket] = CostCurve() if near is None else self._curves[near].as_prior()
        return self._curves[bucket]

    def put(self, n_ids: int, curve: CostCurve) -> None:
        """From now on the curve for so many ids is this one."""
        bucket = bucket_of(n_ids)
        self._used.add(bucket)
        self._curves[bucket] = curve

    def to_dict(self, used: bool = False) -> dict[str, Any]:
        """Plain data to be stored. used: only of the curves that somebody asked for."""
        return {
            str(b): curve.to_dict()
            for b, curve in sorted(self._curves.items())
            if curve.measured and (b in self._used or not used)
        }

    @classmethod
    def from_dict(cls, data: object) -> Curves:
        """What was stored; what `to_dict` did not write is left out."""
        found = cls()
        stored: Mapping[Any, Any] = data if isinstance(data, Mapping) else {}
        for bucket in BUCKETS:
            curve = CostCurve.from_dict(stored.get(str(bucket)))
            if curve.measured:
                found._curves[bucket] = curve
        return found


def bucket_of(n_ids: int) -> int:
    """The least number of ids that the curve for so many is for."""
    return max(b for b in BUCKETS if b <= n_ids)
