"""Verification is equality: a draft token is accepted while it is what the target chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from specllama.core.interfaces import Row

NO_CHOICE = -1  # returned by `choose` where nothing may be emitted from the row: a near-tie, or the end


def verify(
    rows: Iterable[Row], draft: Sequence[int], choose: Callable[[Row], int], commit: Callable[[int], bool]
) -> int:
    """Walk the target's rows along the draft; emit what the target chooses, stop at the first difference.

    rows: logits after the last token and after every draft token, len(draft) + 1. choose: a row to a token;
    it sees the history that `commit` extends. commit: appends the token; False ends the sequence. Rows after
    the end are not touched. Returns n_accept, the draft tokens that were emitted. 1 to len(draft) + 1 tokens
    are committed, none where the first row gives NO_CHOICE. Raises ValueError for too few rows.
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
