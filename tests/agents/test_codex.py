"""Codex's command line against /v1/responses: two turns of its own tool, then a text."""

from __future__ import annotations

from pathlib import Path

from tests.support.agents import LINE, MODEL, needs, workplace
from tests.support.two_turns import END, TwoTurns

pytestmark = needs("codex")
CONFIG = f"""
model = "{MODEL}"
model_provider = "specllama"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.specllama]
name = "specllama"
base_url = "%s/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""


def test_two_turns_of_a_tool(tmp_path: Path) -> None:
    script = TwoTurns("exec_command", cmd=LINE)
    with workplace(tmp_path, script) as place:
        (place.home / "config.toml").write_text(CONFIG % place.url, "utf-8")
        out = place.run(
            "codex", "exec", "--skip-git-repo-check", "write to the file", CODEX_HOME=str(place.home)
        )
        assert END in out
        assert (place.file, script.results) == ("one\none\n", [0, 1, 2])
        (*_, (_, last)) = place.proxy.sent
        kinds = [item["type"] for item in last["input"]]
        assert kinds.count("function_call") == kinds.count("function_call_output") == 2
