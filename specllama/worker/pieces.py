"""The bytes and the text that ids stand for, control tokens spelt out."""

from __future__ import annotations

from collections.abc import Sequence

from specllama.llama.model import LlamaModel


def spelt(model: LlamaModel, ids: Sequence[int]) -> str:
    """The text of ids, control tokens spelt out."""
    return b"".join(token_bytes(model, i) for i in ids).decode("utf-8", "replace")


def token_bytes(model: LlamaModel, token: int) -> bytes:
    """The bytes of a token, of a control token those of its name."""
    return model.piece(token) or model.token_text(token).encode()
