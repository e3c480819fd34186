"""What a draft consists of for trimming, from its header: which tensors have a row for each token.

Reads no tensor but a head's d2t.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specllama.errors import GGUFError, NotFoundError, ResourceError, UsageError
from specllama.gguf.header import Header, tensor_names
from specllama.gguf.parse import StringArray, TensorInfo
from specllama.gguf.trimmed import is_trimmed
from specllama.heads import read_head
from specllama.heads.kind import HeadInfo
from specllama.pair.vocab import NORMAL, UNUSED, end_ids, read_vocab, token_types
from specllama.prefix_disk.directory import StateDirectory, default_directory

EMBEDDINGS, OUTPUT = "token_embd.weight", "output.weight"
_ROWS = re.compile(
    r"token_embd\.weight|output\.(weight|bias)|per_layer_token_embd\.weight"
    r"|blk\.\d+\.(nextn\.(embed_tokens|shared_head_head)\.weight|ffn_gate_tid2eid(\.weight)?)"
)
_OUTPUTS = re.compile(r"output\.weight|blk\.\d+\.nextn\.shared_head_head\.weight")
_D2T_ROWS = re.compile(r"output\.weight|markov_w2\.weight")
_BLOCK = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True, eq=False)
class TrimSource:
    """A draft to trim. head: it is a head, or the head inside the model; None for a draft model. possible:
    ids that it can propose, in the order of its output's rows; None for all in order.
    """

    header: Header
    head: HeadInfo | None
    possible: NDArray[np.int64] | None = None

    @property
    def keeps_tokenizer(self) -> bool:
        """Whether the file keeps all tokens, and a tensor d2t says which of them are proposed."""
        return self.head is not None and self.head.kind.keeps_tokenizer

    @property
    def tensors(self) -> list[TensorInfo]:
        """The tensors of the trimmed file: of the head inside a model without the model's blocks."""
        tensors = [t for t in self.header.tensors if t.name != "d2t"]
        if self.head is None or self.head.own_file:
            return tensors
        n = self.head.n_layer_target
        return [t for t in tensors if (block := _BLOCK.match(t.name)) is None or int(block[1]) >= n]

    def has_rows(self, name: str) -> bool:
        """Whether this tensor has a row for each token that can be proposed."""
        return bool((_D2T_ROWS if self.keeps_tokenizer else _ROWS).fullmatch(name))

    @staticmethod
    def is_output(name: str) -> bool:
        """Whether this tensor is multiplied for the logits."""
        return bool(_OUTPUTS.fullmatch(name))

    @property
    def is_tied(self) -> bool:
        """Whether the embeddings are the output matrix too."""
        return not any(self.is_output(t.name) for t in self.tensors)


def trim_source(header: Header, inside: bool, possible: NDArray[np.int64] | None) -> TrimSource:
    """What to trim of a file whose header has passed `check_draft`. inside: the head inside a model.
    possible: the ids of its tensor d2t, if there is one. Raises UsageError for what cannot be trimmed,
    GGUFError for a damaged one.
    """
    if is_trimmed(header):
        raise UsageError(f"{header.path} is trimmed already", "trim the file that it was made from")
    head = read_head(header)
    if inside and (head is None or head.own_file):
        raise UsageError(f"{header.path} has no head inside that can be used", option="head")
    if head is not None and not head.own_file and not inside:
        head = None  # the model itself as a draft
    if head is not None and head.kind.untrimmable:
        raise UsageError(f"{header.path} cannot be trimmed: {head.kind.untrimmable}")
    source = TrimSource(header, head, possible)
    n_rows = header.n_vocab if possible is None else len(possible)
    for t in source.tensors:
        if source.has_rows(t.name) and t.shape[-1] != n_rows:
            reason = f"tensor {t.name!r} has {t.shape[-1]} rows for {n_rows} tokens"
            raise GGUFError(f"{header.path}: {reason}", "Get another file of the model.")
    names = tensor_names(header)
    if source.keeps_tokenizer and OUTPUT not in names:
        why = "the head uses the output matrix of its target"
        raise UsageError(f"{header.path} cannot be trimmed: {why}")
    return source


# Which tokens a trimmed draft keeps: all that have a meaning of their own, those of given texts, then those
# that the tokenizer learnt first.
#
# A tokenizer learns the most frequent pairs first: the rank of a merge (BPE) and the score of a token
# (SentencePiece) are orders by frequency (FR-Spec, Zhao et al. 2025, arXiv 2502.14856, takes the frequencies
# themselves). Tokens of the user's own texts come before that order.


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


# The tokens of prompts and texts that were evaluated before and are kept on disk (prefix_disk).
#
# Counts only: which tokens, not in which order. Somebody who gets a file that was trimmed with them can see
# from its tokens what was said rarely elsewhere and often here.


def seen_tokens(models: Sequence[str], say: Callable[[str], None]) -> dict[int, int]:
    """How often each token is in the prompts of these models, by the names that `specllama cache` shows; each
    beginning of a prompt that several of them share counts once a prompt.

    Raises NotFoundError for a model without any, ResourceError where the directory cannot be read.
    """
    if not models:
        return {}
    counts, missing = Counter[int](), set(models)
    directory = StateDirectory(default_directory(), say)
    try:
        names = directory.sizes() if directory.open(create=False) else {}
        for name in names:
            state = directory.state(name)
            if state is None or state.meta.model not in models:
                continue
            missing.discard(state.meta.model)
            ids, n = np.unique(np.frombuffer(state.ids, "<i4"), return_counts=True)
            counts.update(dict(zip(ids.tolist(), n.tolist(), strict=True)))
    except OSError as error:
        raise ResourceError(f"{directory.path} cannot be read: {error.strerror or error}") from None
    if missing:
        name = sorted(missing)[0]
        raise NotFoundError(f"no prompt of {name!r} is kept on disk", "specllama cache lists them")
    return dict(counts)
