"""The value of states on disk, by which they are evicted when there is no room.

The rule is GreedyDual-Size with frequency (Cherkasova, "Improving WWW Proxies Performance with
Greedy-Dual-Size-Frequency Caching Policy", HP Labs 1998): the priority of a state is what it saves per
byte times its uses, plus the inflation at its last use; inflation is the priority of what went last. So
what is not used sinks without any clock, which may be set back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from specllama import wire
from specllama.config.defaults import CACHE_DISK_BYTES, CACHE_DISK_SHARE
from specllama.config.store import free_bytes
from specllama.prefix_disk.state_file import StateMeta

_MAX_USES = 1000
_MB = 1e6
_MAX_BYTES = 16 << 20  # of index.json
_MAX_NUMBER = 1e15


def worth(meta: StateMeta, load_rate: float) -> float:
    """Seconds that one use of a state saves per megabyte. load_rate: bytes a second."""
    n_bytes = meta.n_bytes
    return max(0.0, meta.seconds - n_bytes / load_rate) / (n_bytes / _MB) if n_bytes else 0.0


class StateUse(NamedTuple):
    """uses: so far, writing included. priority: see above."""

    uses: int
    priority: float


@dataclass(slots=True)
class StateLedger:
    """Figures of states beyond their headers, shared by the processes of a directory: index.json.

    inflation: see above. load_rate: bytes a second, as measured, 0 before. states: by name.
    """

    inflation: float = 0.0
    load_rate: float = 0.0
    states: dict[str, StateUse] = field(default_factory=dict)

    def use(self, name: str, value: float) -> None:
        """A state of this worth was written or used."""
        before = self.states.get(name)
        n = min(_MAX_USES, before.uses + 1 if before is not None else 1)
        self.states[name] = StateUse(n, self.inflation + n * value)

    def replace(self, old: str, new: str) -> None:
        """A state was written in the place of another one: it was used as often."""
        before, now = self.states.pop(old, None), self.states[new]
        if before is not None:
            self.states[new] = now._replace(uses=max(before.uses, now.uses))

    def priority(self, name: str, value: float) -> float:
        """The priority of a state of this worth; one that the ledger does not know was used once."""
        known = self.states.get(name)
        return known.priority if known is not None else self.inflation + value

    def gone(self, name: str, priority: float) -> None:
        """A state of this priority was removed to make room, or not written."""
        self.inflation = max(self.inflation, priority)
        self.states.pop(name, None)

    def to_json(self) -> str:
        """For index.json."""
        return wire.to_json(self)

    @classmethod
    def from_file(cls, path: Path) -> StateLedger:
        """The inverse of `to_json`. Raises OSError, ValueError."""
        ledger = wire.from_file(cls, path, _MAX_BYTES)
        numbers = [ledger.inflation, ledger.load_rate, *(x for use in ledger.states.values() for x in use)]
        if not all(0 <= x < _MAX_NUMBER for x in numbers):
            raise ValueError("numbers that cannot be")
        return ledger


def automatic_budget(directory: Path, held: int = 0) -> int:
    """Bytes for a directory, which may not exist yet: 8 GB, or a tenth of what would be free without it if
    that is less; 0 where nothing is known of the disk. held: bytes that the directory has already.
    """
    free = free_bytes(directory)
    return 0 if free is None else min(CACHE_DISK_BYTES, int(CACHE_DISK_SHARE * (free + held)))
