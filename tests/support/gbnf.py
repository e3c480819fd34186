"""llama.cpp's own grammar sampler, and generated GBNF grammars to compare with it."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import llama_cpp as lc  # noqa: TID251 - it is the reference
import numpy as np
from numpy.typing import NDArray

from specllama.llama.model import LlamaModel

LLAMA_CPP_GRAMMARS = Path(__file__).parent / "llama_cpp_grammars"  # its folder grammars/, whole

_LITERALS = (
    "a", "b", "c", "ab", "abc", "é", r"\u00e9", r"\x41", "0", "-", r"\n", r"\"", r"\]", "😀", r"\U0001F600",
    "ñ", " ", "日", "/", r"\\", "self", "def ", "return", "x",
)  # fmt: skip
_SETS = (
    "a", "b", "a-c", "b-z", "0-9", "é", "à-ÿ", r"\u00e0-\u00ff", r"\x41-Z", r"\n", r"\]", "ぁ-ゟ", "😀",
    r"\\", '"', " ", r"\-",
)  # fmt: skip
_OPERATORS = ("*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "{0}", "{1}", " { 2 , 3 }")
_NAMES = ("root", "a", "b-c", "x2", "start")
_PIECES = (
    "(",
    ")",
    "|",
    "[",
    "]",
    '"',
    "::=",
    "\n",
    "{",
    "}",
    "*",
    "\\",
    "\\x4",
    "#",
    "<[5]>",
    "!",
    ".",
    "_",
    "-",
)


class LlamaCppGrammar:
    """The sampler at one position of a text. accepted: whether llama.cpp reads the grammar."""

    def __init__(self, model: LlamaModel, text: str) -> None:
        self._model = model
        self._sampler = lc.llama_sampler_init_grammar(model.vocab, text.encode(), b"root")
        self.accepted = bool(self._sampler)

    def allowed(self, tokens: Sequence[int]) -> NDArray[np.bool_]:
        """Whether each of these tokens may come next."""
        rows = (lc.llama_token_data * len(tokens))(*((token, 1.0, 0.0) for token in tokens))
        array = lc.llama_token_data_array(rows, len(tokens), -1, False)
        lc.llama_sampler_apply(self._sampler, ctypes.byref(array))
        return np.array([row.logit > -1e30 for row in rows], np.bool_)

    def accept(self, token: int) -> None:
        """The text continues with a token, which is allowed: llama.cpp ends the process for any other."""
        lc.llama_sampler_accept(self._sampler, token)

    def matches(self, text: str) -> bool:
        """Whether a whole text satisfies the grammar; only from the start."""
        for token in self._model.tokenize(text, False, False):
            if not self.allowed([token])[0]:
                return False
            self.accept(token)
        return bool(self.allowed([min(self._model.end_ids)])[0])

    def close(self) -> None:
        if self._sampler:
            lc.llama_sampler_free(self._sampler)
            self._sampler = None


def generated(seed: int) -> str:
    """A grammar that llama.cpp's parser accepts or refuses. Rules refer to later ones, and to earlier ones
    only within brackets: llama.cpp's matcher takes time without end for some ambiguous recursions.
    """
    rng = random.Random(seed)
    names = _NAMES[: rng.randint(1, len(_NAMES))]
    rules = [f"{name} ::= {_choice(rng, 2, names[i + 1 :], names[: i + 1])}" for i, name in enumerate(names)]
    return ("\n# a comment\n" if rng.random() < 0.2 else "\n").join(rules)


def mutated(seed: int) -> str:
    """A generated grammar with some characters removed, repeated or put in."""
    rng = random.Random(-seed - 1)
    text = generated(seed)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(text))
        kind = rng.randrange(3)
        piece = text[at : at + 3] if kind == 1 else rng.choice(_PIECES) if kind else ""
        text = text[:at] + piece + text[at + (kind == 0) :]
    return text


def _choice(rng: random.Random, depth: int, below: Sequence[str], above: Sequence[str]) -> str:
    options = (_sequence(rng, depth, below, above) for _ in range(rng.choice((1, 1, 2, 3))))
    return " | ".join(options)


def _sequence(rng: random.Random, depth: int, below: Sequence[str], above: Sequence[str]) -> str:
    n = 0 if rng.random() < 0.05 else rng.randint(1, 3)
    return " ".join(_item(rng, depth, below, above) for _ in range(n))


def _item(rng: random.Random, depth: int, below: Sequence[str], above: Sequence[str]) -> str:
    kind = rng.random()
    if kind < 0.3:
        n = 0 if rng.random() < 0.05 else rng.randint(1, 3)
        found = '"' + "".join(rng.choice(_LITERALS) for _ in range(n)) + '"'
    elif kind < 0.55:
        members = "".join(rng.choice(_SETS) for _ in range(rng.randint(1, 3)))
        found = f"[{'^' * (rng.random() < 0.2)}{members}]"
    elif kind < 0.6:
        found = "."
    elif kind < 0.75 and below:
        found = rng.choice(below)
    elif kind < 0.8:
        return f'"<" {rng.choice(above)}? ">"'
    elif depth:
        found = f"({_choice(rng, depth - 1, below, above)})"
    else:
        found = '"x"'
    return found + (rng.choice(_OPERATORS) if rng.random() < 0.35 else "")


def texts_like(text: str, seed: int) -> Iterator[str]:
    """The text, and some that differ from it in a character or their length."""
    rng = random.Random(seed)
    yield text
    for _ in range(3):
        at = rng.randrange(len(text) + 1)
        yield text[:at] + rng.choice(("", "a", "é", " ", "0", '"', "\n")) + text[at + rng.randrange(2) :]
