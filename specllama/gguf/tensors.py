"""The tensors of a header by their names: which there are, their shapes, and the first that is missing."""

from __future__ import annotations

from collections.abc import Iterable

from specllama.gguf.header import Header


def tensor_names(header: Header) -> frozenset[str]:
    """The names of all tensors of a file."""
    return frozenset(t.name for t in header.tensors)


def first_missing(names: frozenset[str], needed: Iterable[str]) -> str:
    """The first of the needed weights that is missing, "" if none is."""
    return next((f"{name}.weight" for name in needed if f"{name}.weight" not in names), "")


def tensor_shape(header: Header, name: str) -> tuple[int, ...]:
    """A tensor's shape, () if there is no such tensor."""
    return next((t.shape for t in header.tensors if t.name == name), ())


def dims(shape: tuple[int, ...]) -> str:
    """A shape for messages."""
    return " × ".join(map(str, shape))
