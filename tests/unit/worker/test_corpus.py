"""The corpus: which files are read, within which bounds, and when."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from specllama.drafters.history import CorpusDrafter
from specllama.drafters.ngrams import RequestHistory
from specllama.worker import corpus
from specllama.worker.corpus import Corpus, CorpusCounts, pieces, read_texts

LONG = 60.0  # seconds


def texts_of(*paths: Path) -> tuple[set[str], CorpusCounts]:
    counts = CorpusCounts()
    return set(read_texts([str(path) for path in paths], counts)), counts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two texts, a picture, and more that is no text."""
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "a.py").write_text("print('a')\n")
    (root / "b.txt").write_text("b\n", encoding="utf-16")
    (root / "picture.png").write_bytes(b"\x89PNG\0\0\1\2")
    (root / "latin.txt").write_bytes(b"caf\xe9")
    (root / ".hidden").write_text("hidden")
    (root / ".secret").mkdir()
    (root / ".secret" / "key").write_text("secret")
    (tmp_path / "outside.txt").write_text("outside")
    return root


def test_a_folder_is_read_without_what_is_hidden_or_no_text(folder: Path) -> None:
    texts, counts = texts_of(folder)
    assert texts == {"print('a')\n", "b\n"}
    assert (counts.n_files, counts.no_text, counts.unreadable, counts.limit) == (2, 2, 0, "")


def test_a_file_that_is_named_is_read_through_a_link_too(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder / "src" / "a.py")
    assert texts_of(link, folder / ".hidden")[0] == {"print('a')\n", "hidden"}


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    (folder / "out.txt").symlink_to(tmp_path / "outside.txt")
    (folder / "up").symlink_to(tmp_path)
    (folder / "src" / "loop").symlink_to(folder)
    (folder / "gone").symlink_to(tmp_path / "nothing")
    texts, counts = texts_of(folder)
    assert texts == {"print('a')\n", "b\n"}
    assert counts.links == 4


def test_what_cannot_be_read_is_counted(folder: Path) -> None:
    os.mkfifo(folder / "fifo")
    texts, counts = texts_of(folder, folder / "gone")
    assert len(texts) == 2
    assert counts.unreadable == 2


@pytest.mark.parametrize(
    ("bound", "value", "limit"),
    [("MOST_FILES", 1, "1 files"), ("MOST_NAMES", 2, "2 names"), ("MOST_BYTES", 4, "0 MiB")],
)
def test_the_reading_is_bounded(
    folder: Path, monkeypatch: pytest.MonkeyPatch, bound: str, value: int, limit: str
) -> None:
    monkeypatch.setattr(corpus, bound, value)
    texts, counts = texts_of(folder)
    assert len(texts) <= 1
    assert counts.limit == limit
    assert f"; the rest is beyond {limit}" in counts.line()


def test_a_large_file_is_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "MOST_FILE_BYTES", 8)
    texts, counts = texts_of(folder)
    assert texts == {"b\n"}
    assert counts.too_large == 1


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)


def test_of_a_repository_the_tracked_files_are_read(folder: Path, tmp_path: Path) -> None:
    git(folder, "init", "-q")
    (folder / "src" / "out").symlink_to(tmp_path / "outside.txt")
    git(folder, "add", "src", ".hidden")
    assert texts_of(folder) == (
        {"print('a')\n", "hidden"},
        CorpusCounts(n_files=2, n_bytes=17, links=1),
    )
    assert texts_of(folder / "src")[0] == {"print('a')\n"}
    (folder / "built").mkdir()
    (folder / "built" / "c.txt").write_text("c")
    assert texts_of(folder / "built")[0] == {"c"}, "a folder of which nothing is tracked is read as any other"


def test_a_repository_runs_nothing(folder: Path, tmp_path: Path) -> None:
    git(folder, "init", "-q")
    git(folder, "add", "b.txt")
    ran, hook = tmp_path / "ran", tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ntouch {ran}\n")
    hook.chmod(0o755)
    git(folder, "config", "core.fsmonitor", str(hook))
    assert texts_of(folder)[0] == {"b\n"}
    assert not ran.exists()


def test_without_git_folders_are_walked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(folder, "init", "-q")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert texts_of(folder)[0] == {"print('a')\n", "b\n"}


def test_pieces_end_with_lines_and_lose_nothing() -> None:
    for text in ("", "short", "a line\n" * 7, "x" * 35, "x" * 14 + "\n" + "y" * 3):
        made = list(pieces(text, 10))
        assert "".join(made) == text
        assert all(0 < len(piece) <= 10 for piece in made)
    assert list(pieces("a line\n" * 3, 10)) == ["a line\n"] * 3


@pytest.fixture
def opened(folder: Path) -> Callable[..., tuple[Corpus, RequestHistory, list[str]]]:
    def make(bits: int = 12, text: str = "") -> tuple[Corpus, RequestHistory, list[str]]:
        if text:
            (folder / "src" / "a.py").write_text(text)
        history, lines = RequestHistory(bits), list[str]()
        return Corpus([str(folder)], history, lambda t: list(t.encode()), lines.append), history, lines

    return make


def test_it_is_read_piece_by_piece_and_drafted_from(opened) -> None:
    one, history, lines = opened()
    assert one.due_in == 0.0
    assert history.pending is None, "nothing is read before it is asked for"
    one.read(LONG)
    assert one.due_in is None
    assert lines == ["\ue000memory_from\ue001: 2 files, 13 tokens to draft from (left out: 2 without text)"]
    drafter = CorpusDrafter(history)
    drafter.set_scope(0, None)
    drafter.start(0, list(b"x = pri"))
    assert bytes(p.token for p in drafter.propose(0, 20)) == b"nt('a')\n"
    one.read(LONG)
    assert len(lines) == 1


def test_steps_do_not_wait_for_the_thread(opened) -> None:
    one, _, lines = opened()
    while one.due_in is not None:
        one.step()
    assert len(lines) == 1


def test_no_more_than_the_ring_holds(opened) -> None:
    one, history, lines = opened(6, "0123456789\n" * 30)
    one.read(LONG)
    assert one.counts.n_tokens < 64
    assert "beyond 64 tokens" in lines[0]
    assert len(history.ring("")) <= 64 + 2


def test_reading_ends_with_the_time(opened, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(corpus, "running_time", lambda: float(next(clock)))
    one, _, lines = opened(18, "line\n" * 20_000)
    one.read(1.0)
    assert "beyond 1 s of reading" in lines[0]
    assert one.due_in is None
