"""models.toml: entries, overriding files, errors."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from specllama.errors import ConfigError
from specllama.models import manifest
from specllama.models.names import RepoName
from tests.support.paths import ROOT


def test_shipped_manifest_is_complete() -> None:
    known = manifest.load({}, Path("/"))
    unread = {"qwen3.8-27b", "qwen3.6-35b-a3b", "qwen3.5-9b", "qwen3.6-27b-eagle3", "step-3.7-flash"}
    for entry in known.entries.values():
        assert entry.licence or entry.name in unread
        assert entry.source
        assert entry.default or entry.name in unread
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


def test_the_users_file_overrides_the_shipped_one(tmp_path: Path) -> None:
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


KNOWN = 'repo = "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF"\nquant = "Q4_K_M"\n'


def in_project(tmp_path: Path, text: str, user: str = "") -> manifest.Manifest:
    """The manifest in a directory of a project with this models.toml."""
    project = tmp_path / "project"
    (project / "deep").mkdir(parents=True, exist_ok=True)
    (project / "models.toml").write_text(text)
    (tmp_path / "user.toml").write_text(user)
    return manifest.load({"SPECLLAMA_MODELS": str(tmp_path / "user.toml")}, project / "deep")


def test_a_project_adds_names_and_pairs(tmp_path: Path) -> None:
    known = in_project(
        tmp_path,
        f'[models.ours]\nrepo = "we/ours"\naliases = ["o"]\n[models."Llama-3.1-8B"]\n{KNOWN}aliases = ["L"]\n'
        f'[models.same]\n{KNOWN}aliases = ["8B"]\n[[pairs]]\ntarget = "8B"\ndrafts = ["o"]\n',
        OWN.replace('"8B", ', ""),
    )
    target, ours = known.find("L"), known.find("O")
    assert target
    assert ours
    assert ours.where == RepoName("we/ours")
    assert target == known.find("8B") == known.find("same") == known.find("llama-3.1-8b")
    assert target.licence, "the known entry stays"
    assert [d.name for d in known.drafts_for(target)] == ["ours"]
    assert known.project == tmp_path / "project" / "models.toml"
    assert known.user == tmp_path / "user.toml"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[models."llama-3.1-8b"]\nrepo = "evil/repo"\n', 1),
        ('[models.x]\nrepo = "a/x"\n\n[models.evil]\nrepo = "evil/repo"\naliases = [\n"8b"]\n', 6),
        ('schema = "specllama.models/1"\nmodels.small.repo = "evil/repo"\n', 2),
        (f'[models."LLAMA-3.1-8B"]\n{KNOWN}revision = "refs/pr/7"\n', 1),
        ('[models.x]\nrepo = "a/x"\n[models."llama-3.1-8b"]\n' + KNOWN.replace("Q4_K_M", "IQ1_S"), 3),
        (f"[models.small]\n{KNOWN}", 1),
    ],
)
def test_a_project_cannot_give_a_known_name_to_another_model(tmp_path: Path, text: str, line: int) -> None:
    """Neither one of the catalogue nor one of the user's."""
    with pytest.raises(ConfigError) as caught:
        in_project(tmp_path, text, OWN.replace('"8B", ', ""))
    assert f"project/models.toml, line {line}: " in caught.value.message
    assert "a project cannot make it " in caught.value.message
    assert str(tmp_path / "user.toml") in caught.value.hint
    assert caught.value.exit_code == 2


def test_the_users_own_file_is_no_projects(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.write_text(OWN)
    known = manifest.load({"SPECLLAMA_MODELS": str(path)}, tmp_path)
    assert (known.user, known.project) == (path, None)
    assert manifest.load({}, ROOT).project is None, "the shipped file, in a checkout"


def test_a_projects_file_is_bounded(tmp_path: Path) -> None:
    start = '[models.x]\nrepo = "a/b"\n'
    many = "".join(f'[models.m{n}]\nrepo = "a/b"\n' for n in range(1001))
    for text, needle in (
        (start + "#" * (256 << 10), "longer than 256 KiB"),
        (start + "x = " + "[" * 50_000, "nested too deep"),
        (start + "a." * 100_000 + "a = 1", "more than 8 parts"),
        (many, "models: has more than 1000 entries"),
        (start + "aliases = " + str(["a"] * 1001), "line 3: aliases: has more than 1000 entries"),
    ):
        began = time.monotonic()
        with pytest.raises(ConfigError, match=needle):
            in_project(tmp_path, text)
        assert time.monotonic() - began < 5
    path = tmp_path / "project" / "models.toml"
    path.write_bytes(start.encode() + b"\n# \xff\n")
    with pytest.raises(ConfigError, match="line 4 is not UTF-8"):
        manifest.load({}, path.parent)
    path.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_text(start)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is a symbolic link"):
        manifest.load({}, path.parent)


def test_what_is_not_specllamas_under_that_name_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.mkdir()
    assert manifest.load({}, tmp_path).project is None
    path.rmdir()
    os.mkfifo(path)
    assert manifest.load({}, tmp_path).project is None
    path.unlink()
    for text in ("\n" * 200_000 + " " * 50_000, "[" * 200_000, "x" * 10_000_000):
        path.write_text(text)
        began = time.monotonic()
        assert manifest.load({}, tmp_path).project is None
        assert time.monotonic() - began < 5


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
    '[models.x]\nrepo = "a/b"\naliases = ["a/b"]\n': "a/b: names are letters",
    '[models."a b"]\nrepo = "a/b"\n': "names are letters",
    '[[pairs]]\ntarget = "8B"\ndrafts = ["nobody"]\n': "names 'nobody', which is not a model",
    '[[pairs]]\ntarget = "8B"\n': "the pair has no drafts",
    "[[pairs]]\ndrafts = []\n": "target: must be a text",
    '[models.x]\nrepo = "a/b"\n[more]\n': "line 3: more: unknown key",
    '[models.pydoc]\nrepo = "a/b"\n': "line 1: pydoc: this name belongs to a model of specllama itself",
    '[models.Demo]\nfile = "a.gguf"\n': "line 1: Demo: this name belongs to a model of specllama itself",
    '[models.x]\nfile = "a.gguf"\naliases = ["demo"]\n': "line 3: demo: this name belongs to",
    '[models."a b"]\nfile = "a.gguf"\n': "names are letters",
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
