"""What the search for models and their download tell whoever watches, and how they wait. Prints nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from specllama.errors import NetworkError


@dataclass(frozen=True, slots=True)
class State:
    """How far everything is. phase: "downloading" and the like; name: of a file; done, total: bytes of all.

    rate: bytes per second of late, 0 where it is not known; left: seconds, None where it cannot be told.
    """

    phase: str
    name: str
    done: int
    total: int
    rate: float = 0.0
    left: float | None = None


class Listener(Protocol):
    """Whoever watches. `note`: a line to keep, those that begin with "warning: " should be acted on."""

    def note(self, text: str) -> None: ...

    def state(self, state: State) -> None: ...

    def clear(self) -> None:
        """What was shown by `state` is over."""
        ...


class Silent:
    """Nobody watches."""

    def note(self, text: str) -> None:
        pass

    def state(self, state: State) -> None:
        pass

    def clear(self) -> None:
        pass


class RetryableError(Exception):
    """A server that may do better later. after: seconds that it asks to wait, None where it does not say."""

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        self.message, self.after = message, after


class RetryPolicy:
    """Waits longer and longer while nothing gets better, and says so.

    waits: seconds before each attempt after the first; longest: seconds that a server may ask for.
    """

    def __init__(
        self,
        listener: Listener,
        waits: tuple[float, ...],
        longest: float = 900.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._listener, self._waits, self._longest, self._sleep = listener, waits, longest, sleep
        self._failed = 0

    def better(self) -> None:
        """Something worked since the last trouble."""
        self._failed = 0

    def wait(self, trouble: RetryableError) -> None:
        """Before the next attempt. Raises NetworkError where there have been enough of them."""
        if self._failed >= len(self._waits):
            again = "try again later; what has arrived is kept, and the same command goes on from there"
            raise NetworkError(trouble.message, again) from None
        seconds = self._waits[self._failed] if trouble.after is None else trouble.after
        if seconds > self._longest:
            raise NetworkError(
                f"{trouble.message}: it asks to wait {seconds:.0f} s", "try again then"
            ) from None
        self._failed += 1
        self._listener.clear()
        self._listener.note(f"{trouble.message}; trying again in {seconds:g} s")
        self._sleep(seconds)
