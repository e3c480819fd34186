"""The bytes and the text that ids stand for, control tokens spelt out."""

from __future__ import annotations

from collections.abc import Sequence

from specllama.llama.model import LlamaModel


def spelt(model: LlamaModel, ids: Sequence[int], skip_special: bool = False) -> str:
    """The text of ids, control tokens spelt out or left out."""
    pieces = (model.piece(i) if skip_special else token_bytes(model, i) for i in ids)
    return b"".join(pieces).decode("utf-8", "replace")


def token_bytes(model: LlamaModel, token: int) -> bytes:
    """The bytes of a token, of a control token those of its name."""
    return model.piece(token) or model.token_text(token).encode()
