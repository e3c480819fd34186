"""The Retry-After header of a refusal, in seconds. Knows no HTTP library."""

from __future__ import annotations

import email.utils
import re
import time
from collections.abc import Mapping

_WHOLE = re.compile(r"\d{1,19}", re.ASCII)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, None where the header is missing or says nothing.

    A date is compared with the Date of the same answer: a wrong clock here does not matter. Without that it
    is compared with the time of day here.
    """
    text = headers.get("Retry-After", "").strip()
    if _WHOLE.fullmatch(text):
        return float(text)
    until = _time_of_day(text)
    if until is None:
        return None
    now = _time_of_day(headers.get("Date", "").strip())
    return max(0.0, until - (time.time() if now is None else now))


def _time_of_day(text: str) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
