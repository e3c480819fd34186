"""Claude Code's command line against /v1/messages: two turns of its own tools, then a text. It is not among
the packages that tests install: `npm install -g @anthropic-ai/claude-code`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.rewriting_proxy import RewritingProxy
from tests.support.serving import Server

CLAUDE = shutil.which("claude")
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        CLAUDE is None, reason="there is no claude on PATH: npm install -g @anthropic-ai/claude-code"
    ),
]
SECONDS = 500


def pinned(**arguments: str) -> dict[str, Any]:
    properties = {name: {"const": value} for name, value in arguments.items()}
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


def results(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The results of tools in a request."""
    blocks = (b for m in body["messages"] if isinstance(m["content"], list) for b in m["content"])
    return [block for block in blocks if block["type"] == "tool_result"]


def test_two_turns_of_tools(tmp_path: Path) -> None:
    home, work, own = (tmp_path / name for name in ("home", "work", "server"))
    for folder in (home, work, own):
        folder.mkdir()
    file = str(work / "file")
    schemas = {"Write": pinned(file_path=file, content="one"), "Read": pinned(file_path=file)}

    def script(_path: str, body: dict[str, Any]) -> None:
        """A call of Write, one of Read, then a text."""
        for tool in body["tools"]:
            tool["input_schema"] = schemas[tool["name"]]
        n = len(results(body))
        if n < 2:
            name = ("Write", "Read")[n]
            body["tool_choice"] = {"type": "tool", "name": name, "disable_parallel_tool_use": True}
        else:
            body["tool_choice"] = {"type": "none"}
            body["output_config"] = {"format": {"type": "json_schema", "schema": {"const": "all done"}}}

    flags = "--draft-max", "4", "-c", "32768", "-np", "1"
    with Server(own, *flags) as server, RewritingProxy(server, script, SECONDS) as proxy:
        environment = {
            "PATH": os.environ["PATH"], "HOME": str(home), "ANTHROPIC_BASE_URL": proxy.url,
            "ANTHROPIC_AUTH_TOKEN": "unused", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1", "DISABLE_ERROR_REPORTING": "1",
        }  # fmt: skip
        done = subprocess.run(
            [
                str(CLAUDE), "-p", "write to the file, then read it", "--model", "pydoc-target",
                "--tools", "Read,Write", "--permission-mode", "acceptEdits", "--output-format", "json",
                "--system-prompt", "You are a helpful assistant.",
            ],
            cwd=work, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout, done.stderr, server.lines[-5:])
        answer = json.loads(done.stdout)
        assert (answer["result"], answer["is_error"]) == ('"all done"', False)
        assert Path(file).read_text("utf-8") == "one"
        requests = [body for path, body in proxy.sent if path.startswith("/v1/messages")]
        assert len(requests) == 3
        assert [bool(block.get("is_error")) for block in results(requests[-1])] == [False, False]
        assert "one" in json.dumps(results(requests[-1])[1])
        assert answer["usage"]["cache_read_input_tokens"] > answer["usage"]["input_tokens"]
