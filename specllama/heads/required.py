"""What the file of a head must have: raises GGUFError for tensors that are missing or of another shape."""

from __future__ import annotations

from collections.abc import Iterable

from specllama.errors import GGUFError
from specllama.gguf.header import MAX_LAYERS, Header
from specllama.gguf.tensors import dims, first_missing, tensor_names, tensor_shape

GET_ANOTHER = "Get another file of the head."


def require(header: Header, needed: Iterable[str], n_layer: int, block: str) -> None:
    """Raises GGUFError if weights are missing: those `needed`, and those of each block, as words."""
    if not 1 <= n_layer <= MAX_LAYERS:
        header.fail(
            f"{header.architecture}.block_count", f"{n_layer} is not in 1 to {MAX_LAYERS}", GET_ANOTHER
        )
    wanted = [*needed, *(f"blk.{i}.{name}" for i in range(n_layer) for name in block.split())]
    if missing := first_missing(tensor_names(header), wanted):
        raise GGUFError(
            f"{header.path}: {len(header.tensors)} tensors: {missing} is not among them", GET_ANOTHER
        )


def require_shape(header: Header, name: str, expected: tuple[int, int]) -> None:
    """Raises GGUFError if a tensor has another shape."""
    if (shape := tensor_shape(header, name)) != expected:
        message = f"{header.path}: tensor {name!r} is {dims(shape)}, not {dims(expected)}"
        raise GGUFError(message, GET_ANOTHER)
