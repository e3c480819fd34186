"""`run` with a prediction and with a corpus: the text stays, and bad input is one line."""

from __future__ import annotations

import pytest

from tests.support.command import Command, assert_error

LINE = ("run", "--raw", "-p", "def read(", "-md", "none", "-n", "40", "--temp", "0", "--json")


def test_known_text_is_drafted_from_and_changes_nothing(command: Command) -> None:
    plain = command(*LINE, "--draft-max", "0").json
    folder = command.home / "notes"
    folder.mkdir()
    (folder / "a.txt").write_text(f"def read({plain['text']}\n")
    (folder / "b.bin").write_bytes(b"\0\1")
    predicted = command(*LINE, "--draft-max", "6", "--prediction", "notes/a.txt").json
    result = command(*LINE, "--draft-max", "6", "--memory-from", "notes")
    assert predicted["text"] == result.json["text"] == plain["text"]
    assert predicted["drafted_by"]["prediction"] > 20
    assert result.json["drafted_by"]["corpus"] > 20
    assert "--memory-from: 1 file, " in result.err
    assert "(left out: 1 without text)" in result.err


@pytest.mark.parametrize(
    ("flags", "code", "needle"),
    [
        (("--prediction", "gone.txt"), 3, "--prediction: there is no file gone.txt"),
        (("--prediction", "."), 2, "--prediction: . cannot be read"),
        (("--prediction", ""), 2, "--prediction needs the path of a file"),
        (("--memory-from", "gone"), 3, "--memory-from: there is no file gone"),
        (("--memory-from", ""), 2, "--memory-from needs the path of a file"),
    ],
)
def test_bad_paths(shared: Command, flags: tuple[str, ...], code: int, needle: str) -> None:
    assert_error(shared(*LINE, *flags), code, needle)
