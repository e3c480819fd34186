"""What a draft consists of for trimming, from its header: which tensors have a row for each token.

Reads no tensor but a head's d2t.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specllama.errors import GGUFError, UsageError
from specllama.gguf.header import Header
from specllama.gguf.parse import TensorInfo
from specllama.gguf.tensors import tensor_names
from specllama.gguf.trimmed import is_trimmed
from specllama.heads import read_head
from specllama.heads.kind import HeadInfo

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
