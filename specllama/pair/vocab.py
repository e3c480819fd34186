"""A vocabulary as llama.cpp's loader (src/llama-vocab.cpp) builds it from a header, with its defaults.

Reads no model file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specllama.gguf.architectures import TOKENIZERS
from specllama.gguf.check import NO_TOKENIZER
from specllama.gguf.header import Header
from specllama.regular_file import table_of

_LONGEST = 60  # characters of a text that are shown

_TABLE = table_of(__file__)
PRE_TYPES = {"": "default"} | {name: name for name in _TABLE["pre_alone"].split()}
PRE_TYPES |= {name: line.split()[0] for line in _TABLE["pre_alike"] for name in line.split()}
_ADD_BOS = frozenset(("llama3", "tekken", "chameleon"))  # by default
_FORCE_BOS = "gemma4"  # whatever the key says

_END_TEXTS = _TABLE["ends"].encode().split()
_FILL_TEXTS = {key: texts.encode().split() for key, texts in _TABLE["fill"].items()}
_WANTED = frozenset((*_END_TEXTS, *(text for texts in _FILL_TEXTS.values() for text in texts)))

_KMER_MARK = "\ue000".encode()


@dataclass(frozen=True)
class Vocab:
    """A vocabulary as llama.cpp would load it. A token id is None if there is no such token.

    kind: a value of TOKENIZERS, or "none". pre: the pre-tokenizer's name, "" without one. texts: the text of
    every id, as compared by llama.cpp.
    """

    kind: str
    pre: str
    n_tokens: int
    bos_id: int | None
    eos_id: int | None
    add_bos: bool
    add_eos: bool
    texts: Sequence[bytes] = field(default=(), repr=False)

    @property
    def pre_type(self) -> str | None:
        """The first name of the pre-tokenizer's group; None for a name that llama.cpp does not know."""
        return PRE_TYPES.get(self.pre)

    def text(self, token: int) -> str | None:
        """The text of an id, with invalid UTF-8 as \\xNN; None for an id outside the vocabulary."""
        return self.texts[token].decode(errors="backslashreplace") if token < len(self.texts) else None

    def named(self, token: int | None) -> str:
        """An id and its text for messages; "none" for None."""
        return "none" if token is None else f"{token} {shown(self.text(token))}"


def shown(text: str | None) -> str:
    """A text for messages: quoted, without control characters, shortened to 60 characters."""
    if text is None:
        return "none"
    return repr(text) if len(text) <= _LONGEST else f"{text[:_LONGEST]!r}…"


def read_vocab(header: Header) -> Vocab:
    """The vocabulary that a header describes, with llama.cpp's defaults; ids out of range are ignored."""
    model = _c_string(header, "tokenizer.ggml.model")
    kind = "none" if model in NO_TOKENIZER else TOKENIZERS.get(model, "none")
    if kind == "none":
        return Vocab(kind, "", header.arch_integer("vocab_size"), None, None, add_bos=False, add_eos=False)
    default: dict[str, Any] = _TABLE["defaults"][kind]
    bos_id, eos_id, add_bos = default.get("bos_id"), default.get("eos_id"), "add_bos" in default
    pre = ""
    if kind == "bpe":
        pre = "gemma4" if model == "gemma4" else _c_string(header, "tokenizer.ggml.pre")
        pre_type = PRE_TYPES.get(pre)
        add_bos = pre_type in _ADD_BOS
        bos_id = None if pre_type == "chatglm-bpe" or model == "gemma4" else bos_id
        eos_id = None if model == "gemma4" else eos_id
    texts = header.token_texts
    if model == "hybriddna" and b"<oov>" in texts:  # its DNA tokens, after <oov>, without their final mark
        first = texts.index(b"<oov>") + 1
        dna = (t if t == _KMER_MARK else t.removesuffix(_KMER_MARK) for t in texts[first:])
        texts = [*texts[:first], *dna]
    n_tokens = len(texts)
    return Vocab(
        kind=kind,
        pre=pre,
        n_tokens=n_tokens,
        bos_id=_in_range(header.bos_id, bos_id, n_tokens),
        eos_id=_in_range(header.eos_id, eos_id, n_tokens),
        add_bos=_flag(header, "add_bos_token", add_bos) or (kind == "bpe" and pre_type == _FORCE_BOS),
        add_eos=_flag(header, "add_eos_token", "add_eos" in default),
        texts=texts,
    )


