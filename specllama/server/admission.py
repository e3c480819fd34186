"""How many texts may be open in the engine, and how many of one owner. Knows no engine and no HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

KEPT = 4  # the last 1/4 of the queue is kept for owners that have nothing waiting


@dataclass(frozen=True, slots=True)
class QueueLimit:
    """n_slots: texts that run at once. size: texts that may wait. several: whether there is more than one
    owner; a single one may use the whole queue.
    """

    n_slots: int
    size: int
    several: bool = False

    @property
    def n_most(self) -> int:
        """Texts that may run or wait."""
        return self.n_slots + self.size

    @property
    def n_kept(self) -> int:
        """Places of the queue for owners with nothing waiting."""
        return self.size // KEPT if self.several else 0

    def problem(self, n_open: Mapping[str, int], n_waiting: int, n: int) -> str:
        """Why a request for n more texts is refused, "" where it is not. n_open: texts running
        and waiting, by owner. n_waiting: texts of the owner that asks that wait.

        If nothing is open, a request of any number of texts is accepted. However many they are, they leave
        the kept places to the other owners.
        """
        n_all, n_shared = sum(n_open.values()), self.n_most - self.n_kept
        if not n_all:
            return ""
        n_counted = sum(min(one, n_shared) for one in n_open.values()) + n
        if n_counted > self.n_most:
            return f"{n_all} texts are running or waiting, {self.n_most} are the most"
        if n_waiting and n_counted > n_shared:
            waiting = "1 text waiting" if n_waiting == 1 else f"{n_waiting} texts waiting"
            return (
                f"this key has {waiting}, and the last {self.n_kept} of {self.size} places in the queue are "
                "kept for keys that have none"
            )
        return ""
