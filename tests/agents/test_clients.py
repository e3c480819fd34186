"""Client libraries against a model that thinks: a loop with one tool, and an object of a schema."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.support.agents import FOLDER, needs, workplace
from tests.support.thinker import thinker
from tests.support.two_turns import END, TwoTurns

HERE = Path(__file__).parent
PACKAGES = FOLDER / "node_modules"
SAID = f'"{END}"'


def client(
    file: str, package: str, argument: str, out: str, loops: int = 1, where: str = "python"
) -> ParameterSet:
    """A client in this folder. package: that it needs. out: what it prints. loops: of its tool. where: the
    Python in which scripts/agents installs it.
    """
    program, installed = (
        str(FOLDER / where / "bin/python"),
        (FOLDER / where).glob(f"lib/*/site-packages/{package}"),
    )
    if file.endswith(".mjs"):
        program, installed = "node", PACKAGES.glob(package)
    missing = pytest.mark.skipif(
        not any(installed), reason=f"there is no {package}: scripts/agents installs it"
    )
    name = f"{package}-{argument}".strip("-")
    return pytest.param(program, file, argument, out, loops, marks=[*needs(program), missing], id=name)


def litellm(provider: str) -> ParameterSet:
    return client("litellm_client.py", "litellm", provider, f"{SAID} 3")


def pydantic_ai(model: str) -> ParameterSet:
    return client("pydantic_ai_client.py", "pydantic_ai", model, f"{SAID} 3")


def openai_agents(api: str) -> ParameterSet:
    return client("openai_agents_client.py", "agents", api, SAID)


def ai_sdk(provider: str, thoughts: int = 3) -> ParameterSet:
    return client("ai_sdk_client.mjs", "ai", provider, f"{SAID} {SAID} {thoughts}", loops=2)


@pytest.mark.parametrize(
    ("program", "file", "argument", "out", "loops"),
    [
        *map(litellm, ("openai", "hosted_vllm", "lm_studio", "anthropic", "ollama_chat")),
        *map(pydantic_ai, ("openai:thinker", "openai-chat:thinker")),
        *map(openai_agents, ("responses", "chat")),
        client("llama_index_client.py", "llama_index", "", SAID, where="python-llama-index"),
        client("instructor_client.py", "instructor", "", "2", loops=0, where="python-instructor"),
        *map(ai_sdk, ("openai-compatible", "anthropic")),
        ai_sdk("openai", thoughts=0),  # it shows summaries only
    ],
)
def test_a_loop_and_a_schema(
    tmp_path: Path, program: str, file: str, argument: str, out: str, loops: int
) -> None:
    script = TwoTurns("append", thinks=True, line="one")
    (tmp_path / "model").mkdir()
    with workplace(tmp_path, script, *thinker(tmp_path / "model")) as place:
        (place.work / "node_modules").symlink_to(PACKAGES)
        shutil.copy(HERE / file, place.work)  # from where node finds its packages
        found = place.run(program, file, place.url, argument, LITELLM_LOCAL_MODEL_COST_MAP="True")
        assert found == out
        assert place.file == "one\n" * 2 * loops
        assert script.results == [0, 1, 2] * loops
