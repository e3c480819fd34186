"""Verification by equality: a draft token is accepted if the target chooses the same token."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from specllama.core.interfaces import Row

NO_CHOICE = -1  # returned by `choose` where no token may be emitted from the row: a near-tie, or the end


def verify(
    rows: Iterable[Row], draft: Sequence[int], choose: Callable[[Row], int], commit: Callable[[int], bool]
) -> int:
    """Commit the target's choice for each row in turn, up to the first that differs from the draft; returns
    n_accept, the number of draft tokens committed.

    rows: the logits after the last token and after each draft token, len(draft) + 1 rows of shape (n_vocab,).
    choose: the target's token for a row, given the history that `commit` extends. commit: appends a token;
    False where the sequence ends with it. Later rows are not read. Commits 1 to len(draft) + 1 tokens, none
    where the first row gives NO_CHOICE. Raises ValueError where there are too few rows. Since the target's
    choice is a function of row, history and seed, the output is that of plain decoding.
    """
    for i, row in enumerate(rows):
        token = choose(row)
        if token == NO_CHOICE:
            return i
        expected = i < len(draft) and token == draft[i]
        if not commit(token):
            return i + expected
        if not expected:
            return i
    raise ValueError("verify needs one row more than the draft has tokens")
