"""Recording a trace: what the target wrote and what the draft model says at each of its positions.

Knows contexts by their interface only. Greedy and teacher-forced: the draft model sees the text as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from specllama.core.ports import BatchRow, Context
from specllama.core.replay import WRONG, Trace
from specllama.core.sampling import probability


def write_text(target: Context, prompt: Sequence[int], n_most: int, end_ids: Collection[int]) -> list[int]:
    """What the target writes greedily behind the prompt: at most `n_most` ids, an end id included."""
    target.cut(0, 0)
    ids = list(prompt)
    row = _evaluate(target, ids, 0)
    text: list[int] = []
    while len(text) < min(n_most, target.n_ctx - len(prompt)):
        text.append(int(np.argmax(row)))
        if text[-1] in end_ids or len(ids) + len(text) >= target.n_ctx:
            break
        row = target.decode([BatchRow(text[-1], len(ids) + len(text) - 1, 0, True)])[0].copy()
    return text


def record(prompt: Sequence[int], text: Sequence[int], draft: Context) -> Trace:
    """The draft's choice and its full-softmax probability at every position of `text`; WRONG with 0 from
    where it cannot read on: behind an id that it lacks, or with its context full.
    """
    draft.cut(0, 0)
    ids, choices, confidences = [*prompt, *text], [], []
    known = next((i for i, token in enumerate(ids) if token >= draft.n_vocab), len(ids))
    at, end = len(prompt) - 1, min(known, draft.n_ctx, len(ids) - 1)
    if at < end:
        _evaluate(draft, ids[:at], 0, last=False)
    while at < end:
        chunk = ids[at : min(at + draft.n_outputs_max, end)]
        rows = draft.decode([BatchRow(token, at + i, 0, True) for i, token in enumerate(chunk)])
        for row in rows:
            choices.append(int(np.argmax(row)))
            confidences.append(round(probability(row, choices[-1]), 4))
        at += len(chunk)
    n_unread = len(text) - len(choices)
    return Trace(list(prompt), list(text), choices + [WRONG] * n_unread, confidences + [0.0] * n_unread)


def _evaluate(context: Context, ids: Sequence[int], n_past: int, last: bool = True) -> np.ndarray:
    rows = np.zeros((0, 0), np.float32)
    for begin in range(0, len(ids), context.n_batch):
        chunk = ids[begin : begin + context.n_batch]
        end = begin + len(chunk) == len(ids)
        rows = context.decode(
            [
                BatchRow(token, n_past + begin + i, 0, last and end and i == len(chunk) - 1)
                for i, token in enumerate(chunk)
            ]
        )
    return rows[-1].copy() if last else rows
