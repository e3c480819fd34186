"""The syntax of repository names."""

from __future__ import annotations

import pytest

from specllama.errors import UsageError
from specllama.models.names import RepoName, parse_repo

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
NOT_REPOSITORIES = [
    "8B",
    "main.gguf",
    "models/main.gguf",
    "./user/repo",
    "/user/repo",
    "~/repo",
    "a/b/c",
    "../x",
    "",
]
UNSAFE = [
    "hf:", "hf:../../etc/passwd", "hf:user/../x", "hf:/user/repo", "hf:user/re--po",
    "hf:user/repo:../../x.gguf",
    "user/repo:a/../../x.gguf", "user/repo:/abs.gguf", "user/repo@../../x", "hf:user/repo@a//b", "hf:user",
    "hf:user/a/b", "hf:user/repo:", "user/repo:x\\y.gguf", "hf:user/repo:\x1b[2J.gguf", "hf:us er/repo",
    "hf:" + "u" * 200 + "/repo", "user/repo:" + "x" * 1100 + ".gguf", "hf:user/repo:Q4\n", "hf:user/repo:a b",
    "hf:user/.git:x", "user/repo@", "user/repo:C:x.gguf", "hf:üser/repo",
    "user/repo:" + "x" * 300 + "/y.gguf",
]  # fmt: skip


@pytest.mark.parametrize(("text", "meant"), NAMES.items())
def test_a_repository_name_is_parsed(text: str, meant: RepoName) -> None:
    assert parse_repo(text) == meant
    again = parse_repo(str(meant))
    assert again == meant


@pytest.mark.parametrize("text", NOT_REPOSITORIES)
def test_other_names_are_not_repositories(text: str) -> None:
    assert parse_repo(text) is None


@pytest.mark.parametrize("text", UNSAFE)
def test_rejects_unsafe_names(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_repo(text)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 400
