"""specllama: GGUF models answer faster on your own machine, without changing a token of what they write.

Importing this loads neither llama.cpp nor numpy nor a web framework; names arrive when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specllama.core.params import SamplingParams
    from specllama.core.stats import RunStats
    from specllama.errors import SpecllamaError
    from specllama.process.client import EngineClient
    from specllama.settings import LoadSettings, ModelSettings

__version__ = "0.1.0"
__all__ = ["EngineClient", "LoadSettings", "ModelSettings", "RunStats", "SamplingParams", "SpecllamaError"]

_HOMES = {
    "EngineClient": "specllama.process.client",
    "LoadSettings": "specllama.settings",
    "ModelSettings": "specllama.settings",
    "RunStats": "specllama.core.stats",
    "SamplingParams": "specllama.core.params",
    "SpecllamaError": "specllama.errors",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'specllama' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
