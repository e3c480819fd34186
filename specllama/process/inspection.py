"""What this build of llama.cpp is and can use, for `doctor`. Runs in the engine process."""

from __future__ import annotations

from typing import Any

from specllama.llama import devices


def inspect_build() -> dict[str, Any]:
    """Devices as llama.cpp names them."""
    return {"devices": [{"name": d.name, "gpu": d.gpu, "free": d.free} for d in devices()]}
