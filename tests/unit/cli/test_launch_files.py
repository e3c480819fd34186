"""Files and settings that clients read."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllama.cli.launch import files
from specllama.cli.launch.clients.opencode import merged
from specllama.errors import ResourceError


def test_objects_are_merged() -> None:
    old = {"a": {"b": 1, "c": [1]}, "d": 2}
    assert merged(old, {"a": {"c": 3}, "d": {"e": 4}}) == {"a": {"b": 1, "c": 3}, "d": {"e": 4}}
    assert old == {"a": {"b": 1, "c": [1]}, "d": 2}


def test_files_are_the_users_alone(tmp_path: Path) -> None:
    own = tmp_path / "new" / "own"
    for text in ("1", "2"):
        files.write(own, text)
        assert own.read_text("utf-8") == text
    assert own.stat().st_mode & 0o777 == 0o600
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["new", "own"]
    with pytest.raises(ResourceError, match="cannot be written"):
        files.write(own / "below", "")
