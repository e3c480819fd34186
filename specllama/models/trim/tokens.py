"""Which tokens a trimmed draft keeps: all that have a meaning of their own, those of given texts, then those
that the tokenizer learnt first.

A tokenizer learns the most frequent pairs first: the rank of a merge (BPE) and the score of a token
(SentencePiece) are orders by frequency (FR-Spec, Zhao et al. 2025, arXiv 2502.14856, takes the frequencies
themselves). Tokens of the user's own texts come before that order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from specllama.errors import UsageError
from specllama.gguf.header import Header
from specllama.gguf.strings import StringArray
from specllama.pair.token_types import NORMAL, UNUSED, token_types
from specllama.pair.vocab import end_ids, read_vocab

Ids = NDArray[np.int64]

MULTIPLE = 64  # of tokens: with others llama.cpp computes a quantised output matrix by slower kernels
DEFAULT_KEPT = 32768
_DEFAULT_SHARE = 4  # at most a quarter of a vocabulary is kept by default
_CHARACTERS = 256  # of SentencePiece, kept before all other tokens
_PLACEHOLDER = re.compile(
    rb"(?i)[<\[|]*_?(unused|reserved|extra|special|dummy|placeholder)[a-z_]*[-_ ]?\d+[|>\]]*"
)


def default_kept(n_vocab: int) -> int:
    """How many tokens are kept of a vocabulary if nobody says."""
    return min(DEFAULT_KEPT, -(-n_vocab // _DEFAULT_SHARE))


def choose(header: Header, n_kept: int | None, counts: Mapping[int, int], possible: Ids | None = None) -> Ids:
    """The ids to keep, ascending. n_kept: rounded up to a MULTIPLE; None for the default. counts: how often
    each token is in the given texts. possible: tokens that the draft can propose, None for all.

    Raises UsageError for a number that is not possible.
    """
    allowed = np.arange(header.n_vocab) if possible is None else np.sort(possible)
    special = np.intersect1d(special_ids(header), allowed)
    n = default_kept(len(allowed)) if n_kept is None else n_kept
    if n < 1:
        raise UsageError(f"{n} tokens cannot be kept", f"give 1 to {len(allowed)}", option="keep")
    if n > len(allowed):
        raise UsageError(f"must be at most the {len(allowed)} tokens of the draft, not {n}", option="keep")
    if n_kept is not None and n <= len(special):
        raise UsageError(
            f"must be more than the {len(special)} control and byte tokens, which are always kept, not {n}",
            option="keep",
        )
    n = min(-(-max(n, len(special) + 1) // MULTIPLE) * MULTIPLE, len(allowed))
    order = np.concatenate((special, _by_count(header, counts), by_frequency(header)))
    order = order[np.isin(order, allowed)]
    _, first = np.unique(order, return_index=True)
    return np.sort(order[np.sort(first)][:n])


def special_ids(header: Header) -> Ids:
    """The tokens that are always kept: control, user-defined and byte tokens, those that end a generation,
    and those that the header names. Control tokens that stand for nothing (<unused0>) are not among them.
    """
    texts, vocab = header.token_texts, read_vocab(header)
    special = ~np.isin(token_types(header, len(texts)), (NORMAL, UNUSED))
    ids = {i for i in np.flatnonzero(special).tolist() if not _PLACEHOLDER.fullmatch(texts[i])}
    if vocab.kind == "bpe":  # one character for each byte value
        ids.update(
            i for i, text in enumerate(texts) if len(text) <= 2 and len(text.decode(errors="replace")) == 1
        )
    ids.update(end_ids(header, vocab))
    named = (
        int(value) for key, value in header.metadata.items() if names_token(key) and isinstance(value, int)
    )
    ids.update(i for i in (*named, vocab.bos_id, vocab.eos_id) if i is not None and 0 <= i < len(texts))
    return np.array(sorted(ids), np.int64)


def names_token(key: str) -> bool:
    """Whether the value of a metadata key is the id of a token."""
    return key.startswith("tokenizer.ggml.") and key.endswith("_token_id")


def by_frequency(header: Header) -> Ids:
    """The ordinary tokens in the order in which the tokenizer learnt them, other ones last."""
    merges, scores = (header.metadata.get(f"tokenizer.ggml.{name}") for name in ("merges", "scores"))
    n = header.n_vocab
    rank = np.full(n, np.inf)
    if read_vocab(header).kind == "bpe" and isinstance(merges, StringArray):
        ranks = {raw.replace(b" ", b"", 1): i for i, raw in reversed(list(enumerate(merges.raws())))}
        rank = np.array([ranks.get(text, np.inf) for text in header.token_texts])
    elif isinstance(scores, np.ndarray) and len(scores) == n and bool((scores != scores[0]).any()):
        rank = -np.asarray(scores, np.float64)
        # Characters by themselves have the lowest scores, the most frequent ones first, and spell all else.
        single = [i for i, text in enumerate(header.token_texts) if len(text.decode(errors="replace")) == 1]
        first = sorted(single, key=lambda i: rank[i])[:_CHARACTERS]
        rank[first] = -np.inf
    rank[token_types(header, n) != NORMAL] = np.inf
    return np.argsort(rank, kind="stable").astype(np.int64)


def _by_count(header: Header, counts: Mapping[int, int]) -> Ids:
    """The tokens of texts, the most frequent first. Raises UsageError for one that the draft lacks."""
    n = header.n_vocab
    if counts and max(counts) >= n:
        raise UsageError(f"the texts have token {max(counts)}, the draft has {n} tokens")
    ids = sorted(counts, key=lambda token: (-counts[token], token))
    return np.array(ids, np.int64)
