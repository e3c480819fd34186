"""Cline's command line against chat/completions: two turns of its shell tool, then a text."""

from __future__ import annotations

from pathlib import Path

from tests.support.agents import LINE, MODEL, needs, workplace
from tests.support.two_turns import END, TwoTurns

pytestmark = needs("cline")


def test_two_turns_of_a_tool(tmp_path: Path) -> None:
    script = TwoTurns("run_commands", commands=[LINE])
    with workplace(tmp_path, script) as place:
        data = "--data-dir", str(place.home / "cline")
        settings = "-p", "openai-compatible", "-m", MODEL, "-k", "unused", "-b", f"{place.url}/v1"
        place.run("cline", "auth", *settings, *data)
        out = place.run("cline", *data, "--json", "--retries", "1", "write to the file")
        assert END in out
        assert (place.file, script.results) == ("one\none\n", [0, 1, 2])
        assert {path for path, _ in place.proxy.sent} == {"/v1/chat/completions"}
