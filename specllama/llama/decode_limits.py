"""Conditions under which llama.cpp would abort the process, and with it every client's text.

All contexts check them first, and raise an error that ends the generations of that decode alone. They
are the GGML_ASSERTs of llama_context::decode and encode and of the memories' functions by sequence, and the
rows that llama.cpp would read beyond the end of an array.
"""

from __future__ import annotations

from dataclasses import dataclass

from specllama.core.interfaces import DecodeError

CELLS_MULTIPLE = 256  # llama.cpp has a multiple of so many cells, but limits a batch by the number given
MORE_THAN_STATES = 2  # what a rollback needs is computed at once: so many rows more than states


class LimitError(DecodeError, ValueError):
    """Rows or a sequence on which llama.cpp would abort."""


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """Of a context. n_batch: most rows of a decode; n_outputs_max: most of them with logits; width: values of
    a row's hidden state, 0 for rows without any.
    """

    n_batch: int
    n_outputs_max: int
    n_vocab: int
    n_seq_max: int
    width: int = 0

    def check_rows(self, n: int, n_outputs: int) -> None:
        """Raises LimitError."""
        if not 0 < n <= self.n_batch:
            raise LimitError(f"a decode has 1 to {self.n_batch} tokens, not {n}")
        if n_outputs > self.n_outputs_max:
            raise LimitError(f"a decode returns at most {self.n_outputs_max} rows of logits, not {n_outputs}")

    def check_tokens(self, low: int, high: int) -> None:
        """low, high: smallest and largest token id. Raises LimitError."""
        if low < 0 or high >= self.n_vocab:
            raise LimitError(f"a token id is not in the vocabulary of {self.n_vocab}")

    def check_seqs(self, first: int, last: int) -> None:
        """first, last: smallest and largest seq_id. Raises LimitError."""
        if first < 0 or last >= self.n_seq_max:
            raise LimitError(f"a seq_id is not one of the {self.n_seq_max} sequences")

    def check_hidden(self, shape: tuple[int, ...], n: int) -> None:
        """shape: of the hidden states of n rows. Raises LimitError."""
        if shape != (n, self.width):
            raise LimitError(f"the hidden states of {n} rows have the shape {shape}, not ({n}, {self.width})")
