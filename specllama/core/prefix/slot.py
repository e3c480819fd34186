"""A slot: a sequence of the target's cache, and what is in it. Knows no policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specllama.core.interfaces import Context
from specllama.core.prefix.stored import PartialState

if TYPE_CHECKING:
    from specllama.core.sequence import Generation


@dataclass(slots=True)
class Slot:
    """A sequence of the target's cache. ids: the ids in the cache while no generation uses it. partials:
    states at boundaries within them, or within those of the generation. scope: whose ids they are; only
    generations of the same `Request.cache_scope` reuse them. kept: whether they may be written to the disk.
    n_prompt: ids of the last prompt. n_whole: ids at the start that were evaluated in whole chunks of an
    exact prompt, in the first cells of the cache. n_begun: ids from which on its last prompt was evaluated.
    last_used: time by the engine's clock. owner: the
    generation that uses it.
    """

    seq_id: int
    ids: list[int] = field(default_factory=list)
    scope: str = ""
    partials: list[PartialState] = field(default_factory=list)
    n_prompt: int = 0
    n_whole: int = 0
    n_begun: int = 0
    last_used: float = 0.0
    priority: float = 0.0
    uses: int = 0
    kept: bool = True
    owner: Generation | None = None


def empty(target: Context, slot: Slot) -> None:
    """Free the slot's cells, and forget its text."""
    target.truncate(slot.seq_id, 0)
    slot.ids, slot.partials, slot.n_prompt, slot.n_whole, slot.n_begun, slot.uses = [], [], 0, 0, 0, 0
