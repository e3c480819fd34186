"""The parts of a file with a head, as headers of their own, so that the memory of each can be planned.

llama.cpp keeps two contexts for them: the model's has no cache for the head's blocks, the head's none for the
others.
"""

from __future__ import annotations

from specllama.gguf.header import Header
from specllama.heads import HEAD_ARCHITECTURES, file_head
from specllama.heads.blocks import of_blocks
from specllama.heads.kind import HeadInfo

_F32 = 4


def without_head(header: Header) -> Header:
    """The model without its blocks of multi-token prediction, which its own context does not use."""
    n = header.n_layer_trunk
    if n == header.n_layer or header.architecture in HEAD_ARCHITECTURES:
        return header
    dropped = tuple(f"blk.{i}." for i in range(n, header.n_layer))
    tensors = tuple(t for t in header.tensors if not t.name.startswith(dropped))
    return of_blocks(header, range(n), tensors)


def as_head(draft: Header | HeadInfo) -> Header | HeadInfo:
    """The head that a draft's file is; the header of another file as it is."""
    return draft if isinstance(draft, HeadInfo) else file_head(draft) or draft


def row_buffers(head: HeadInfo, n_batch: int) -> int:
    """Bytes of the buffers through which hidden states of a batch go from the target to the head and back."""
    width = head.n_embd_target * max(1, len(head.target_layers))
    return n_batch * (width + max(head.n_embd, head.n_embd_target)) * _F32
