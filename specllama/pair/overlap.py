"""The tokens that two vocabularies share: those of equal text, for a draft that has other ids, or other
tokens, than its target. Reads no model file; what large ones share is stored.

Tokens are compared by the bytes that they stand for, as in TLI (Timor et al., arXiv 2502.05202).
Control tokens are the same where their texts are equal, or where they end a turn or a text in both.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import specllama
from specllama.config.places import close_to_others
from specllama.config.store import cache_dir, write_whole
from specllama.errors import Note
from specllama.gguf.header import Header
from specllama.gguf.parse import StringArray
from specllama.gguf.trimmed import is_trimmed
from specllama.pair.check import HeadVerdict, PairVerdict, check_any
from specllama.pair.vocab import KINDS, Overlap, TokenBytes, named_id, read_vocab, token_bytes
from specllama.regular_file import read_regular

# Comparisons of large vocabularies on disk: comparing 128,000 to 260,000 tokens takes a second or more.
#
# A file is named by the tokenizers of both models, and holds a digest of its name and contents: one that is
# damaged, of another version, or of other tokenizers counts as missing.


LEAST_TOKENS = 1 << 16  # of both vocabularies, from which a comparison takes longer than reading its file
MAX_FILES = 16
_VERSION = 2
_DIGEST = hashlib.sha256().digest_size
_MOST_BESIDE = 1 << 12  # bytes of a file that are no contents of its arrays


def read(target: Header, draft: Header) -> Overlap | None:
    """The stored comparison of the tokenizers of two models, None without one that is whole."""
    if (path := _path(target, draft)) is None:
        return None
    most = _MOST_BESIDE + 8 * draft.n_vocab + target.n_vocab // 8
    try:
        data = read_regular(path, most + 1)
    except OSError:
        return None
    body = data[_DIGEST:]
    if len(data) > most or _digest(path, body) != data[:_DIGEST]:
        return None
    stored = np.load(io.BytesIO(body))
    ids, never_drafted = (stored[name].astype(np.int64) for name in ("to_target", "never_drafted"))
    n, n_shared, n_ordinary = stored["counts"].tolist()
    may_grow = np.unpackbits(stored["may_grow"], count=n).astype(np.bool_)
    return Overlap(ids, n, may_grow, never_drafted, n_shared, n_ordinary)


def write(target: Header, draft: Header, shared: Overlap) -> None:
    """Store it for the tokenizers of two models, if they are large; a cache that cannot be written is not an
    error. Only the newest MAX_FILES files are kept.
    """
    if (path := _path(target, draft)) is None:
        return
    file = io.BytesIO()
    np.savez(
        file,
        counts=np.array([shared.n_target, shared.n_shared, shared.n_ordinary]),
        to_target=shared.to_target.astype("<i4"),
        never_drafted=shared.never_drafted.astype("<i4"),
        may_grow=np.packbits(shared.may_grow),
    )
    with contextlib.suppress(OSError):
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(mode=0o700)
        close_to_others(path.parent)
        write_whole(path, _digest(path, file.getvalue()) + file.getvalue(), 0o600)
        newest_first = sorted(path.parent.glob("*.overlap"), key=lambda one: -one.stat().st_mtime)
        for old in newest_first[MAX_FILES:]:
            old.unlink(missing_ok=True)


def _path(target: Header, draft: Header) -> Path | None:
    """The file for the tokenizers of two models, None for small ones."""
    if target.n_vocab + draft.n_vocab < LEAST_TOKENS:
        return None
    key = f"{_VERSION} {specllama.__version__} {_tokenizer(target)} {_tokenizer(draft)}"
    return cache_dir() / "vocabularies" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.overlap"


def _tokenizer(header: Header) -> str:
    """A hash of all that a header says about its tokenizer."""
    digest = hashlib.sha256()
    for key in sorted(header.metadata):
        if key.startswith("tokenizer.ggml."):
            value = header.metadata[key]
            if isinstance(value, StringArray):
                data, kind = value.encoded, "strings"
            elif isinstance(value, np.ndarray):
                data, kind = value.tobytes(), str(value.dtype)
            else:
                data, kind = repr(value).encode(), ""
            digest.update(f"{key} {kind} {len(data)} ".encode())
            digest.update(data)
    return digest.hexdigest()


def _digest(path: Path, body: bytes) -> bytes:
    return hashlib.sha256(path.name.encode() + body).digest()


MIN_SHARED = 0.01  # of the draft's tokens, below which the vocabularies have nothing in common


def translated(pair: PairVerdict, shared: Overlap) -> PairVerdict:
    """The verdict on an incompatible pair whose draft's tokens are translated."""
    note = Note(f"the draft's tokens are translated, {shared.label}: {pair.reason}")
    return replace(pair, verdict="translated", reason=shared.label, notes=(note, *pair.notes))


