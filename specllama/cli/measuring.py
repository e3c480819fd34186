"""Parts of `bench` and `tune`: results that survive an early end, and where and when they were measured."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass

import specllama
from specllama.cli import console
from specllama.cli.answer import INTERRUPTED
from specllama.errors import SpecllamaError
from specllama.json_types import JsonObject
from specllama.models.memory.available import physical_cores


@dataclass(slots=True)
class PartialResults:
    """Results of a measurement that Ctrl-C or an error may end early."""

    interrupted: bool = False
    failure: SpecllamaError | None = None

    @property
    def is_partial(self) -> bool:
        return self.interrupted or self.failure is not None

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Keep what was measured before an early end; the reason is kept too, not raised."""
        try:
            yield
        except KeyboardInterrupt:
            self.interrupted = True
        except SpecllamaError as error:
            self.failure = error

    def say_nothing_measured(self) -> None:
        """The line for Ctrl-C before the first result."""
        if self.interrupted:
            console.note("nothing was measured yet")

    def exit_code(self) -> int:
        """0, or 130 after Ctrl-C. Raises the error that ended the measurement."""
        if self.failure is not None:
            raise self.failure
        return INTERRUPTED if self.interrupted else 0


def warn_if_busy() -> None:
    """Warn where other programs use all processors, by the processes that waited in the last minute."""
    with contextlib.suppress(AttributeError, OSError):
        if (load := os.getloadavg()[0]) >= (os.cpu_count() or 1):
            console.warning(f"other programs keep the machine busy (load {load:.1f}): figures may be off")


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def provenance(n_threads: int) -> JsonObject:
    """Version, time and machine, for the head of a report. n_threads: used for decoding."""
    return {
        "version": specllama.__version__,
        "date": now(),
        "machine": {
            "system": platform.system(),
            "machine": platform.machine(),
            "cores": physical_cores(),
            "n_threads": n_threads,
        },
    }
