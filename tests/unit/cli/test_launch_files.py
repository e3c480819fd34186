"""Changes of files that clients read: what is not `launch`'s own stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllama.cli.launch import files
from specllama.cli.launch.client import ClientFile
from specllama.cli.launch.files import merged, yaml_item
from specllama.errors import ResourceError, UsageError

ITEM = {"id": "ours", "url": "http://127.0.0.1:1"}
OURS = '- id: "ours"\n  url: "http://127.0.0.1:1"\n'
change = yaml_item("id", ITEM)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, OURS),
        ("", OURS),
        ("[]\n", OURS),
        ("# mine\n", "# mine\n" + OURS),
        ("- id: a\n", "- id: a\n" + OURS),
        ("- id: a", "- id: a\n" + OURS),
        (OURS, OURS),
        ("- id: ours\n  url: old\n- id: b # kept\n", OURS + "- id: b # kept\n"),
        ("-\n  id: a\n- id: ours\n", "-\n  id: a\n" + OURS),
        ("---\n- id: a\n", "---\n- id: a\n" + OURS),
    ],
)
def test_an_item_of_a_list(before: str | None, after: str) -> None:
    assert change(before) == after
    assert change(after) == after


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("id: a\n", "not a list"),
        ("- [\n", "not YAML"),
        ("- a\n--- \n- b\n", "not YAML"),
        ("[{id: a}]\n", "cannot be extended"),
        (" - id: a\n", "cannot be extended"),
        ("- |\n  a\n- id: b\n...\n", "not YAML"),
    ],
)
def test_a_text_that_cannot_be_changed(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        change(text)


def test_objects_are_merged() -> None:
    old = {"a": {"b": 1, "c": [1]}, "d": 2}
    assert merged(old, {"a": {"c": 3}, "d": {"e": 4}}) == {"a": {"b": 1, "c": 3}, "d": {"e": 4}}
    assert old == {"a": {"b": 1, "c": [1]}, "d": 2}


def test_the_first_copy_stays_and_links_stay_links(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("1", "utf-8")
    real.chmod(0o640)
    link.symlink_to(real)
    copy = tmp_path / "real.before-specllama"
    assert files.write(ClientFile(link, lambda text: f"{text}2")) == copy
    assert files.write(ClientFile(link, lambda text: f"{text}3")) is None
    assert (link.is_symlink(), real.read_text("utf-8"), copy.read_text("utf-8")) == (True, "123", "1")
    assert real.stat().st_mode & 0o777 == 0o640
    own = tmp_path / "new" / "own"
    for text in ("1", "2"):
        assert files.write(ClientFile(own, lambda _, text=text: text, own=True)) is None  # type: ignore[misc]
    assert own.stat().st_mode & 0o777 == 0o600
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["link", "new", "own", "real", copy.name]


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="cannot be read"):
        files.write(ClientFile(tmp_path / "file", lambda _: ""))
    with pytest.raises((UsageError, ResourceError)):
        files.write(ClientFile(tmp_path / "file" / "below", lambda _: ""))
    assert (tmp_path / "file").read_bytes() == b"\xff"
