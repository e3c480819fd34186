"""Codex's command line against /v1/responses: two turns of its own tool, then a text. It is not among the
packages that tests install: `npm install -g @openai/codex`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.rewriting_proxy import RewritingProxy
from tests.support.serving import Server

CODEX = shutil.which("codex")
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(CODEX is None, reason="there is no codex on PATH: npm install -g @openai/codex"),
]
SECONDS = 500
CONFIG = """
model = "pydoc-target"
model_provider = "specllama"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.specllama]
name = "specllama"
base_url = "{url}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""


def script(_path: str, body: dict[str, Any]) -> None:
    """Two calls of exec_command, then a text."""
    pinned = {"type": "object", "properties": {"cmd": {"const": "echo one >> file"}}, "required": ["cmd"]}
    for tool in body["tools"]:
        if tool.get("name") == "exec_command":
            tool["parameters"] = pinned | {"additionalProperties": False}
    body["parallel_tool_calls"] = False
    if sum(item.get("type") == "function_call_output" for item in body["input"]) < 2:
        body["tool_choice"] = {"type": "function", "name": "exec_command"}
    else:
        body["tool_choice"] = "none"
        body["text"] = {"format": {"type": "json_schema", "name": "end", "schema": {"const": "all done"}}}


def test_two_turns_of_a_tool(tmp_path: Path) -> None:
    home, work, own = (tmp_path / name for name in ("home", "work", "server"))
    for folder in (home, work, own):
        folder.mkdir()
    flags = "--draft-max", "4", "-c", "32768", "-np", "1"
    with Server(own, *flags) as server, RewritingProxy(server, script, SECONDS) as proxy:
        (home / "config.toml").write_text(CONFIG.format(url=proxy.url), "utf-8")
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "CODEX_HOME": str(home)}
        done = subprocess.run(
            [str(CODEX), "exec", "--skip-git-repo-check", "write to the file"],
            cwd=work, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "all done" in done.stdout
        assert (work / "file").read_text("utf-8") == "one\none\n"
        requests = [body for path, body in proxy.sent if path == "/v1/responses"]
        assert len(requests) == 3
        kinds = [item["type"] for item in requests[-1]["input"]]
        assert kinds.count("function_call") == kinds.count("function_call_output") == 2
