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
    # as they are copied from pages and other programs
    "hf.co/user/repo": RepoName("user/repo"),
    "hf.co/user/repo:Q4": RepoName("user/repo", "Q4"),
    "huggingface.co/user/repo-GGUF:Q8_0": RepoName("user/repo-GGUF", "Q8_0"),
    "https://huggingface.co/user/repo": RepoName("user/repo"),
    "https://huggingface.co/user/repo/": RepoName("user/repo"),
    "https://huggingface.co/user/repo?library=llama-cpp#files": RepoName("user/repo"),
    "https://huggingface.co/user/repo/tree/main": RepoName("user/repo"),
    "https://huggingface.co/user/repo/blob/main/sub/x-Q4_K_M.gguf": RepoName(
        "user/repo", "sub/x-Q4_K_M.gguf"
    ),
    "HTTPS://hf.co/user/repo/resolve/v1.0/x.gguf?download=true": RepoName("user/repo", "x.gguf", "v1.0"),
    "https://huggingface.co/user/repo/blob/main/a%20b.gguf": RepoName("user/repo", "a b.gguf"),
    "https://mirror.example/user/repo/resolve/main/x.gguf": RepoName("user/repo", "x.gguf"),
    "user/repo/x-Q4_K_M.gguf": RepoName("user/repo", "x-Q4_K_M.gguf"),
    "hf:user/repo/sub/x.gguf": RepoName("user/repo", "sub/x.gguf"),
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
    "./user/repo/x.gguf",
    "https://example.com/user/repo/x.gguf",
    "hf.co",
    "hf.co.example/user/repo/x",
]
UNSAFE = [
    "hf:", "hf:../../etc/passwd", "hf:user/../x", "hf:/user/repo", "hf:user/re--po",
    "hf:user/repo:../../x.gguf",
    "user/repo:a/../../x.gguf", "user/repo:/abs.gguf", "user/repo@../../x", "hf:user/repo@a//b", "hf:user",
    "hf:user/a/b", "hf:user/repo:", "user/repo:x\\y.gguf", "hf:user/repo:\x1b[2J.gguf", "hf:us er/repo",
    "hf:" + "u" * 200 + "/repo", "user/repo:" + "x" * 1100 + ".gguf", "hf:user/repo:Q4\n", "hf:user/repo:a b",
    "hf:user/.git:x", "user/repo@", "user/repo:C:x.gguf", "hf:üser/repo",
    "user/repo:" + "x" * 300 + "/y.gguf",
    "https://huggingface.co/user/repo/blob/main/../../x.gguf", "https://huggingface.co/user/repo/commits/main",
    "https://huggingface.co/user", "hf.co/user/repo/blob/main/README.md", "hf.co/datasets/user/repo",
    "https://huggingface.co/user/repo/resolve/main/%2e%2e%2fx.gguf", "user/repo/../x.gguf",
]  # fmt: skip


@pytest.mark.parametrize(("text", "meant"), NAMES.items())
def test_a_repository_name_is_parsed(text: str, meant: RepoName) -> None:
    assert parse_repo(text, "mirror.example") == meant
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
