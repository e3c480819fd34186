"""What products of one to several rows take on this machine, by type of weights: measured once while nothing
else runs, and stored, so that the first run of every model begins with the shape of its cost curve.

As a program, `python -m specllama.worker.row_times`, it measures what is missing, in about two seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from statistics import median
from typing import TypedDict

from specllama.clock import running_time
from specllama.config.store import Store
from specllama.gguf.header import Header
from specllama.llama.context import LlamaContext
from specllama.llama.library import compiled, devices
from specllama.llama.products import ProductError, Products
from specllama.models.memory.available import available_memory, physical_cores
from specllama.other_work import OtherWork
from specllama.stored_figures import is_fresh, measured_at
from specllama.worker.row_prior import (
    WIDTHS,
    RowPrior,
    WeightsRead,
    checked_times,
    is_plausible,
    row_prior,
)

# Measured together, so that each product finds its weights replaced in the caches by the others'.
GROUPS = (
    ("Q4_K", "Q6_K", "Q8_0", "F16", "Q4_0"),
    ("Q5_K", "Q4_1", "BF16", "IQ4_XS", "Q5_0"),
    ("Q3_K", "IQ4_NL", "MXFP4", "Q5_1", "Q2_K"),
)
SECONDS = 3.0  # for all that is missing
_STEP_SECONDS = 0.1
_VERSION = 1
_GROUP_SECONDS = 0.5  # of products
_ROUNDS = (3, 9)  # least and most
_MATRICES, _MATRIX_BYTES = 3, 8 << 20  # of each type
_LEAST_MEMORY = 1 << 30  # bytes that must be free
_BUSY = 1.5  # times its shortest time: with a longer median, other programs were running


class RowTimeKey(TypedDict):
    """All that the times depend on."""

    version: int
    widths: list[int]
    compiled: str
    processors: list[str]
    cores: int
    threads: int


class RowTimeStore:
    """The stored times of a number of threads on this machine, with this build of llama.cpp and its kernels.

    store: of the calibrations, in whose directory they have one of their own.
    """

    def __init__(self, store: Store, n_threads: int) -> None:
        self._store, self.n_threads = Store(store.root / "products"), n_threads

    @property
    def key(self) -> RowTimeKey:
        """The key under which they are stored."""
        processors = [d.description for d in devices() if not d.gpu and not d.remote]
        return {
            "version": _VERSION,
            "widths": list(WIDTHS),
            "compiled": compiled(),
            "processors": processors,
            "cores": physical_cores(),
            "threads": self.n_threads,
        }

    def read(self) -> dict[str, list[float]]:
        """By type, for each of WIDTHS: seconds per byte of weights."""
        return checked_times(self._store.read(self.key).get("types"))

    def add(self, times: dict[str, list[float]]) -> None:
        """Keep further types; the others, of other processes too, stay."""
        data = self._store.read(self.key)
        measured = measured_at(data.get("measured"), checked_times(data.get("types")))
        measured |= dict.fromkeys(times, time.time())
        self._store.write(self.key, {"types": self.read() | times, "measured": measured})

    @property
    def missing(self) -> list[tuple[str, ...]]:
        """The groups of which at least one type is not known, or was measured long ago."""
        data, now = self._store.read(self.key), time.time()
        known = checked_times(data.get("types"))
        measured = measured_at(data.get("measured"), known)
        fresh = {kind for kind in known if is_fresh(measured.get(kind), now)}
        return [group for group in GROUPS if not fresh >= set(group)]


def row_times_of(store: Store, context: LlamaContext) -> RowTimeStore | None:
    """The times with the threads of a context, None where one row and several have different numbers."""
    one = context.n_threads == context.n_threads_batch
    return RowTimeStore(store, context.n_threads) if one else None


def prior_of(header: Header, store: RowTimeStore) -> RowPrior | None:
    """The shape of the cost curve of a model all of whose layers are on the processor; None where the times
    of its types are not known.
    """
    n_expert, n_used = header.experts
    read = [
        WeightsRead(kind, n_bytes, *((n_expert, max(1, n_used)) if routed else ()))
        for (kind, routed), n_bytes in header.bytes_by_type.items()
    ]
    return row_prior(store.read(), read)


def measured(
    kinds: Sequence[str], n_threads: int, seconds: dict[str, list[float]], clock: Callable[[], float]
) -> Generator[None, None, None]:
    """Measure these types, in steps of some milliseconds; those that cannot be measured are left out of
    `seconds`, as when other programs keep the machine busy. Raises ProductError.
    """
    with ExitStack() as stack:
        products = dict[str, Products]()
        for kind in kinds:
            products[kind] = one = Products(kind, _MATRICES, _MATRIX_BYTES, WIDTHS, n_threads)
            stack.callback(one.close)
            yield
        rounds, spent, others = list[dict[tuple[str, int], float]](), 0.0, OtherWork(n_threads)
        least, most = _ROUNDS
        while len(rounds) < least or (len(rounds) < most and spent < _GROUP_SECONDS):
            rounds.append({})
            for n in WIDTHS:
                for kind, one in products.items():
                    began = clock()
                    rounds[-1][kind, n] = one.seconds(n)
                    spent += clock() - began
                    yield
        if others.disturbs:
            return
        for kind, one in products.items():
            singles = [times[kind, 1] for times in rounds]
            per_byte = [
                median(singles) / one.n_bytes * median(times[kind, n] / times[kind, 1] for times in rounds)
                for n in WIDTHS
            ]
            if median(singles) <= _BUSY * min(singles) and is_plausible(per_byte):
                seconds[kind] = per_byte


class RowTimeMeasurer:
    """Measures and stores what is missing, a slice of time at a time; each group once."""

    def __init__(self, store: RowTimeStore, clock: Callable[[], float] = running_time) -> None:
        self._store, self._clock = store, clock
        self._left = store.missing if available_memory() >= _LEAST_MEMORY else []
        self._steps: Generator[None, None, None] | None = None
        self._seconds = dict[str, list[float]]()

    @property
    def done(self) -> bool:
        """Whether nothing is left that this one can measure."""
        return not self._left

    def interrupt(self) -> None:
        """Free all memory; the group under way begins again with the next call."""
        if self._steps is not None:
            self._steps.close()
            self._steps = None

    def measure(self, seconds: float) -> None:
        """Measure for so long. Raises ProductError."""
        end = self._clock() + seconds
        while self._left and self._clock() < end:
            if self._steps is None:
                self._seconds = {}
                self._steps = measured(self._left[0], self._store.n_threads, self._seconds, self._clock)
            try:
                next(self._steps)
            except StopIteration:
                self._steps = None
                self._left.pop(0)
                if self._seconds:
                    self._store.add(self._seconds)
            except ProductError:
                self._left.clear()
                raise


def measure_missing(store: RowTimeStore, clock: Callable[[], float] = running_time) -> Iterator[None]:
    """Measure what is missing in about SECONDS, in short steps. Raises ProductError."""
    measurer, end = RowTimeMeasurer(store, clock), clock() + SECONDS
    try:
        while not measurer.done and clock() < end:
            measurer.measure(_STEP_SECONDS)
            yield
    finally:
        measurer.interrupt()


def main() -> int:
    """Measure, store, and say for which types there are times; 1, with the reason on stderr, where some are
    missing.
    """
    store, why = RowTimeStore(Store(), physical_cores()), "other programs used the processors"
    if available_memory() < _LEAST_MEMORY:
        why = f"less than {_LEAST_MEMORY >> 20} MiB of memory are free"
    try:
        for _ in measure_missing(store):
            pass
    except ProductError as error:
        why = str(error)
    if missing := store.missing:
        n_types, n_missing = sum(map(len, GROUPS)), sum(map(len, missing))
        sys.stderr.write(f"times of rows are missing for {n_missing} of {n_types} types of weights: {why}\n")
        return 1
    sys.stdout.write(f"times of rows: {', '.join(store.read())}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
