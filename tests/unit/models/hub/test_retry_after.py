"""Retry-After: seconds or a date, by the clock of the server that sends it."""

from __future__ import annotations

import email.utils
import time

import pytest

from specllama.models.progress import retry_after

SENT = 1_700_000_000


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("", None), ("soon", None), ("-5", None), ("0", 0.0), (" 30 ", 30.0), ("1" * 20, None)],
)
def test_seconds(text: str, seconds: float | None) -> None:
    assert retry_after({"Retry-After": text}) == seconds
    assert retry_after({}) is None


@pytest.mark.parametrize("ours", [0.0, SENT - 86400, SENT + 86400])
def test_a_date_counts_from_the_date_of_the_answer(ours: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """However wrong the clock of this machine is."""
    monkeypatch.setattr(time, "time", lambda: ours)
    headers = {"Retry-After": email.utils.formatdate(SENT + 20), "Date": email.utils.formatdate(SENT)}
    assert retry_after(headers) == 20
    headers["Retry-After"] = email.utils.formatdate(SENT - 20)
    assert retry_after(headers) == 0


def test_without_a_date_of_the_answer_our_clock_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: SENT - 7.0)
    for date in ({}, {"Date": "yesterday"}):
        assert retry_after({"Retry-After": email.utils.formatdate(SENT), **date}) == 7
