"""The states on disk as people manage them: which there are, of which model, and how to remove them.

Reads headers, and shows neither texts nor whose they are. Works while servers use the directory.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

from specllama.prefix_disk.directory import StateDirectory
from specllama.prefix_disk.eviction import StateLedger

ID_LENGTH = 12


@dataclass(frozen=True, slots=True)
class ListedState:
    """A state. id: the beginning of its file's name. model: as it was called when it was loaded. n_bytes: of
    the file. seconds: that reading its text again would cost. changed: time of day in seconds at which it was
    written. uses: so far, writing included.
    """

    id: str
    name: str
    model: str
    kind: str
    n_tokens: int
    n_bytes: int
    seconds: float
    changed: float
    uses: int


def listed(directory: StateDirectory) -> list[ListedState]:
    """The states, the newest first; none where there is no directory. Raises OSError."""
    if not directory.open(create=False):
        return []
    ledger, states = StateLedger.from_json(directory.read_ledger()), []
    for name in directory.sizes():
        header = directory.header(name)
        with contextlib.suppress(FileNotFoundError):
            if header is not None:
                changed = os.stat(directory.path / name).st_mtime
                use, meta = ledger.uses.get(name), header.meta
                uses = use.uses if use is not None else 1
                figures = header.n_tokens, header.file_bytes, meta.seconds, changed, uses
                states.append(ListedState(name[:ID_LENGTH], name, meta.model, meta.kind, *figures))
    return sorted(states, key=lambda state: -state.changed)


def remove_states(directory: StateDirectory, states: Sequence[ListedState]) -> None:
    """Remove these states. Raises OSError."""
    with directory.locked():
        for state in states:
            directory.remove(state.name)


def clear(directory: StateDirectory) -> tuple[int, int]:
    """Remove all states, those that cannot be read and unfinished ones too; returns how many, and their
    bytes. What a server is writing does not appear afterwards. Raises OSError.
    """
    if not directory.open(create=False) and not directory.path.is_dir():
        return 0, 0
    with directory.locked():
        sizes = {**directory.sizes(), **directory.unfinished_sizes()}
        for name in sizes:
            directory.remove(name)
    return len(sizes), sum(sizes.values())
