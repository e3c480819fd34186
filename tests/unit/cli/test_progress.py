"""Progress where lines cannot be redrawn: a line every few seconds, and one for each new stage."""

from __future__ import annotations

import pytest

from specllama.cli.progress import Progress


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_a_line_is_shown_only_after_the_interval(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(delay=0.0, every=3600.0)
    progress._last = -7200.0
    for share in (0.1, 0.2, 0.3):
        progress.show("loading", share)
    assert shown(capsys) == ["loading  10%"]


def test_a_new_stage_is_shown_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(delay=0.0, every=3600.0)
    progress._last = -7200.0
    for share, stage in ((0.1, "a"), (0.2, "a"), (0.3, "b"), (0.4, "b"), (0.5, "c")):
        progress.show("tuning", share, f"{stage}, soon", stage)
    assert shown(capsys) == ["tuning  10% a, soon", "tuning  30% b, soon", "tuning  50% c, soon"]


def test_nothing_is_shown_before_the_delay(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(delay=3600.0)
    progress.show("tuning", 0.5, stage="a")
    assert shown(capsys) == []


def test_without_an_interval_there_are_no_lines(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(delay=0.0, every=None)
    progress._last = -7200.0
    progress.show("loading", 0.5, stage="a")
    assert shown(capsys) == []
