"""What the server reads of the bodies that request texts, in all APIs."""

from __future__ import annotations

from typing import Protocol


class MemoryChoice(Protocol):
    """The part of `speculation` in a body that the server reads."""

    memory: bool


class CacheUse(Protocol):
    """The part of `cache` in a body that the server reads."""

    reuse: bool


class GeneratingBody(Protocol):
    """Fields of these bodies. kept: prompt and text may be written to disk.
    keep_alive: seconds, negative for ever.
    """

    @property
    def stream(self) -> bool: ...

    @property
    def speculation(self) -> MemoryChoice: ...

    @property
    def cache(self) -> CacheUse: ...

    @property
    def kept(self) -> bool: ...

    @property
    def keep_alive(self) -> float | None: ...

    @property
    def num_ctx(self) -> int | None: ...
