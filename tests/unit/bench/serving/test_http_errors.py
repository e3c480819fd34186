"""How long a client waits after a 429."""

from __future__ import annotations

import time

import pytest

from specllama.bench.serving import client


@pytest.mark.parametrize(
    ("after", "low", "high"),
    [("", 1, 1), ("0", 0.1, 0.1), ("3", 3, 3), ("99999999999", 10, 10), ("soon", 1, 1), ("-5", 1, 1)],
)
def test_retry_after_is_obeyed_within_limits(after: str, low: float, high: float) -> None:
    assert low <= client.retry_seconds({"Retry-After": after} if after else {}) <= high


def test_retry_after_may_be_a_date() -> None:
    import email.utils

    assert 1 < client.retry_seconds({"Retry-After": email.utils.formatdate(time.time() + 5)}) <= 5
    assert client.retry_seconds({"Retry-After": email.utils.formatdate(0)}) == 0.1
