"""What the context of a head needs to know of its target's, and what stands in for it without a target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from specllama.llama.model import LlamaModel


class HeadHost(Protocol):
    """What a head's context needs to know of its target's. handle: None where there is no target."""

    @property
    def handle(self) -> Any: ...
    @property
    def model(self) -> LlamaModel: ...
    @property
    def n_seq_max(self) -> int: ...
    @property
    def n_outputs_max(self) -> int: ...
    @property
    def n_threads(self) -> int: ...
    @property
    def n_threads_batch(self) -> int: ...


@dataclass(frozen=True, slots=True)
class NoTarget:
    """In place of a target's context, for a head that uses nothing of it."""

    model: LlamaModel
    handle: Any = None
    n_seq_max: int = 1
    n_outputs_max: int = 16
    n_threads: int = 1
    n_threads_batch: int = 1
