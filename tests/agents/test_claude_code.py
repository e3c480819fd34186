"""Claude Code against /v1/messages: two turns of its shell tool, then a text."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.agents import LINE, SECONDS, needs, workplace
from tests.support.two_turns import END, TwoTurns

pytestmark = needs("claude")


def test_two_turns_of_a_tool(tmp_path: Path) -> None:
    script = TwoTurns("Bash", command=LINE, description="write")
    with workplace(tmp_path, script, "--alias", "*") as place:
        out = place.run(
            "claude", "-p", "write to the file", "--tools", "Bash", "--allowedTools", "Bash",
            "--output-format", "json",
            ANTHROPIC_BASE_URL=place.url, ANTHROPIC_AUTH_TOKEN="unused", CLAUDE_CONFIG_DIR=str(place.home),
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", API_TIMEOUT_MS=str(SECONDS * 1000),
            CLAUDE_CODE_MAX_RETRIES="0",
        )  # fmt: skip
        answer = json.loads(out)
        assert END in answer["result"]
        assert (place.file, script.results) == ("one\none\n", [0, 1, 2])
        assert answer["usage"]["cache_read_input_tokens"] > answer["usage"]["input_tokens"]
