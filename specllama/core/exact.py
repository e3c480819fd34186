"""Exact by width: texts that are the same with and without drafts where single rows and batches round
differently, as on a GPU.

Rows of decodes of one width are bit-equal, whatever the other rows are. Each decode of such a text has one
width, filled up with rows that are removed again, so drafts do not change what a row is computed with. Behind
about 2,000 tokens the number of visible cells matters too: llama.cpp makes them a multiple of 256. A row is
kept only if a decode that begins with it would see as many as the decode that it is in. Knows no caches.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from specllama.core.policy.cost_curve import CostCurve

VISIBLE_CELLS = 256  # a decode sees a multiple of this many, as many as hold the cells in use
DEFAULT_WIDTH = 8  # where nothing is measured or stored
CHUNKS = (64, 128, 256, 512)  # rows of a decode of a prompt
_CLEARLY = 1.15  # times the seconds per token: exact texts depend on the width, so noise must not change it
_CHUNK_SECONDS = 0.5  # most that such a decode should take
# Tokens of texts such as edits and code, and how often a draft's next one is right in each kind.
_KINDS = ((0.6, 0.97), (0.4, 0.65))


@dataclass(frozen=True, slots=True)
class ExactRows:
    """The rows of every decode of a text (width) and of its prompt (chunk, but for the rest of a prompt)."""

    width: int
    chunk: int = CHUNKS[0]

    def n_kept(self, pos: int) -> int:
        """How many rows of a decode that begins at this position may be kept, 1 to width."""
        end = pos + self.width
        return min(self.width, -(-end // VISIBLE_CELLS) * VISIBLE_CELLS - end + 1)


def best_width(curve: CostCurve, max_rows: int, held: int | None = None) -> int | None:
    """The measured width with the highest expected tokens per second; None if fewer than two were measured.
    It depends on the target alone: with and without drafts it is the same. held: the width so far, which is
    kept unless another one is clearly better.
    """
    widths = [n for n, _ in curve.times if n <= max_rows]
    if len(widths) < 2:
        return None
    best = min(widths, key=lambda n: (_seconds_per_token(curve, n), n))
    if held in widths and _seconds_per_token(curve, held) < _CLEARLY * _seconds_per_token(curve, best):
        return held
    return best


def _seconds_per_token(curve: CostCurve, width: int) -> float:
    seconds = curve.predict(width)
    return sum(share * seconds * (1 - right) / (1 - right**width) for share, right in _KINDS)


def best_chunk(row_seconds: float, n_batch: int) -> int:
    """The largest chunk that fits into a decode and takes no longer than half a second. row_seconds: of a row
    of a prompt, inf where that is not known.
    """
    fitting = [n for n in CHUNKS if n <= n_batch and n * row_seconds <= _CHUNK_SECONDS]
    return max(fitting, default=min(CHUNKS[0], n_batch)) if row_seconds < inf else min(CHUNKS[0], n_batch)
