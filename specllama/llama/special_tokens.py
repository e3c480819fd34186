"""Tokens of a vocabulary with a meaning of their own: around a gap in a text, and at the end of a turn."""

from __future__ import annotations

from typing import NamedTuple

from specllama.llama.library import llama
from specllama.llama.model import LlamaModel


class FimTokens(NamedTuple):
    """The tokens around the parts of a text with a gap (fill in the middle), -1 for those that the vocabulary
    lacks. prefix, suffix: before the text before and after the gap. middle: before what fills it. repository,
    separator: before the name of a repository, and of a file.
    """

    prefix: int
    suffix: int
    middle: int
    repository: int
    separator: int

    @property
    def missing(self) -> list[str]:
        """The names of those missing without which no gap can be described."""
        names = ("prefix", "suffix", "middle")
        return [name for name, token in zip(names, self[:3], strict=True) if token < 0]


def fim_tokens(model: LlamaModel) -> FimTokens:
    """The tokens for filling a gap, as llama.cpp knows them."""
    vocab = model.vocab
    return FimTokens(
        int(llama.llama_vocab_fim_pre(vocab)),
        int(llama.llama_vocab_fim_suf(vocab)),
        int(llama.llama_vocab_fim_mid(vocab)),
        int(llama.llama_vocab_fim_rep(vocab)),
        int(llama.llama_vocab_fim_sep(vocab)),
    )


def end_of_turn_id(model: LlamaModel) -> int:
    """The end-of-turn token, or else the end-of-sequence token; -1 if there is neither."""
    token = int(llama.llama_vocab_eot(model.vocab))
    return token if token >= 0 else model.eos_id
