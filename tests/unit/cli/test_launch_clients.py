"""The settings of clients for a server, and files that they read."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllama.cli.launch import command
from specllama.cli.launch.client import ModelServer
from specllama.cli.launch.clients.claude import CLAUDE
from specllama.cli.launch.clients.opencode import merged
from specllama.errors import ResourceError


@pytest.mark.parametrize(
    ("n_ctx", "expected"), [(0, None), (32768, None), (65536, "65536"), (131072, "131072")]
)
def test_claude_code_knows_a_context_in_which_its_own_reserve_leaves_room(
    n_ctx: int, expected: str | None
) -> None:
    settings = CLAUDE.settings(ModelServer("http://127.0.0.1:1", "main", n_ctx=n_ctx), {})
    assert settings.variables.get("CLAUDE_CODE_MAX_CONTEXT_TOKENS") == expected


def test_objects_are_merged() -> None:
    old = {"a": {"b": 1, "c": [1]}, "d": 2}
    assert merged(old, {"a": {"c": 3}, "d": {"e": 4}}) == {"a": {"b": 1, "c": 3}, "d": {"e": 4}}
    assert old == {"a": {"b": 1, "c": [1]}, "d": 2}


def test_files_are_the_users_alone(tmp_path: Path) -> None:
    own = tmp_path / "new" / "own"
    for text in ("1", "2"):
        command.write(own, text)
        assert own.read_text("utf-8") == text
    assert own.stat().st_mode & 0o777 == 0o600
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["new", "own"]
    with pytest.raises(ResourceError, match="cannot be written"):
        command.write(own / "below", "")
