"""The embedded pair, two GGUF files; CARD.md says what they are."""

from __future__ import annotations

from pathlib import Path

EMBEDDED_TARGET = Path(__file__).parent / "pydoc-target.gguf"
EMBEDDED_DRAFT = Path(__file__).parent / "pydoc-draft.gguf"
