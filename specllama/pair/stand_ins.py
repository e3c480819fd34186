"""Which token of a trimmed vocabulary stands in a text for one that it lacks. Reads no model file."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from specllama.gguf.header import Header


def stand_ins(target: Header, draft: Header) -> Callable[[int], int]:
    """From a target's id to the draft's own id of the longest token that the target's token ends with; 0
    where there is none.
    """

    @cache
    def own_ids() -> dict[bytes, int]:
        return {text: i for i, text in enumerate(draft.token_texts)}

    @cache
    def texts() -> list[bytes]:
        return target.token_texts

    @cache
    def stand_in(token: int) -> int:
        text = texts()[token] if token < len(texts()) else b""
        endings = (own_ids().get(text[at:]) for at in range(1, len(text)))
        return next((own for own in endings if own is not None), 0)

    return stand_in
