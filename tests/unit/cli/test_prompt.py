"""The prompt of `run`, from its words and files."""

from __future__ import annotations

import pytest

from specllama.cli.run import typed_prompt
from specllama.config.sources import Values
from specllama.config.text_file import standard_input
from specllama.errors import UsageError

WORDS = {"words": ["llama3.2", "says", "hi"]}


@pytest.fixture(autouse=True)
def nothing_is_piped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standard_input, "taken_by", "a test")


@pytest.mark.parametrize("flag", ["model", "hf_repo"])
def test_words_after_a_named_model_are_the_prompt(flag: str) -> None:
    assert typed_prompt({**WORDS, flag: "demo"}) == "llama3.2 says hi"


@pytest.mark.parametrize("more", [{}, {"model": "8B"}])
def test_a_first_word_like_a_models_name_is_an_error_where_no_flag_names_one(more: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"'llama3\.2' looks like the name of a model"):
        typed_prompt(Values({**WORDS, **more}, dict.fromkeys(more, "config.toml, line 1: model")))