def end_ids(header: Header, vocab: Vocab) -> frozenset[int]:
    """The tokens that end a generation, found as in llama.cpp: named by a key, or recognised by their text.

    If several texts match one fill-in-the-middle key, llama.cpp uses any of them, this function the first.
    """
    if vocab.kind == "none":
        return frozenset()
    by_text = {text: vocab.texts.index(text) for text in _WANTED.intersection(vocab.texts)}
    ids = {by_text[text] for text in _END_TEXTS if text in by_text}
    named = [vocab.eos_id, named_id(header, vocab, "eot"), named_id(header, vocab, "eom")]
    for key, texts in _FILL_TEXTS.items():
        by_key = named_id(header, vocab, key)
        named.append(next((by_text[t] for t in texts if t in by_text), None) if by_key is None else by_key)
    ids.update(i for i in named if i is not None)
    texts_of = {vocab.texts[i] for i in ids}
    # With the former tokens <|end|> only closes a part of the answer; with the latter </s> is ordinary text.
    if texts_of & {b"<|call|>", b"<|calls|>"} and texts_of & {b"<|return|>", b"<|flush|>"}:
        ids.discard(by_text.get(b"<|end|>", -1))
    if texts_of & {b"<|tool_response>", b"<|plamo:eos|>"}:
        ids.discard(by_text.get(b"</s>", -1))
    return frozenset(ids)


def named_id(header: Header, vocab: Vocab, key: str) -> int | None:
    """The id of the token that a key of the header names, as "eot"; None without one."""
    token = header.integer(f"tokenizer.ggml.{key}_token_id", -1)
    return token if 0 <= token < vocab.n_tokens else None


def _c_string(header: Header, key: str) -> str:
    return header.text(key).partition("\0")[0]


def _flag(header: Header, name: str, default: bool) -> bool:
    value = header.flag(f"tokenizer.ggml.{name}")
    return default if value is None else value


def _in_range(given: int | None, default: int | None, n_tokens: int) -> int | None:
    if given is not None and 0 <= given < n_tokens:
        return given
    return default if default is not None and default < n_tokens else None


NORMAL, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 3, 4, 5, 6  # llama_token_type


def token_types(header: Header, n: int) -> NDArray[np.int64]:
    """The llama_token_type of each of n tokens, NORMAL where the header has none; shape (n,)."""
    stored = header.metadata.get("tokenizer.ggml.token_type")
    types = np.full(n, NORMAL, np.int64)
    if isinstance(stored, np.ndarray):
        types[: len(stored)] = stored[:n]
    return types


_SPACE = "▁".encode()
_SEPARATOR = "\uf8ff"  # between texts that are translated together
KINDS = ("bpe", "spm", "ugm")  # the tokenizers whose texts are understood


@dataclass(frozen=True, eq=False)
class TokenBytes:
    """pieces: bytes by id, empty for tokens with a meaning. special: control tokens and ends, by text."""

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


# From the characters that a byte-level vocabulary writes for bytes to those bytes (bytes_to_unicode in
# GPT-2's encoder.py).
_PLAIN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PLAIN]
_BYTES_OF_CHARACTERS = dict(zip([*_PLAIN, *range(256, 256 + len(_OTHERS))], _PLAIN + _OTHERS, strict=True))


Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Overlap:
    """The tokens that a draft shares with its target.

    to_target: the target's id of each token of the draft, -1 for those that it lacks; no id occurs twice.
    n_target: tokens of the target. may_grow: by the target's id, whether the text of a token is the beginning
    of a token that the draft lacks: what the draft spells as this token and the next one may be one token of
    the target. never_drafted: tokens of the draft that stand for no text and that the target lacks. n_shared:
    ordinary tokens in both, of the n_ordinary that the draft has.
    """

    to_target: Ids
    n_target: int
    may_grow: NDArray[np.bool_]
    never_drafted: Ids
    n_shared: int
    n_ordinary: int

    @property
    def share(self) -> float:
        """Of the draft's ordinary tokens, those that the target has too."""
        return self.n_shared / max(1, self.n_ordinary)

    @property
    def label(self) -> str:
        return f"{100 * self.share:.0f} % of tokens shared"


def stand_ins(target: Header, draft: Header) -> Callable[[int], int]:
    """From a target's id to the draft's id of the longest token that the target's ends with, 0 for none."""

    @cache
    def own_ids() -> dict[bytes, int]:
        return {text: i for i, text in enumerate(draft.token_texts)}

    @cache
    def texts() -> list[bytes]:
        return target.token_texts

    @cache
    def stand_in(token: int) -> int:
        text = texts()[token] if token < len(texts()) else b""
        endings = (own_ids().get(text[at:]) for at in range(1, len(text)))
        return next((own for own in endings if own is not None), 0)

    return stand_in
