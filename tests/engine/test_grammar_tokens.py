"""Which tokens grammars see as text: all but control tokens, also those that look like them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest

from specllama.config.load import ModelSettings
from specllama.llama.model import LlamaModel
from specllama.text.grammar import Grammars
from tests.support import tinygguf

ADDED = "<tool_call>"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LlamaModel:
    """A vocabulary in which ADDED was added by the user, as Qwen 3's is."""
    made, types = tinygguf.vocabulary, gguf.GGUFWriter.add_token_types

    def vocabulary(n: int, *more: Any) -> tuple[list[str], list[str]]:
        tokens, merges = made(n, *more)
        return [*tokens[:-1], ADDED], merges

    def add_types(writer: gguf.GGUFWriter, given: list[int]) -> None:
        types(writer, [*given[:-1], gguf.TokenType.USER_DEFINED])

    monkeypatch.setattr(tinygguf, "vocabulary", vocabulary)
    monkeypatch.setattr(gguf.GGUFWriter, "add_token_types", add_types)
    path = tinygguf.llama(tmp_path / "model.gguf")
    return LlamaModel(ModelSettings(path=str(path)), vocab_only=True)


def test_an_added_token_is_its_text(model: LlamaModel) -> None:
    added = model.n_vocab - 1
    assert model.piece(added) == ADDED.encode()
    assert model.tokenize(ADDED, False, False) == [added]
    mask = Grammars(model).mask(grammar=f'start: "{ADDED}!"')
    assert mask is not None
    assert mask.allows(added)
    assert mask.forced() == [added, *model.tokenize("!", False, False)]
    text = Grammars(model).mask(grammar=r"start: /(.|\n)*/")
    assert text is not None
    assert text.allows(added)
    assert not text.allows(tinygguf.IM_START)
    model.close()
