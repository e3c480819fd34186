"""What can be a name, which of a repository's files a tag means, and what models.toml may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllama.errors import ConfigError, IntegrityError, NotFoundError, UsageError
from specllama.models import manifest
from specllama.models.names import RepoName, parse_repo
from specllama.models.quants import choose, find_models, is_sidecar
from specllama.models.resolve import Library

NAMES = {
    "user/repo": RepoName("user/repo"),
    "user/repo:Q4_K_M": RepoName("user/repo", "Q4_K_M"),
    "hf:user/repo": RepoName("user/repo"),
    "hf://user/repo:q8_0": RepoName("user/repo", "q8_0"),
    "user/repo@v1.0:BF16": RepoName("user/repo", "BF16", "v1.0"),
    "user/repo@refs/pr/1": RepoName("user/repo", "", "refs/pr/1"),
    "user/repo:sub/x-00001-of-00002.gguf": RepoName("user/repo", "sub/x-00001-of-00002.gguf"),
    "hf:Org-1/Some.Model_v2-GGUF:UD-Q4_K_XL": RepoName("Org-1/Some.Model_v2-GGUF", "UD-Q4_K_XL"),
}
NO_REPOS = ["8B", "main.gguf", "models/main.gguf", "./user/repo", "/user/repo", "~/repo", "a/b/c", "../x", ""]
EVIL = [
    "hf:", "hf:../../etc/passwd", "hf:user/../x", "hf:/user/repo", "hf:user/re--po",
    "hf:user/repo:../../x.gguf",
    "user/repo:a/../../x.gguf", "user/repo:/abs.gguf", "user/repo@../../x", "hf:user/repo@a//b", "hf:user",
    "hf:user/a/b", "hf:user/repo:", "user/repo:x\\y.gguf", "hf:user/repo:\x1b[2J.gguf", "hf:us er/repo",
    "hf:" + "u" * 200 + "/repo", "user/repo:" + "x" * 1100 + ".gguf", "hf:user/repo:Q4\n", "hf:user/repo:a b",
    "hf:user/.git:x", "user/repo@", "user/repo:C:x.gguf", "hf:üser/repo",
    "user/repo:" + "x" * 300 + "/y.gguf",
]  # fmt: skip


@pytest.mark.parametrize(("text", "meant"), NAMES.items())
def test_repositories(text: str, meant: RepoName) -> None:
    assert parse_repo(text) == meant
    again = parse_repo(str(meant))
    assert again == meant


@pytest.mark.parametrize("text", NO_REPOS)
def test_what_is_no_repository(text: str) -> None:
    assert parse_repo(text) is None


@pytest.mark.parametrize("text", EVIL)
def test_names_that_lead_elsewhere(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_repo(text)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 400


# Files of one repository

FILES = [
    "README.md", "mmproj-model-F16.gguf", "model.imatrix.gguf", "mtp-model-Q8_0.gguf", "eagle3-x.gguf",
    "dflash-x.gguf", "dspark-x.gguf", "model-IQ4_XS.gguf", "model-Q2_K.gguf",
    "model-Q4_K_M-00001-of-00002.gguf", "model-Q4_K_M-00002-of-00002.gguf", "model-Q4_K_M.gguf",
    "model-Q8_0.gguf",
    "BF16/model-BF16-00001-of-00003.gguf", "BF16/model-BF16-00003-of-00003.gguf",
]  # fmt: skip


def test_sidecars_are_no_models() -> None:
    found = find_models(FILES)
    assert not any(is_sidecar(m.parts[0]) for m in found)
    assert [m.quant for m in found] == ["IQ4_XS", "Q2_K", "Q4_K_M", "Q8_0", "BF16", "Q4_K_M"]
    assert sum(is_sidecar(f) for f in FILES) == 6


@pytest.mark.parametrize(
    ("tag", "file"),
    [
        ("", "model-Q4_K_M.gguf"),
        ("q8_0", "model-Q8_0.gguf"),
        ("Q2_K", "model-Q2_K.gguf"),
        ("IQ4_XS", "model-IQ4_XS.gguf"),
        ("model-Q4_K_M-00001-of-00002.gguf", "model-Q4_K_M-00001-of-00002.gguf"),
        ("model-Q4_K_M-00002-of-00002.gguf", "model-Q4_K_M-00001-of-00002.gguf"),
    ],
)
def test_which_file_a_tag_means(tag: str, file: str) -> None:
    assert choose(find_models(FILES), tag, "user/repo").parts[0] == file


def test_the_order_of_what_nobody_asked_for() -> None:
    def chosen(*files: str, preferred: str = "") -> str:
        return choose(find_models(files), "", "user/repo", preferred).parts[0]

    assert chosen("m-Q2_K.gguf", "m-Q8_0.gguf", "m-Q4_K_M.gguf") == "m-Q4_K_M.gguf"
    assert chosen("m-Q2_K.gguf", "m-Q8_0.gguf") == "m-Q8_0.gguf"
    assert chosen("m-Q2_K.gguf", "m-Q3_K.gguf") == "m-Q2_K.gguf"
    assert chosen("m-Q8_0.gguf", "m-Q4_K_M.gguf", preferred="Q8_0") == "m-Q8_0.gguf"
    assert chosen("m-Q4_K_M.gguf", preferred="Q8_0") == "m-Q4_K_M.gguf"
    assert chosen("m-IQ4_K_M.gguf", "m.gguf") == "m-IQ4_K_M.gguf"  # no Q4_K_M


def test_what_is_not_there() -> None:
    with pytest.raises(NotFoundError, match="no quantisation 'Q4'") as caught:
        choose(find_models(FILES), "Q4", "user/repo")
    assert caught.value.hint == "there are: IQ4_XS, Q2_K, Q4_K_M, Q8_0, BF16"
    with pytest.raises(NotFoundError, match="no file"):
        choose(find_models(FILES), "mmproj-model-F16.gguf", "user/repo")
    with pytest.raises(NotFoundError, match="no GGUF model"):
        choose(find_models(["README.md", "mmproj.gguf"]), "", "user/repo")
    with pytest.raises(IntegrityError, match=r"part BF16/model-BF16-00002-of-00003\.gguf is missing"):
        choose(find_models(FILES), "BF16", "user/repo")


# models.toml


def test_ours() -> None:
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


def test_the_users_and_the_projects_go_before_ours(tmp_path: Path) -> None:
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


def test_somebody_elses_models_toml(tmp_path: Path) -> None:
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
    '[[pairs]]\ntarget = "8B"\ndrafts = ["nobody"]\n': "names 'nobody', which is no model",
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


# What a name stands for


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.chdir(tmp_path)
    return Library(environ={"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"})


def test_what_a_name_stands_for(library: Library, tmp_path: Path) -> None:
    for name in ("here.gguf", "1B"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "user" / "repo").mkdir(parents=True)
    (tmp_path / "8B").mkdir()

    def repo(name: str) -> str | None:
        where = library.parse(name, "-m").where
        return None if where is None else str(where)

    assert repo("here.gguf") is None
    assert repo("1B") is None  # a file goes before an alias
    assert repo("8B") == "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF"  # a directory does not
    assert repo("8b:q8_0") == "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:q8_0"
    assert repo("user/repo") is None  # a directory of that name
    assert repo("hf:user/repo") == "user/repo"
    assert repo("user/other:Q8_0") == "user/other:Q8_0"
    assert library.parse("bartowski/llama-3.2-1b-instruct-GGUF", "-m").default == "Q4_K_M"
    for name in ("nothing", "dir/nothing.gguf", "./8B:Q4", "a/b/c"):
        with pytest.raises(NotFoundError, match="-m: there is no file"):
            library.find(name, "-m")
    with pytest.raises(NotFoundError) as caught:
        library.find("qwen3-8", "-m")
    assert "did you mean" in caught.value.hint
    with pytest.raises(UsageError):
        library.parse("8B:", "-m")
