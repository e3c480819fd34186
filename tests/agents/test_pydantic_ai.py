"""pydantic-ai against /v1/responses (`openai:`) and chat/completions (`openai-chat:`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.agents import FOLDER, MODEL, needs, workplace
from tests.support.two_turns import END, TwoTurns

pytestmark = needs(str(FOLDER / "python/bin/python"))
AGENT = Path(__file__).parent / "pydantic_ai_agent.py"


@pytest.mark.parametrize("how", ["whole", "stream"])
@pytest.mark.parametrize(
    ("provider", "path"), [("openai", "/v1/responses"), ("openai-chat", "/v1/chat/completions")]
)
def test_two_turns_of_a_tool(tmp_path: Path, provider: str, path: str, how: str) -> None:
    script = TwoTurns("append", line="one")
    with workplace(tmp_path, script) as place:
        out = place.run(
            str(FOLDER / "python/bin/python"), str(AGENT), f"{provider}:{MODEL}", how,
            OPENAI_BASE_URL=f"{place.url}/v1", OPENAI_API_KEY="unused",
        )  # fmt: skip
        assert END in out
        assert (place.file, script.results) == ("one\none\n", [0, 1, 2])
        assert {sent for sent, _ in place.proxy.sent} == {path}
        assert all(bool(body.get("stream")) == (how == "stream") for _, body in place.proxy.sent)
