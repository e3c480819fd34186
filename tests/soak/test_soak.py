"""A short soak test: valid and invalid requests, dropped connections, killed engines. SOAK_SECONDS sets its
length; `python -m tests.soak` is the long one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.soak.soak import MB, Limits, Sample, Soak
from tests.support.health import HealthReply, quantile

SECONDS = float(os.environ.get("SOAK_SECONDS", "45"))
# A machine that runs tests is too busy for the strict limits. In so short a time an engine also receives
# new kinds of requests, each of which needs some MB once.
BUSY = Limits(health_ms=2000, dead_seconds=5, growth_mb=10, steady_mb=3)


@pytest.mark.alone
@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.timeout(1.05 * SECONDS + 200)
def test_a_short_soak_has_no_violations(tmp_path: Path) -> None:
    found = Soak(tmp_path, SECONDS, n_clients=8, limits=BUSY).run()
    assert found["violations"] == [], found
    ends = found["requests"]
    assert min(ends[end] for end in ("text", "left", "bad", "error")) > 0, ends
    assert len(found["kills"]) >= 3
    assert all(kill["back_seconds"] is not None for kill in found["kills"])


def soak(**fields) -> Soak:
    made = Soak(Path(), 90.0, 1)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


class TestVerdict:
    """The verdict on samples from second 0; one engine process runs from second 54 to 90."""

    def test_growth_of_memory_is_a_violation(self) -> None:
        found: list[str] = []
        grown = [Sample(t, 100 * MB, (200 + t // 5) * MB, 7) for t in range(90)]
        figures = soak(samples=grown)._memory(0, found)
        assert figures["front"]["growth_mb"] == 0
        assert figures["engine"]["growth_mb"] == pytest.approx(6, abs=1)
        assert found == [f"the engine process grew by {figures['engine']['growth_mb']:.1f} MB"]

    def test_memory_that_grows_in_steps_is_not_a_leak(self) -> None:
        kinds = {
            "once": lambda t: 8 * (t > 70),
            "in two steps": lambda t: 4 * (t > 60) + 4 * (t > 80),
            "steadily": lambda t: (t - 54) / 8,
            "much at once": lambda t: 21 * (t > 70),
        }
        found = dict[str, list[str]]()
        for kind, mb in kinds.items():
            samples = [Sample(t, MB, round((200 + mb(t)) * MB), 7) for t in range(90)]
            soak(samples=samples, limits=BUSY)._memory(0, found.setdefault(kind, []))
        assert found["once"] == found["in two steps"] == []
        assert "grows steadily, 3.9" in found["steadily"][0]
        assert "grew by 21" in found["much at once"][0]

    def test_an_engine_that_died_is_a_violation(self) -> None:
        found: list[str] = []
        soak(samples=[Sample(t, MB, MB, 7 + t // 60) for t in range(90)])._memory(0, found)
        assert "did not survive" in found[0]

    def test_slow_or_missing_health_replies_are_violations(self) -> None:
        found: list[str] = []
        replies = [HealthReply(t / 10, 200, 0.2 if t > 880 else 0.01) for t in range(900)]
        figures = soak(replies=replies)._health(found)
        assert (figures["n"], figures["p50_ms"], figures["p99_ms"]) == (900, 10, 200)
        assert found == ["/health took 200.0 ms (p99)"]
        found.clear()
        soak(replies=[HealthReply(0, 0, 1), HealthReply(1, 200, 0)])._health(found)
        assert found == ["/health was not answered 1 times", "/health was requested only 2 times"]

    def test_time_until_health_notices_a_kill(self) -> None:
        found: list[str] = []
        replies = [HealthReply(t / 10, 503 if 12 <= t < 20 else 200, 0.01) for t in range(50)]
        (kill, late) = soak(kills=[1.0, 4.0], replies=replies)._kill_figures(found)
        assert kill["dead_seconds"] == pytest.approx(0.21)
        assert kill["back_seconds"] == pytest.approx(1.0)
        assert late == {"dead_seconds": None, "back_seconds": None}
        assert found == ["/health answered 503 never after a kill"]

    def test_kills_are_spread_over_the_run(self) -> None:
        for seconds in (60.0, 180.0, 1800.0, 6000.0):
            made = soak(seconds=seconds)
            times = made._kill_times()
            assert len(times) >= 3
            assert all(t < seconds / 3 for t in times[:-1])
            assert times[-1] > seconds

    def test_quantiles(self) -> None:
        assert quantile([], 0.99) == 0
        assert quantile([3, 1, 2], 0.5) == 2
        assert quantile(range(1000), 0.99) == 990
