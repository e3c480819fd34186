"""When the work of the engine's thread counts as hung."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllama import processor_time
from specllama.config.store import Store
from specllama.worker import engine_core
from specllama.worker.engine_core import EngineCore


def test_a_step_that_other_programs_slow_down_is_no_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it uses of the processor counts, and standing still."""
    now, used = [1000.0], [5.0]

    class Meter(processor_time.WorkMeter):
        def __init__(self, source: processor_time.Used) -> None:
            super().__init__(source, lambda: now[0])

    monkeypatch.setattr(engine_core, "WorkMeter", Meter)
    monkeypatch.setattr(engine_core, "of_thread", lambda _: lambda: used[0])
    core = EngineCore(lambda _: None, Store(tmp_path))
    assert core.hang() == (0.0, 30.0)

    def hangs_after(share: float, busy_since: float) -> float | None:
        """Seconds of one step that uses so much of a processor; None if it may take a thousand."""
        core.busy_since = busy_since
        for _ in range(2000):
            busy_for, allowed = core.hang()
            if busy_for > allowed:
                return now[0] - busy_since
            now[0] += 0.5
            used[0] += 0.5 * share
        return None

    assert hangs_after(0.02, now[0]) is None, "other programs run"
    assert hangs_after(1.0, now[0]) == pytest.approx(30, abs=1), "it works on and on"
    assert hangs_after(0.0, now[0]) == pytest.approx(30, abs=1), "it waits for nothing"
    core.busy_since = None
    assert core.hang() == (0.0, 30.0)
