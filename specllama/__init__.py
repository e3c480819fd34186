"""specllama: GGUF models answer faster on your own machine, without changing a token of what they write.

Importing this loads neither llama.cpp nor numpy nor a web framework; names are imported when first used.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # stands for typing's, whose import would take most of the time of this one
if TYPE_CHECKING:
    from typing import Any

    from specllama.api.async_llm import AsyncLLM
    from specllama.api.llm import LLM
    from specllama.api.outputs import (
        CompletionOutput,
        CompletionStats,
        Delta,
        EmbeddingRequestOutput,
        Logprob,
        RequestOutput,
        ScoringRequestOutput,
    )
    from specllama.api.prompts import TextPrompt, TokensPrompt
    from specllama.client.client import EngineClient
    from specllama.config.load import LoadSettings, ModelSettings
    from specllama.core.sampling.params import SamplingParams
    from specllama.core.stats import RunStats
    from specllama.errors import SpecllamaError

__version__ = "0.1.0"
__all__ = [  # noqa: RUF022 - in the order of sorted()
    "AsyncLLM",
    "CompletionOutput",
    "CompletionStats",
    "Delta",
    "EmbeddingRequestOutput",
    "EngineClient",
    "LLM",
    "LoadSettings",
    "Logprob",
    "ModelSettings",
    "RequestOutput",
    "RunStats",
    "SamplingParams",
    "ScoringRequestOutput",
    "SpecllamaError",
    "TextPrompt",
    "TokensPrompt",
]

_HOMES = {
    "api.async_llm": "AsyncLLM",
    "api.llm": "LLM",
    "api.outputs": "CompletionOutput CompletionStats Delta Logprob RequestOutput EmbeddingRequestOutput "
    "ScoringRequestOutput",
    "api.prompts": "TextPrompt TokensPrompt",
    "client.client": "EngineClient",
    "config.load": "LoadSettings ModelSettings",
    "core.sampling.params": "SamplingParams",
    "core.stats": "RunStats",
    "errors": "SpecllamaError",
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names.split():
            return getattr(import_module(f"specllama.{module}"), name)
    raise AttributeError(f"module 'specllama' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