def check_translated(target: Header, draft: Header, translates: bool) -> PairVerdict | HeadVerdict:
    """As `check_any`; with `translates`, the tokens of a draft model that does not fit are translated."""
    verdict = check_any(target, draft)
    if verdict.ok or not translates or isinstance(verdict, HeadVerdict):
        return verdict
    shared, _ = overlap(target, draft)
    return verdict if shared is None else translated(verdict, shared)


def overlap(target: Header, draft: Header) -> tuple[Overlap | None, str]:
    """(what the vocabularies share, ""), or (None, why a draft with this vocabulary cannot be translated).
    What large vocabularies share is read from the cache if it was worked out before.
    """
    if is_trimmed(draft):
        return None, "a trimmed draft is for the vocabulary that it was trimmed from"
    if (stored := read(target, draft)) is not None:
        return stored, ""
    ours, theirs = token_bytes(target), token_bytes(draft)
    for who, header, spelling in (("target", target, ours), ("draft", draft, theirs)):
        if spelling is None:
            kind = read_vocab(header).kind
            return None, f"the {who}'s tokenizer, {kind}, is not one of {', '.join(KINDS)}"
    assert ours is not None
    assert theirs is not None
    shared = _compared(target, draft, ours, theirs)
    if shared.share < MIN_SHARED:
        n_draft = theirs.vocab.n_tokens
        return None, f"the vocabularies share {shared.n_shared} of the draft's {n_draft} tokens"
    write(target, draft, shared)
    return shared, ""


def _compared(target: Header, draft: Header, ours: TokenBytes, theirs: TokenBytes) -> Overlap:
    by_text = {piece: i for i, piece in reversed(list(enumerate(ours.pieces))) if piece}
    to_target = np.full(theirs.vocab.n_tokens, -1, np.int64)
    shared: set[int] = set()
    for i, piece in enumerate(theirs.pieces):
        token = by_text.get(piece, -1) if piece else -1
        if token >= 0 and token not in shared:
            shared.add(token)
            to_target[i] = token
    n_shared = len(shared)
    for own, token in _special(target, draft, ours, theirs):
        if to_target[own] < 0 and token not in shared:
            shared.add(token)
            to_target[own] = token
    empty = np.array([not piece for piece in theirs.pieces], np.bool_)
    return Overlap(
        to_target,
        ours.vocab.n_tokens,
        _may_grow(ours.pieces, set(theirs.pieces)),
        np.flatnonzero(empty & (to_target < 0)),
        n_shared,
        int(np.count_nonzero(~empty)),
    )


def _special(
    target: Header, draft: Header, ours: TokenBytes, theirs: TokenBytes
) -> Iterator[tuple[int, int]]:
    """Control tokens of equal text, then those of equal role: the draft's id, the target's."""
    for text, own in theirs.special.items():
        if text in ours.special:
            yield own, ours.special[text]
    a, b = ours.vocab, theirs.vocab
    roles = ((b.bos_id, a.bos_id), (_turn_end(draft, theirs), _turn_end(target, ours)), (b.eos_id, a.eos_id))
    for own_id, token in roles:
        if own_id is not None and token is not None:
            yield own_id, token


def _turn_end(header: Header, tokens: TokenBytes) -> int | None:
    """The token that ends a turn: named by the header, by its usual texts, or the one that ends a text."""
    if (named := named_id(header, tokens.vocab, "eot")) is not None:
        return named
    texts = (b"<|im_end|>", b"<|eot_id|>", b"<end_of_turn>", b"<turn|>", b"<|end|>", b"<end_of_utterance>")
    return next((tokens.special[text] for text in texts if text in tokens.special), tokens.vocab.eos_id)


def _may_grow(pieces: list[bytes], known: set[bytes]) -> NDArray[np.bool_]:
    """Whether each piece is a proper prefix of one that is not `known`. In sorted order the prefixes of a
    piece are before it, and form a chain.
    """
    grows = [False] * len(pieces)
    chain: list[tuple[bytes, int]] = []
    for piece, i in sorted(zip(pieces, range(len(pieces)), strict=True)):
        while chain and not piece.startswith(chain[-1][0]):
            chain.pop()
        if piece not in known:
            for _, j in reversed(chain):
                if grows[j]:
                    break  # and so are those before it
                grows[j] = True
        if piece and not (chain and chain[-1][0] == piece):
            chain.append((piece, i))
    return np.array(grows, np.bool_)
