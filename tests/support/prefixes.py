"""Prefix states for tests: records whose bytes follow from a number, and a store on a small directory."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specllama.prefix_disk.disk_store import DiskStore, PrefixRecord
from specllama.prefix_disk.state_file import Buffer

KEY = "a model"


def ids(*parts: tuple[int, int]) -> NDArray[np.int32]:
    """Token ids: for each (seed, n) n ids that follow from the seed."""
    found = [np.random.default_rng(seed).integers(0, 32_000, n) for seed, n in parts]
    return np.concatenate(found).astype(np.int32)


def content(seed: int, n_bytes: int) -> bytes:
    """Bytes that follow from a seed."""
    return random.Random(seed).randbytes(n_bytes)


def record(
    text: NDArray[np.int32],
    n_bytes: int = 10_000,
    seed: int = 0,
    scope: str = "local",
    seconds: float = 10.0,
    draft_bytes: int = 0,
) -> PrefixRecord:
    """A record with random bytes."""
    parts: dict[str, Buffer] = {"target": content(seed, n_bytes)}
    if draft_bytes:
        parts["draft"] = content(seed + 1, draft_bytes)
    return PrefixRecord(scope, text, parts, seconds)


@contextmanager
def store(directory: Path, budget: int = 100_000_000, key: str = KEY, **more: Any) -> Iterator[DiskStore]:
    """A store that is closed at the end. Its lines are in `.lines`, a list."""
    lines: list[str] = []
    found = DiskStore(directory, budget, key, say=lines.append, **{"reserve_bytes": 0, **more})
    try:
        found.lines = lines  # type: ignore[attr-defined]
        yield found
    finally:
        found.close()


def written(directory: Path, *records: PrefixRecord, **more: Any) -> None:
    """Write records by a store of their own, one after the other."""
    with store(directory, **more) as one:
        for each in records:
            assert one.put(each)
            assert one.flush(20)


def states(directory: Path) -> list[str]:
    """The names of the states in a directory."""
    return sorted(path.name for path in directory.glob("*.state"))


def equal(found: PrefixRecord | None, expected: PrefixRecord) -> bool:
    """Whether a record that was read is the one that was written."""
    return (
        found is not None
        and (found.scope, found.seconds) == (expected.scope, expected.seconds)
        and np.array_equal(found.ids, expected.ids)
        and {name: bytes(part) for name, part in found.parts.items()}
        == {name: bytes(part) for name, part in expected.parts.items()}
    )
