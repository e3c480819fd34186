"""When a model whose loads have failed is tried again."""

from __future__ import annotations

from specllama.errors import EngineError
from specllama.server.supervisor import DELAYS, LoadBackoff

ERROR = EngineError("it crashed")


def test_intervals_grow_with_consecutive_failures() -> None:
    backoff, now = LoadBackoff(), 1000.0
    assert backoff.refusal(now) is None
    for n, delay in enumerate((*DELAYS, DELAYS[-1]), 1):
        backoff.failed(ERROR, now)
        if delay:
            refusal = backoff.refusal(now)
            assert refusal is not None
            assert (refusal.http_status, refusal.details["retry_after"]) == (503, delay)
            assert refusal.message == (
                f"the last {n} loads failed, and it is tried again in {delay:.0f} s: it crashed"
            )
            late = backoff.refusal(now + delay - 0.2)
            assert late is not None
            assert late.details["retry_after"] == 1
        now += delay
        assert backoff.refusal(now) is None


def test_a_successful_load_resets_the_count() -> None:
    backoff = LoadBackoff()
    for _ in range(3):
        backoff.failed(ERROR, 0.0)
    assert backoff.refusal(0.0) is not None
    backoff.succeeded()
    assert backoff.refusal(0.0) is None
    backoff.failed(ERROR, 0.0)
    assert backoff.refusal(0.0) is None, "the first failure of a row is tried again at once"
