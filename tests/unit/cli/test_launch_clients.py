"""The settings of clients for a server."""

from __future__ import annotations

import pytest

from specllama.cli.launch.client import ModelServer
from specllama.cli.launch.clients.claude import CLAUDE


@pytest.mark.parametrize(
    ("n_ctx", "expected"), [(0, None), (32768, None), (65536, "65536"), (131072, "131072")]
)
def test_claude_code_knows_a_context_in_which_its_own_reserve_leaves_room(
    n_ctx: int, expected: str | None
) -> None:
    settings = CLAUDE.settings(ModelServer("http://127.0.0.1:1", "main", n_ctx=n_ctx), {})
    assert settings.variables.get("CLAUDE_CODE_MAX_CONTEXT_TOKENS") == expected
