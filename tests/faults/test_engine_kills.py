"""kill -9 of engine processes that keep prompts on disk, in every phase."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kill_campaign import PHASES, run


@pytest.mark.parametrize("n", [5, pytest.param(100, marks=[pytest.mark.long, pytest.mark.timeout(1200)])])
def test_killed_engines_leave_right_texts_and_a_clean_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path / "cache"))
    met = run(n, n, tmp_path)
    assert n < 100 or set(met) == set(PHASES), met
