"""What two vocabularies have in common: the tokens of equal text, for a draft that has other ids, or other
tokens, than its target. Reads no model file; overlap_file.py stores what large ones share.

Tokens are compared by the bytes that they stand for, as in TLI (Timor et al., arXiv 2502.05202). Control
tokens are the same where their texts are equal, or where they end a turn or a text in both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from specllama.errors import Note
from specllama.gguf.header import Header
from specllama.gguf.trimmed import is_trimmed
from specllama.pair import overlap_file
from specllama.pair.check import PairVerdict
from specllama.pair.head_check import HeadVerdict, check_any
from specllama.pair.shared_tokens import Overlap
from specllama.pair.token_bytes import KINDS, TokenBytes, token_bytes
from specllama.pair.vocab import named_id, read_vocab

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
    if (stored := overlap_file.read(target, draft)) is not None:
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
        return None, f"the vocabularies have nothing in common: {shared.n_shared} tokens shared"
    overlap_file.write(target, draft, shared)
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
    roles = (
        (b.bos_id, a.bos_id),
        (_turn_end(draft, theirs), _turn_end(target, ours)),
        (b.eos_id, a.eos_id),
    )
    for own_id, token in roles:
        if own_id is not None and token is not None:
            yield own_id, token


def _turn_end(header: Header, tokens: TokenBytes) -> int | None:
    """The token that ends a turn in a chat: named by the header, or by its usual texts; else the one that
    ends a text.
    """
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
