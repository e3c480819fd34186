"""Continue's command line, as a client of OpenAI's API and of llama.cpp's: two turns of its shell tool."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.agents import LINE, MODEL, needs, workplace
from tests.support.two_turns import END, TwoTurns

pytestmark = needs("cn")
CONFIG = f"""
name: test
version: 0.0.1
schema: v1
models:
  - name: {MODEL}
    model: {MODEL}
    provider: %s
    apiBase: %s
    apiKey: unused
    roles: [chat]
    capabilities: [tool_use]
"""


@pytest.mark.parametrize(
    ("provider", "base", "path"),
    [("openai", "/v1", "/v1/chat/completions"), ("llama.cpp", "", "/chat/completions")],
)
def test_two_turns_of_a_tool(tmp_path: Path, provider: str, base: str, path: str) -> None:
    script = TwoTurns("Bash", command=LINE)
    with workplace(tmp_path, script) as place:
        config = place.home / "config.yaml"
        config.write_text(CONFIG % (provider, place.url + base), "utf-8")
        out = place.run(
            "cn", "-p", "--auto", "--config", str(config), "write to the file",
            CONTINUE_GLOBAL_DIR=str(place.home), CONTINUE_CLI_ENABLE_TELEMETRY="0",
            CONTINUE_TELEMETRY_ENABLED="0",
        )  # fmt: skip
        assert END in out
        assert (place.file, script.results) == ("one\none\n", [0, 1, 2])
        assert {sent for sent, _ in place.proxy.sent} == {path}
