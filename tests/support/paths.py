"""Where things are in a checkout."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "specllama" / "llama" / "native"
SHARED = ROOT.parent / "shared"  # next to a developer's checkout; tests that use it skip without it
