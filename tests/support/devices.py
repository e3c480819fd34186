"""A device without a device: a table model whose decodes take the time and round as measured on a GPU.

Rows are bit-equal only among decodes of one width that see the same number of cells, and a cell computed with
other ones changes all rows after it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import BatchRow
from specllama.core.replay.simulator import ChangingDevice, SimulatedClock
from specllama.testing import Memory, TableContext, table_row

CURVES = Path(__file__).parents[1] / "unit/core/traces/gpu_curves.json"
VISIBLE = 256  # cells of which a decode sees a multiple


def curves() -> dict[str, dict[str, Any]]:
    """Those measured on an H100, and those that are made up for other devices."""
    data = json.loads(CURVES.read_text("utf-8"))
    return data["measured"] | data["made_up"]


class DeviceContext(TableContext):
    """A table model on such a device. clock: advanced by the time of each decode. noise: size of the rounding
    of single logits, against differences of about 3 between tokens.
    """

    def __init__(
        self,
        device: ChangingDevice,
        clock: SimulatedClock,
        *,
        noise: float = 0.3,
        seed: int = 0,
        n_vocab: int = 32,
        n_ctx: int = 2048,
        n_seq_max: int = 1,
        memory: Memory = "full",
        n_spare: int = 0,
        max_rollback: int = 16,
    ) -> None:
        super().__init__(
            n_vocab, n_ctx, n_seq_max, memory, n_batch=64, max_rollback=max_rollback, n_spare=n_spare
        )
        self.device, self.clock, self.noise, self.model_seed = device, clock, noise, seed
        self.tags: dict[int, list[int]] = {i: [] for i in range(n_seq_max)}  # how each cell was computed

    def random_token(self) -> int:
        return 4

    def _evaluate(self, batch: Sequence[BatchRow]) -> list[NDArray[np.float32]]:
        for seq_id, tags in self.tags.items():
            del tags[len(self.cells[seq_id]) :]
        self.clock.spend(self.device(len(batch)))
        visible = -(-(max(row.pos for row in batch) + 1) // VISIBLE)
        out = []
        for row in batch:
            cells, tags = self.cells[row.seq_id], self.tags[row.seq_id]
            assert row.pos == len(cells), f"position {row.pos} of sequence {row.seq_id} follows {len(cells)}"
            before = tags[-1] if tags else 0
            cells.append(row.token)
            tags.append(hash((before, len(batch), visible)))
            if row.output:
                logits = table_row(cells, self.n_vocab, self.model_seed)
                if self.noise:
                    rounding = np.random.default_rng(tags[-1] & (2**63 - 1)).standard_normal(self.n_vocab)
                    logits = logits + (self.noise * rounding).astype(np.float32)
                out.append(logits)
        return out

    def copy(self, src: int, dst: int, n_past: int, partial: list[int] | None = None) -> int:
        n = super().copy(src, dst, n_past, partial)
        self.tags[dst] = self.tags[src][:n]
        return n

    def save(self, seq_id: int) -> TaggedIds:
        return TaggedIds(self.cells[seq_id][: self.n_past(seq_id)], self.tags[seq_id])

    def load(self, seq_id: int, saved: list[int]) -> int:
        self.tags[seq_id] = list(saved.tags) if isinstance(saved, TaggedIds) else []
        return super().load(seq_id, saved)


class TaggedIds(list[int]):
    """The ids of a saved text, and how their cells were computed."""

    def __init__(self, ids: Sequence[int], tags: Sequence[int]) -> None:
        super().__init__(ids)
        self.tags = tags[: len(ids)]
