"""What a campaign needs to know of a part."""

from __future__ import annotations

import random
from typing import Protocol


class Part(Protocol):
    """One reader of foreign input.

    name: of the command line. seconds: of processor time that one input may take. n_bytes: of memory that a
    process may gain. batch: inputs that a process runs before it is replaced.
    """

    name: str
    seconds: float
    n_bytes: int
    batch: int

    def set_up(self) -> None:
        """Import and load what every input needs; called once, before processes are forked."""

    def make(self, rng: random.Random) -> bytes:
        """An input, a function of the generator's state."""

    def run(self, data: bytes) -> str:
        """Give the input to the reader. Returns what became of it, in a word; raises for what is not
        documented.
        """

    def close(self) -> None:
        """End what `set_up` has started."""
