"""The shape of a model's cost curve before any decode was measured: products of rows by type of weights,
measured on the machine, weighted by how much of each type a decode reads.

Attention, small matrices and what else a decode does add to the cost of several rows; a constant stands for
all of that. Knows no models, no files and no clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from specllama.core.policy.config import numbers
from specllama.stored_figures import can_take

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 48, 64)  # rows of the products
# Times of decodes of 2 to 12 rows, relative to those that products alone predict: 0.9 to 1.3 for models of
# 135 M and 500 M parameters in four types on two cores with AVX-512. Low estimates lose more than high ones.
SEVERAL_ROWS = 1.1
_LARGEST_SHARE = 0.1  # of the weights may have a type that was not measured
_PER_BYTE = (1e-15, 1e-3)  # seconds; others are rejected

RowTimes = Mapping[str, Sequence[float]]  # by type, for each of WIDTHS: seconds per byte of weights
RowPrior = tuple[tuple[int, float], ...]  # (rows, time of a decode in t(1)) for each of WIDTHS


@dataclass(frozen=True, slots=True)
class WeightsRead:
    """Weights of one type of which every row is multiplied by all, or by `n_used` of `n_expert` experts.
    n_bytes: of all experts.
    """

    kind: str
    n_bytes: int
    n_expert: int = 1
    n_used: int = 1

    def seconds(self, n_rows: int, per_byte: Sequence[float]) -> float:
        """Seconds of the products with so many rows. Each row's experts are assumed to be independent."""
        read = self.n_expert * (1 - (1 - self.n_used / self.n_expert) ** n_rows)
        each = n_rows * self.n_used / read  # rows of each expert that is read
        return self.n_bytes * read / self.n_expert * _interpolated(per_byte, each)


def row_prior(times: RowTimes, weights: Iterable[WeightsRead]) -> RowPrior | None:
    """The shape of the cost curve of a model with these weights; None where too many of them have a type that
    was not measured.
    """
    known, unknown = list[WeightsRead](), 0.0
    for one in weights:
        if one.kind in times:
            known.append(one)
        else:
            unknown += one.n_bytes * one.n_used / one.n_expert
    single = sum(one.n_bytes * one.n_used / one.n_expert for one in known)
    if not known or unknown > _LARGEST_SHARE * (single + unknown):
        return None
    seconds = [sum(one.seconds(n, times[one.kind]) for one in known) for n in WIDTHS]
    points, most = [], seconds[0]
    for n, took in zip(WIDTHS, seconds, strict=True):
        most = max(most, took * (SEVERAL_ROWS if n > 1 else 1.0))  # more rows never cost less
        points.append((n, most / seconds[0]))
    return tuple(points)


def checked_times(data: object) -> dict[str, list[float]]:
    """Stored times by type; types whose times cannot be, or are malformed, are left out."""
    items = data.items() if isinstance(data, Mapping) else ()
    return {kind: values for kind, given in items if isinstance(kind, str) and (values := _checked(given))}


def _checked(given: object) -> list[float]:
    """The times of a type, [] where they cannot be."""
    values = numbers(given, len(WIDTHS), *_PER_BYTE)
    return values if values and is_plausible(values) else []


def is_plausible(per_byte: Sequence[float]) -> bool:
    """Whether each number of rows can take so long next to each other one: none does where another program
    interrupted the measurement.
    """
    times = list(zip(WIDTHS, per_byte, strict=True))
    return all(can_take(n, x, m, known) for n, x in times for m, known in times)


def _interpolated(per_byte: Sequence[float], n_rows: float) -> float:
    at = bisect_left(WIDTHS, n_rows)
    if at == len(WIDTHS):
        return per_byte[-1] * n_rows / WIDTHS[-1]
    if at == 0:
        return per_byte[0]
    low, high = WIDTHS[at - 1], WIDTHS[at]
    return per_byte[at - 1] + (per_byte[at] - per_byte[at - 1]) * (n_rows - low) / (high - low)
