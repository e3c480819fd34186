"""The interface for progress and notes of resolving and downloading models, and the retry policy.

Prints nothing: cli implements the listener.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from specllama.clock import sleep
from specllama.errors import NetworkError

_LONGEST_WAIT = 900.0  # seconds that a server may ask to wait
_SECONDS = re.compile(r"\d{1,19}", re.ASCII)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class DownloadState:
    """Progress of a download. phase: "downloading" and the like; name: of a file; done, total: bytes of all
    files; rate: bytes per second in the last seconds, 0 if unknown; left: seconds, None if unknown.
    """

    phase: str
    name: str
    done: int
    total: int
    rate: float = 0.0
    left: float | None = None


class Listener:
    """Receives progress and notes; this one ignores them."""

    def note(self, text: str) -> None:
        """A line to keep."""

    def warning(self, text: str) -> None:
        """A line that calls for action."""

    def state(self, state: DownloadState) -> None:
        """New progress, which replaces the progress before."""

    def clear(self) -> None:
        """The progress shown is no longer current."""


class RetryableError(Exception):
    """A temporary failure. retry_after: seconds that the server asks to wait, None if it does not."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message, self.retry_after = message, retry_after


class RetryPolicy:
    """Waits between attempts, longer after each failure, and notes it.

    waits: seconds before each attempt after the first.
    """

    def __init__(self, listener: Listener, waits: tuple[float, ...]) -> None:
        self._listener, self._waits = listener, waits
        self._failed = 0

    def run(self, work: Callable[[], Result]) -> Result:
        """The result of `work`, called again after each RetryableError. Raises what `wait` raises."""
        while True:
            try:
                result = work()
            except RetryableError as error:
                self.wait(error)
            else:
                self.reset()
                return result

    def reset(self) -> None:
        """Start over with the first wait: an attempt made progress."""
        self._failed = 0

    def wait(self, error: RetryableError) -> None:
        """Wait before the next attempt. Raises NetworkError after too many, or if the wait is too long."""
        if self._failed >= len(self._waits):
            again = "try again later; what has arrived is kept, and the same command resumes the download"
            raise NetworkError(error.message, again) from None
        seconds = self._waits[self._failed] if error.retry_after is None else error.retry_after
        if seconds > _LONGEST_WAIT:
            message = f"{error.message}: it asks to wait {seconds:.0f} s"
            raise NetworkError(message, "try again then") from None
        self._failed += 1
        self._listener.clear()
        self._listener.note(f"{error.message}; trying again in {seconds:g} s")
        sleep(seconds)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait by the Retry-After header of a refusal, None where it is missing or says nothing.

    A date is compared with the Date of the same answer: a wrong clock here does not matter. Without that it
    is compared with the time of day here.
    """
    text = headers.get("Retry-After", "").strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    until = _time_of_day(text)
    if until is None:
        return None
    now = _time_of_day(headers.get("Date", "").strip())
    return max(0.0, until - (time.time() if now is None else now))


def _time_of_day(text: str) -> float | None:
    import email.utils

    try:
        return email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
