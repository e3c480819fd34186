"""The value of states on disk, and which are evicted when there is no room.

The rule is GreedyDual-Size with frequency (Cherkasova, "Improving WWW Proxies Performance with
Greedy-Dual-Size-Frequency Caching Policy", HP Labs 1998): the priority of a state is what it saves per
byte times its uses, plus the inflation at its last use; inflation is the priority of what went last. So
what is not used sinks without any clock, which may be set back. Knows no files; the ledger is the text
of index.json.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specllama.config.defaults import CACHE_DISK_BYTES, CACHE_DISK_SHARE

_MAX_USES = 1000
_MB = 1e6


def worth(seconds: float, n_bytes: int, load_rate: float) -> float:
    """Seconds that one use of a state saves per megabyte. seconds: that reading its text would cost."""
    return max(0.0, seconds - n_bytes / load_rate) / (n_bytes / _MB)


@dataclass(slots=True)
class StateUse:
    """uses: so far, writing included. priority: see above."""

    uses: int
    priority: float


@dataclass(slots=True)
class StateLedger:
    """What the processes that share a directory know of its states beyond their headers.

    inflation: see above. load_rate: bytes a second, as measured, 0 before. uses: by the states' names.
    """

    inflation: float = 0.0
    load_rate: float = 0.0
    uses: dict[str, StateUse] = field(default_factory=dict)

    def use(self, name: str, value: float) -> None:
        """A state of this worth was written or used."""
        before = self.uses.get(name)
        n = min(_MAX_USES, before.uses + 1 if before is not None else 1)
        self.uses[name] = StateUse(n, self.inflation + n * value)

    def priority(self, name: str, value: float) -> float:
        """The priority of a state of this worth; one that the ledger does not know was used once."""
        known = self.uses.get(name)
        return known.priority if known is not None else self.inflation + value

    def gone(self, name: str, value: float = 0.0) -> None:
        """A state of this worth was removed to make room, or not written."""
        self.inflation = max(self.inflation, self.priority(name, value))
        self.uses.pop(name, None)

    def keep_only(self, names: Iterable[str]) -> None:
        """Forget states that no longer exist."""
        there = set(names)
        self.uses = {name: use for name, use in self.uses.items() if name in there}

    def to_json(self) -> str:
        """For index.json."""
        states = {name: [use.uses, use.priority] for name, use in self.uses.items()}
        return json.dumps({"inflation": self.inflation, "load_rate": self.load_rate, "states": states})

    @classmethod
    def from_json(cls, data: bytes) -> StateLedger:
        """The inverse of `to_json`; an empty ledger for anything else."""
        try:
            plain = json.loads(data)
            ledger = cls(_number(plain["inflation"]), _number(plain["load_rate"]))
            for name, (uses, priority) in plain["states"].items():
                ledger.uses[str(name)] = StateUse(int(_number(uses)), _number(priority))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return cls()
        return ledger


@dataclass(frozen=True, slots=True)
class EvictionCandidate:
    """A state that may be evicted. value: see `worth`."""

    name: str
    n_bytes: int
    priority: float
    value: float = 0.0


def to_remove(
    states: Sequence[EvictionCandidate], n_bytes: int, priority: float = math.inf
) -> list[EvictionCandidate] | None:
    """The states to remove so that so many bytes become free, those of least priority; None where that would
    take one of a higher priority than the new state's, or all are too few.
    """
    removed = list[EvictionCandidate]()
    for state in sorted(states, key=lambda s: s.priority):
        if n_bytes <= 0:
            break
        if state.priority > priority:
            return None
        removed.append(state)
        n_bytes -= state.n_bytes
    return removed if n_bytes <= 0 else None


def _number(value: object) -> float:
    """Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e15:
        raise ValueError(value)
    return float(value)


# How much of the disk states may use where the user has not said so.


def automatic_budget(directory: Path, held: int = 0) -> int:
    """Bytes for a directory, which may not exist yet: 8 GB, or a tenth of what would be free without it if
    that is less; 0 where nothing is known of the disk. held: bytes that the directory has already.
    """
    for there in (directory, *directory.parents):
        try:
            free = shutil.disk_usage(there).free
        except OSError:
            continue
        return min(CACHE_DISK_BYTES, int(CACHE_DISK_SHARE * (free + held)))
    return 0
