"""The tensor d2t of heads that propose a part of the vocabulary: the ids of what they propose."""

from __future__ import annotations

import numpy as np

from specllama.errors import GGUFError, IntegrityError
from specllama.gguf.header import Header, dims, tensor_names
from specllama.heads.kind import GET_ANOTHER, HeadInfo, require_shape
from specllama.regular_file import open_regular


def n_proposed(header: Header, own_output: bool) -> int:
    """Tokens that a head proposes. own_output: whether it has an output matrix. Raises GGUFError for a
    tensor d2t that does not fit.
    """
    info = next((t for t in header.tensors if t.name == "d2t"), None)
    if info is None:
        return header.n_vocab
    where = f"{header.path}: tensor 'd2t', data at byte {info.offset}"
    if info.type != "I64" or len(info.shape) != 1 or not 1 <= info.n_elements <= header.n_vocab:
        present = f"{dims(info.shape)} of type {info.type}"
        raise GGUFError(
            f"{where}: {present}, not I64 and one id for each of up to {header.n_vocab} tokens", GET_ANOTHER
        )
    if not own_output:
        raise GGUFError(
            f"{where}: a shortened vocabulary needs output.weight, which the file lacks", GET_ANOTHER
        )
    if "output.weight" in tensor_names(header):
        require_shape(header, "output.weight", (header.n_embd, info.n_elements))
    return info.n_elements


def read_d2t(head: HeadInfo) -> None:
    """Check the ids in a head's d2t tensor, which is read from the local file.

    Raises GGUFError for ids outside the vocabulary or twice: llama.cpp would write outside its buffers. Does
    nothing without such a tensor.
    """
    info = next((t for t in head.header.tensors if t.name == "d2t"), None)
    if info is None:
        return
    path = head.header.parts[info.part] if head.header.parts else head.path
    try:
        with open_regular(path) as source:
            source.seek(info.offset)
            data = source.read(info.n_bytes)
    except OSError as error:
        raise IntegrityError(f"{path} cannot be read: {error.strerror or error}") from None
    ids = np.frombuffer(data[: len(data) // 8 * 8], "<i8")
    where = f"{path}: tensor 'd2t', data at byte {info.offset}"
    if len(ids) != head.n_proposed:
        raise GGUFError(f"{where}: {len(ids)} ids of {head.n_proposed}", GET_ANOTHER)
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < head.n_vocab:
        raise GGUFError(f"{where}: ids from {ids.min()} to {ids.max()} of {head.n_vocab} tokens", GET_ANOTHER)
    if len(np.unique(ids)) != len(ids):
        raise GGUFError(f"{where}: an id occurs twice", GET_ANOTHER)
