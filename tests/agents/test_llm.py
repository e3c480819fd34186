"""The llm command against chat/completions and /v1/responses: two turns of a Python function, then a text."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.agents import MODEL, needs, workplace
from tests.support.two_turns import END, TwoTurns

pytestmark = needs("llm")
FUNCTION = '''
def append(line: str) -> str:
    """Append a line to the file."""
    with open("file", "a", encoding="utf-8") as file:
        file.write(line + "\\n")
    return "written"
'''


@pytest.mark.parametrize("flags", [(), ("--no-stream",), ("--responses",), ("--responses", "--no-stream")])
def test_two_turns_of_a_tool(tmp_path: Path, flags: tuple[str, ...]) -> None:
    script = TwoTurns("append", line="one")
    with workplace(tmp_path, script) as place:
        command = "llm", "openai", "endpoint", f"{place.url}/v1", "write to the file", "-m", MODEL, *flags
        out = place.run(*command, "--key", "unused", "--functions", FUNCTION, LLM_USER_PATH=str(place.home))
        assert END in out
        assert (place.file, script.results) == ("one\none\n", [0, 1, 2])
        path = "/v1/responses" if "--responses" in flags else "/v1/chat/completions"
        assert {sent for sent, _ in place.proxy.sent} == {path}
        assert all(bool(body.get("stream")) == ("--no-stream" not in flags) for _, body in place.proxy.sent)
