"""Model names resolve to files, aliases or repositories."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllama.errors import NotFoundError, UsageError
from specllama.models.resolve import Library


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.chdir(tmp_path)
    return Library(environ={"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"})


def test_names_resolve_to_files_aliases_or_repositories(library: Library, tmp_path: Path) -> None:
    for name in ("here.gguf", "1B"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "user" / "repo").mkdir(parents=True)
    (tmp_path / "8B").mkdir()

    def repo(name: str) -> str | None:
        where = library.parse(name, "-m").where
        return None if where is None else str(where)

    assert repo("here.gguf") is None
    assert repo("1B") is None  # a file takes precedence over an alias
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
