"""What tells a model's file from others in stored measurements, without reading its weights."""

from __future__ import annotations

from specllama.gguf.header import Header


def identity(header: Header) -> list[str | int]:
    """Name, architecture, quantisation and sizes, in types that JSON preserves."""
    return [header.name, header.architecture, header.quant, header.n_params, header.file_bytes]
