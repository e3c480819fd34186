"""models.toml: entries, overriding files, errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllama.errors import ConfigError
from specllama.models import manifest
from specllama.models.names import RepoName


def test_shipped_manifest_is_complete() -> None:
    known = manifest.load({}, Path("/"))
    for entry in known.entries.values():
        assert entry.licence
        assert entry.source
        assert entry.default
        assert known.find(entry.name.upper()) is entry
    assert known.pairs
    for pair in known.pairs.values():
        assert pair.source
        assert known.drafts_for(known.entries[pair.target])
    wanted = {"8B": "1B", "70B": "1B", "llama-3.1-70b": "1B", "qwen2.5-coder-7b": "qwen2.5-coder-0.5b",
              "qwen2.5-coder-32b": "qwen2.5-coder-0.5b", "qwen3-14b": "qwen3-0.6b",
              "gemma-3-27b": "gemma-3-1b",
              "mistral-small-24b": "mistral-small-draft-0.5b", "smollm2-1.7b": "smollm2-135m",
              "deepseek-r1-distill-qwen-32b": "deepseek-r1-distill-qwen-1.5b"}  # fmt: skip
    for target, draft in wanted.items():
        entry = known.find(target)
        assert entry
        assert known.drafts_for(entry)[0] is known.find(draft)


OWN = """
schema = "specllama.models/1"

[models.mine]
aliases = ["8B", "small"]
repo = "me/mine-GGUF"
file = "sub/mine.gguf"
revision = "v2"

[[pairs]]
target = "mine"
drafts = ["1B"]
notes = ["a note"]
"""


def test_user_and_project_files_override_the_shipped_one(tmp_path: Path) -> None:
    user, project = tmp_path / "user.toml", tmp_path / "project" / "deep"
    project.mkdir(parents=True)
    (tmp_path / "project" / ".git").mkdir()
    user.write_text(OWN)
    known = manifest.load({"SPECLLAMA_MODELS": str(user)}, project)
    mine = known.find("8B")
    assert mine
    assert (mine.name, mine.where, mine.default) == (
        "mine",
        RepoName("me/mine-GGUF", "", "v2"),
        "sub/mine.gguf",
    )
    assert [d.name for d in known.drafts_for(mine)] == ["llama-3.2-1b"]
    llama = known.find("llama-3.1-8b")
    assert llama
    assert llama.aliases == ()
    (tmp_path / "project" / "models.toml").write_text('[models."llama-3.1-8b"]\nrepo = "other/repo"\n')
    known = manifest.load({"SPECLLAMA_MODELS": str(user)}, project)
    assert known.find("llama-3.1-8b").where.repo == "other/repo"  # type: ignore[union-attr]
    assert known.find("small").where.repo == "me/mine-GGUF"  # type: ignore[union-attr]


def test_a_models_toml_of_another_program_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text('[database]\nmodel = "x"\n')
    assert manifest.load({}, tmp_path).find("8B")


WRONG = {
    "[models.x]\n": "line 1: x: repo is missing",
    '[models.x]\nrepo = "a/b"\nrepp = 1\n': "line 3: repp: unknown key of x",
    '[models.x]\nrepo = 5\n': "line 2: repo: must be a text, not 5",
    '[models.x]\nrepo = "../b"\n': "cannot be a repository",
    '[models.x]\nrepo = "a/b"\nquant = "Q8_0"\nfile = "x.gguf"\n': "quant and file are both given",
    '[models.x]\nrepo = "a/b"\nfile = "../x.gguf"\n': "cannot be a file",
    '[models.x]\nrepo = "a/b"\naliases = ["a/b"]\n': "a/b: aliases are letters",
    '[models."a b"]\nrepo = "a/b"\n': "names are letters",
    '[[pairs]]\ntarget = "8B"\ndrafts = ["nobody"]\n': "names 'nobody', which is not a model",
    '[[pairs]]\ntarget = "8B"\n': "the pair has no drafts",
    "[[pairs]]\ndrafts = []\n": "target: must be a text",
    '[models.x]\nrepo = "a/b"\n[more]\n': "line 3: more: unknown key",
    'schema = "specllama.models/9"\n': "another version",
    "[models.x\n": "is not TOML",
}  # fmt: skip


@pytest.mark.parametrize(("text", "needle"), WRONG.items())
def test_mistakes_name_the_line(tmp_path: Path, text: str, needle: str) -> None:
    path = tmp_path / "models.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        manifest.load({"SPECLLAMA_MODELS": str(path)}, Path("/"))
    assert needle in str(caught.value)
    assert "models.toml" in str(caught.value)
