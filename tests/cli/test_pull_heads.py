"""`specllama pull`, `models` and `-md auto` for a repository that holds a model and its head."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import tinyheads
from tests.support.command import Command, Result
from tests.support.hub import LocalHub, Repo

REPO = "unsloth/gemma-4-31B-it-GGUF"
MODEL, HEAD = "gemma-4-31B-it-UD-Q4_K_XL.gguf", "mtp-gemma-4-31B-it.gguf"


class Hub:
    """A hub with the two files under the names of models.toml; calls run commands against it."""

    def __init__(self, command: Command, hub: LocalHub) -> None:
        self.command, self.hub = command, hub
        made = command.home / "made"
        made.mkdir()
        target = tinyheads.gemma4(made / MODEL, adds=(0, 0)).read_bytes()
        head = tinyheads.gemma4_assistant(made / HEAD, copy_of=made / MODEL).read_bytes()
        hub.repos[REPO] = Repo({MODEL: target, HEAD: head})
        snapshots = (
            command.home / ".cache/huggingface/hub" / f"models--{REPO.replace('/', '--')}" / "snapshots"
        )
        self.folder: Path = snapshots / hub.repos[REPO].commit

    def __call__(self, *args: str) -> Result:
        return self.command(*args, env=self.hub.environ())


@pytest.fixture
def named(command: Command, hub: LocalHub) -> Hub:
    return Hub(command, hub)


def test_a_model_and_its_head_are_pulled_listed_and_removed(named: Hub) -> None:
    assert named("pull", "gemma-4-31b").out.splitlines() == [str(named.folder / MODEL)]
    hint = named("run", "-m", "gemma-4-31b", "-p", "x", "-n", "1", "--no-calibrate")
    assert "a draft is known and not on disk: -md gemma-4-31b-assistant downloads it" in hint.err
    pulled = named("pull", "gemma-4-31b", "gemma-4-31b-assistant")
    assert pulled.out.splitlines() == [str(named.folder / MODEL), str(named.folder / HEAD)]
    assert "the vocabularies are identical: the same 280 tokens" in pulled.err
    checked = named("pair-check", "gemma-4-31b", "gemma-4-31b-assistant")
    assert "Gemma 4 assistant, 2 layers" in checked.out
    assert named("pair-check", f"{REPO}:UD-Q4_K_XL", f"{REPO}:{HEAD}").out == checked.out
    listed = {model["name"] for model in named("models", "--json").json["on_disk"]}
    assert {f"{REPO}:UD-Q4_K_XL", f"{REPO}:{HEAD}"} <= listed
    assert named("models", "rm", f"{REPO}:{HEAD}").code == 0
    assert (named.folder / MODEL).exists()
    assert not (named.folder / HEAD).exists()


def test_auto_uses_the_head_next_to_the_model(named: Hub) -> None:
    assert named("pull", "gemma-4-31b", f"{REPO}:{HEAD}").code == 0
    result = named("run", "-m", "gemma-4-31b", "-p", "the", "-n", "8", "--temp", "0", "--no-calibrate")
    assert result.code == 0, result.err
    assert f"the head {named.folder / HEAD} is used, as it is next to the model" in result.err
    assert "Gemma 4 assistant" in result.err
    plain = named("run", "-m", "gemma-4-31b", "-md", "none", "-p", "the", "-n", "8", "--temp", "0")
    assert plain.out == result.out
