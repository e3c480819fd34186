"""Progress: redrawn on a terminal, and none elsewhere."""

from __future__ import annotations

import pytest

from specllama.cli import console
from specllama.cli.progress import DownloadProgress, Progress
from specllama.clock import running_time
from specllama.models.progress import DownloadState


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "supports_ansi", lambda _: True)


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The drawings that stderr got."""
    return [text.strip() for text in capsys.readouterr().err.split("\r\x1b[2K")[1:] if text]


def show(progress: Progress, *stages: str) -> None:
    for n, stage in enumerate(stages):
        progress.show("tuning", n / 10, f"{stage}, soon", stage)


@pytest.mark.usefixtures("terminal")
def test_a_line_is_redrawn_only_after_the_interval(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(delay=0.0)
    for last, n_drawn in ((-7200.0, 1), (running_time() + 7200, 0), (-7200.0, 1)):
        progress._last = last
        show(progress, "a")
        assert len(shown(capsys)) == n_drawn


@pytest.mark.usefixtures("terminal")
def test_a_new_stage_is_shown_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    show(Progress(delay=0.0), "a", "a", "b", "b", "c")
    assert [text.split()[-2] for text in shown(capsys)] == ["a,", "b,", "c,"]


@pytest.mark.usefixtures("terminal")
def test_nothing_is_shown_before_the_delay(capsys: pytest.CaptureFixture[str]) -> None:
    show(Progress(delay=3600.0), "a")
    assert shown(capsys) == []


def test_a_pipe_gets_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(delay=0.0) as progress:
        show(progress, "a", "b")
        progress.loading("target", 0.5)
    download = DownloadProgress()
    for phase in ("downloading", "verifying"):
        download.state(DownloadState(phase, "a.gguf", 1, 2))
    download.clear()
    assert capsys.readouterr().err == ""
