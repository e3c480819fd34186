"""GBNF is read as llama.cpp reads it: its own parser and sampler are the reference."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from specllama.config.load import ModelSettings
from specllama.data import EMBEDDED_TARGET
from specllama.errors import UsageError
from specllama.llama.model import LlamaModel
from specllama.text.grammar import GrammarMask, Grammars
from tests.support.examples import examples
from tests.support.gbnf import LLAMA_CPP_GRAMMARS, LlamaCppGrammar, generated, mutated, texts_like

FILES = sorted(LLAMA_CPP_GRAMMARS.glob("*.gbnf"))
# Texts of llama.cpp's grammars, and of none.
TEXTS = {
    "arithmetic": ["a = 1\n", "x1_y*2=(2+3) \nq=q\n"],
    "c": ["int main(){}", "int f(int a){a  = 1;return a;}", "char x(){if(a<b){}else{}}"],
    "chess": ["1. e4 e5\n2. Nf3 Nc6\n", "1. O-O-O exd5=Q+\n3. Kxe1# a1\n"],
    "english": ["Some words", "What (for) [this]?\ta`b"],
    "japanese": ["こんにちは 世界", "カタカナ、〜"],
    "json": ['{"a": [1, 2.5e3, {"b": "\\u00e9\\n"}, true]}', "{}", '{"é": null}'],
    "json_arr": ['[\n1,\n"x",\n{"a":[]}]', "[\n]"],
    "list": ["- one\n- two é\n", "- one\n"],
}


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    model = LlamaModel(ModelSettings(path=str(EMBEDDED_TARGET)), vocab_only=True)
    yield model
    model.close()


@pytest.fixture(scope="module")
def grammars(model: LlamaModel) -> Grammars:
    return Grammars(model)


@pytest.fixture(scope="module")
def whole(model: LlamaModel) -> np.ndarray:
    """The tokens that are whole characters, and those that end a text."""

    def is_whole(piece: bytes) -> bool:
        try:
            return piece.decode() != "" and b"\0" not in piece
        except UnicodeDecodeError:
            return False

    tokens = range(model.n_vocab)
    return np.array([i for i in tokens if i in model.end_ids or is_whole(model.piece(i))])


def mask_of(grammars: Grammars, text: str) -> GrammarMask:
    mask = grammars.mask(grammar=text)
    assert mask is not None
    return mask


def read(grammars: Grammars, text: str) -> tuple[GrammarMask | None, str]:
    """(A mask, or None and why the grammar is refused)."""
    try:
        return mask_of(grammars, text), ""
    except UsageError as error:
        return None, error.message


def matches(model: LlamaModel, mask: GrammarMask, text: str) -> bool:
    ids = [*model.tokenize(text, False, False), min(model.end_ids)]
    return mask.legal(ids) == len(ids)


def same_masks(model: LlamaModel, text: str, mask: GrammarMask, tokens: np.ndarray, seed: int) -> str:
    """Follow a grammar for some tokens and compare what is allowed; returns the text."""
    reference, rng, written = LlamaCppGrammar(model, text), random.Random(seed), b""
    for _ in range(4):
        forced = b"".join(map(model.piece, mask.forced()))
        theirs, ours = reference.allowed(tokens.tolist()), mask.allowed()[tokens]
        if forced:  # only in its usual tokens, where others spell the same
            assert not (ours & ~theirs).any(), (text, written)
            pieces = [model.piece(int(i)) for i in tokens[theirs]]
            assert all(piece.startswith(forced[: len(piece)]) for piece in pieces), (text, written)
        else:
            assert tokens[ours].tolist() == tokens[theirs].tolist(), (text, written)
        able = [int(i) for i in tokens[ours & theirs] if int(i) not in model.end_ids]
        if not able:
            break
        token = min(rng.sample(able, min(3, len(able))), key=lambda i: len(model.piece(i)))
        reference.accept(token)
        mask.accept(token)
        written += model.piece(token)
    reference.close()
    return written.decode()


def test_generated_grammars_allow_the_same_tokens_and_texts(
    model: LlamaModel, grammars: Grammars, whole: np.ndarray
) -> None:
    """The masks over 250 tokens at up to four places, the texts met there, and texts like them."""
    ends, n_texts, n = sorted(model.end_ids), 0, examples(1000)
    for seed in range(n):
        text, rng = generated(seed), random.Random(seed)
        mask, why = read(grammars, text)
        reference = LlamaCppGrammar(model, text)
        assert reference.accepted == (mask is not None), (text, why)
        if mask is None:
            continue
        tokens = np.unique([*ends, *rng.sample(whole.tolist(), 150), *whole[:100]])
        written = same_masks(model, text, mask, tokens, seed)
        for other in texts_like(written, seed):
            reference = LlamaCppGrammar(model, text)
            assert matches(model, mask_of(grammars, text), other) == reference.matches(other), (text, other)
            reference.close()
            n_texts += 1
    assert n_texts > 2 * n


def test_the_same_texts_are_no_grammars(model: LlamaModel, grammars: Grammars) -> None:
    """Grammars with faults in them."""
    n_refused, n = 0, examples(2000)
    for seed in range(n):
        text = mutated(seed)
        _, why = read(grammars, text)
        if re.search(r"at least \d+ and at most|no text satisfies|without end", why):
            continue  # llama.cpp has no answer, or finds no token later
        reference = LlamaCppGrammar(model, text)
        assert reference.accepted == (not why), (text, why)
        reference.close()
        n_refused += bool(why)
    assert 0.25 * n < n_refused < 0.95 * n


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_grammars_of_llama_cpp(
    model: LlamaModel, grammars: Grammars, whole: np.ndarray, file: Path
) -> None:
    text = file.read_text("utf-8")
    tokens = np.unique([*model.end_ids, *whole[::4]])
    for seed in range(4):
        same_masks(model, text, mask_of(grammars, text), tokens, seed)
    n_matches = 0
    for known in (text for texts in TEXTS.values() for text in texts):
        for i, other in enumerate(texts_like(known, len(known))):
            reference = LlamaCppGrammar(model, text)
            ours = matches(model, mask_of(grammars, text), other)
            assert ours == reference.matches(other), other
            assert ours or i or known not in TEXTS[file.stem], known
            n_matches += ours
            reference.close()
    assert n_matches >= 2


def test_tokens_are_matched_by_their_ids(model: LlamaModel, grammars: Grammars) -> None:
    """Ids and texts of tokens, and any token but one, as in llama.cpp's test-grammar-integration."""
    hello = model.tokenize("hello", False, False)
    start, end, other = (model.tokenize(t, False, True)[0] for t in ("<|im_start|>", "<|endoftext|>", "x"))
    assert end in model.end_ids
    grammar = "root ::= <|im_start|> content <[70]>\ncontent ::= (!<[70]>)*"
    for ids, expected in (
        ([start, *hello, 70], True),
        ([start, other, start, 70], True),
        ([start, 70], True),
        ([start, *hello], False),
        ([*hello, 70], False),
        ([start, 70, 70], False),
    ):
        mask, reference = mask_of(grammars, grammar), LlamaCppGrammar(model, grammar)
        ours = mask.legal([*ids, end]) == len(ids) + 1
        theirs = True
        for token in [*ids, end]:
            theirs = theirs and bool(reference.allowed([token])[0])
            if theirs and token != end:
                reference.accept(token)
        assert ours == theirs == expected, ids
        reference.close()


@pytest.mark.parametrize("token", ["<no such token>", "<[4294967296]>", "<[5>", "!", "!a", "<[x]>", "<"])
def test_what_is_no_token_is_refused(model: LlamaModel, grammars: Grammars, token: str) -> None:
    text = f'root ::= "a" {token}'
    assert not LlamaCppGrammar(model, text).accepted
    with pytest.raises(UsageError):
        mask_of(grammars, text)


def test_a_token_that_can_never_come_is_refused(model: LlamaModel, grammars: Grammars) -> None:
    for text in ("root ::= <[999999]>", f"root ::= <[{min(model.end_ids)}]>", 'root ::= "a" [z-a]'):
        with pytest.raises(UsageError, match="no text satisfies it"):
            mask_of(grammars, text)
    assert matches(model, mask_of(grammars, "root ::= !<[999999]>"), "a")
    assert matches(model, mask_of(grammars, 'root ::= "a" [z-a] | "b"'), "b")
