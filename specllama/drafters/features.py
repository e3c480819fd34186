"""The latest hidden states of the target, by sequence and position, for the heads that draft from them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specllama.core.head_interfaces import Hidden
from specllama.core.interfaces import BatchRow
from specllama.core.sequence import common_prefix

KEPT_ROWS = 256  # of a sequence: a head's cache reaches back this far where it was not kept up to date


class FeatureRows:
    """The target's features of the last `kept` tokens decoded of each sequence, each with its token id, so
    that rows of rejected drafts and of earlier texts are never mistaken for those of a text.
    """

    def __init__(self, n_seq_max: int, n_features: int, kept: int = KEPT_ROWS) -> None:
        self.kept = kept
        self._rows = np.zeros((n_seq_max, kept, n_features), np.float32)
        self._pos = np.full((n_seq_max, kept), -1, np.int64)
        self._token = np.full((n_seq_max, kept), -1, np.int64)
        self._branches: list[tuple[Sequence[BatchRow], Hidden]] = []  # of the last decode

    def record(self, batch: Sequence[BatchRow], features: Hidden) -> None:
        """Keep the features of a decode, shape (len(batch), n_features)."""
        first = max(0, len(batch) - self.kept)  # a decode of more rows is a piece of a single prompt
        tokens, positions, seqs, _ = zip(*batch[first:], strict=True)
        at = np.array(positions) % self.kept
        self._rows[seqs, at] = features[first:]
        self._pos[seqs, at] = positions
        self._token[seqs, at] = tokens

    def record_branches(self, branches: Sequence[Sequence[BatchRow]], features: Hidden) -> None:
        """Keep the features of branches, shape (number of rows, n_features), until the next decode."""
        self._branches, at = [], 0
        for rows in branches:
            self._branches.append((rows, features[at : at + len(rows)].copy()))
            at += len(rows)

    def accept_branch(self, seq_id: int, n_past: int, tokens: Sequence[int]) -> None:
        """After its first `n_past` tokens, the sequence goes on with these. Where they are those of a branch,
        its features are those of the tokens.
        """
        for rows, features in self._branches:
            first = rows[0].pos - n_past
            if rows[0].seq_id != seq_id or not 0 <= first < len(tokens):
                continue
            at = np.arange(n_past, rows[0].pos) % self.kept
            n = common_prefix([row.token for row in rows], tokens[first:])
            if n and (self._token[seq_id, at] == tokens[:first]).all():
                self.record(rows[:n], features[:n])
                return

    def known_from(self, seq_id: int, ids: Sequence[int], end: int, least: int) -> int:
        """The first position from which on the features of all of ids[:end] are kept, at least `least`; `end`
        where those of the last one are not.
        """
        least = max(least, end - self.kept, 0)
        span = np.arange(least, end)
        at = span % self.kept
        known = (self._pos[seq_id, at] == span) & (self._token[seq_id, at] == ids[least:end])
        missing = np.flatnonzero(~known)
        return least + (int(missing[-1]) + 1 if len(missing) else 0)

    def rows(self, seq_id: int, first: int, end: int) -> Hidden:
        """The features of positions `first` to `end` - 1, shape (end - first, n_features)."""
        kept: Hidden = self._rows[seq_id, np.arange(first, end) % self.kept]
        return kept
