"""The bytes that the tokens of a vocabulary stand for, as llama.cpp writes them. Reads no model file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specllama.gguf.header import Header
from specllama.pair.token_types import BYTE, CONTROL, NORMAL, USER_DEFINED, token_types
from specllama.pair.vocab import Vocab, end_ids, read_vocab

_SPACE = "▁".encode()
_SEPARATOR = "\uf8ff"  # between texts that are translated together
KINDS = ("bpe", "spm", "ugm")  # the tokenizers whose texts are understood


@dataclass(frozen=True, eq=False)
class TokenBytes:
    """pieces: by id, the bytes of an ordinary token, empty for others. special: control tokens and those that
    end a generation, by text.
    """

    vocab: Vocab
    pieces: list[bytes]
    special: dict[bytes, int]


def token_bytes(header: Header) -> TokenBytes | None:
    """The tokens of a vocabulary; None for a tokenizer whose texts are not understood."""
    vocab = read_vocab(header)
    if vocab.kind not in KINDS:
        return None
    types = token_types(header, vocab.n_tokens)
    types[sorted(end_ids(header, vocab))] = CONTROL
    pieces = _normal(header, vocab)
    for i in np.flatnonzero(types != NORMAL).tolist():
        kind, text = types[i], vocab.texts[i]
        pieces[i] = text if kind == USER_DEFINED else _byte(text) if kind == BYTE else b""
    special = {vocab.texts[i]: i for i in np.flatnonzero(types == CONTROL).tolist()}
    return TokenBytes(vocab, pieces, special)


def _normal(header: Header, vocab: Vocab) -> list[bytes]:
    """The bytes of the tokens if all of them are ordinary."""
    if vocab.kind != "bpe" or header.text("tokenizer.ggml.model") == "gemma4":
        return [text.replace(_SPACE, b" ") for text in vocab.texts]
    joined = _SEPARATOR.join(text.decode(errors="replace") for text in vocab.texts)
    texts = [_latin(text) for text in joined.translate(_BYTES_OF_CHARACTERS).split(_SEPARATOR)]
    if len(texts) == vocab.n_tokens:
        return texts
    return [_latin(t.decode(errors="replace").translate(_BYTES_OF_CHARACTERS)) for t in vocab.texts]


def _latin(text: str) -> bytes:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return b""  # not of a byte-level vocabulary


def _byte(text: bytes) -> bytes:
    """The byte of a token as <0x0A>."""
    try:
        return bytes([int(text[3:5], 16)]) if text.startswith(b"<0x") else b""
    except ValueError:
        return b""


def _characters_of_bytes() -> dict[int, int]:
    """From the characters that a byte-level vocabulary writes for bytes to those bytes (bytes_to_unicode of
    GPT-2's encoder.py).
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: byte for byte in plain} | {256 + i: byte for i, byte in enumerate(others)}


_BYTES_OF_CHARACTERS = _characters_of_bytes()
