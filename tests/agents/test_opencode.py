"""opencode against chat/completions: two turns of its shell tool, then a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.agents import LINE, MODEL, needs, workplace
from tests.support.two_turns import END, TwoTurns

pytestmark = needs("opencode")


def settings(url: str) -> dict[str, Any]:
    """The contents of opencode.json for a server."""
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "specllama",
        "options": {"baseURL": f"{url}/v1", "apiKey": "unused"},
        "models": {MODEL: {"name": MODEL, "limit": {"context": 32768, "output": 1024}}},
    }
    return {
        "provider": {"specllama": provider},
        "model": f"specllama/{MODEL}",
        "small_model": f"specllama/{MODEL}",
        "share": "disabled",
        "autoupdate": False,
        "permission": "allow",
    }


def test_two_turns_of_a_tool(tmp_path: Path) -> None:
    script = TwoTurns("bash", command=LINE, description="write")
    with workplace(tmp_path, script) as place:
        (place.work / "opencode.json").write_text(json.dumps(settings(place.url)), "utf-8")
        out = place.run("opencode", "run", "--pure", "write to the file", OPENCODE_DISABLE_MODELS_FETCH="1")
        assert END in out
        assert (place.file, script.results) == ("one\none\n", [0, 1, 2])
        assert {path for path, _ in place.proxy.sent} == {"/v1/chat/completions"}
