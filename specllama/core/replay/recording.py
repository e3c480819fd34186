"""Recording a trace: the target's text, and the choice of a draft model or a head at each of its positions.

Knows contexts by their interface only. Target and draft sample by the same rule with the same seed
(sampling/sampler.py). The draft is teacher-forced: it reads the target's text, not its own choices.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from specllama.core.interfaces import BatchRow, Context, Drafter
from specllama.core.replay.simulator import GREEDY, WRONG, Trace
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.probabilities import probability
from specllama.core.sampling.sampler import KeyedSampler


def write_text(
    target: Context,
    prompt: Sequence[int],
    n_max: int,
    end_ids: Collection[int],
    params: SamplingParams = GREEDY,
    seed: int = 0,
) -> list[int]:
    """The ids that the target writes after the prompt, at most `n_max`, an end id included."""
    target.truncate(0, 0)
    ids, sampler = list(prompt), KeyedSampler(params, seed, target.n_vocab)
    row = _evaluate(target, ids, 0)
    n_max = min(n_max, target.n_ctx - len(prompt))
    while len(ids) < len(prompt) + n_max:
        ids.append(sampler.choose(row, ids).token)
        if ids[-1] in end_ids or len(ids) >= target.n_ctx:
            break
        row = target.decode([BatchRow(ids[-1], len(ids) - 1, 0, True)])[0].copy()
    return ids[len(prompt) :]


def record(
    prompt: Sequence[int],
    text: Sequence[int],
    draft: Context,
    params: SamplingParams = GREEDY,
    seed: int = 0,
) -> Trace:
    """The trace of `text`: the draft model's choice and its full-softmax probability at every position; WRONG
    with probability 0 after an id that is not in its vocabulary and where its context is full. params, seed:
    those with which the text was written.
    """
    draft.truncate(0, 0)
    sampler = KeyedSampler(params, seed, draft.n_vocab)
    ids, choices, confidences = [*prompt, *text], [], []
    known = next((i for i, token in enumerate(ids) if token >= draft.n_vocab), len(ids))
    at, end = len(prompt) - 1, min(known, draft.n_ctx, len(ids) - 1)
    if at < end:
        _evaluate(draft, ids[:at], 0, last=False)
    while at < end:
        chunk = ids[at : min(at + draft.n_outputs_max, end)]
        rows = draft.decode([BatchRow(token, at + i, 0, True) for i, token in enumerate(chunk)])
        for row in rows:
            at += 1
            choices.append(sampler.choose(row, ids[:at]).token)
            confidences.append(round(probability(row, choices[-1]), 4))
    n_unread = len(text) - len(choices)
    return Trace(list(prompt), list(text), choices + [WRONG] * n_unread, confidences + [0.0] * n_unread)


def record_head(
    prompt: Sequence[int],
    text: Sequence[int],
    target: Context,
    head: Drafter,
    params: SamplingParams = GREEDY,
    seed: int = 0,
    n_ahead: int = 1,
) -> Trace:
    """The trace of `text` as in `record`, for a drafter that reads the target's features. The target is
    evaluated again for these, `n_ahead` tokens of the text at a time: 1 for a head that reads its cache.

    Every choice is that of a draft's first token, made from the target's own hidden states; further tokens of
    a draft are right less often than the trace says. Raises DecodeError, NoRoomError.
    """
    target.truncate(0, 0)
    ids = [*prompt, *text]
    choices: list[int] = []
    confidences: list[float] = []
    at = len(prompt) - 1  # tokens in the target's cache
    if at:
        _evaluate(target, ids[:at], 0)
    head.start(0, prompt, KeyedSampler(params, seed, target.n_vocab))
    for i, token in enumerate(text):
        if at < len(prompt) + i - 1:
            chunk = ids[at : min(at + n_ahead, len(ids) - 2)]
            _evaluate(target, chunk, at)
            at += len(chunk)
        _step(head, token, choices, confidences)
    head.forget(0)
    return Trace(list(prompt), list(text), choices, confidences)


def record_steps(
    prompt: Sequence[int],
    text: Sequence[int],
    drafter: Drafter,
    n_vocab: int,
    params: SamplingParams = GREEDY,
    seed: int = 0,
) -> Trace:
    """The trace of `text` as in `record`, by steps of a drafter: for a draft that has other tokens than the
    text. n_vocab: of the target.
    """
    choices: list[int] = []
    confidences: list[float] = []
    drafter.start(0, prompt, KeyedSampler(params, seed, n_vocab))
    for token in text:
        _step(drafter, token, choices, confidences)
    drafter.forget(0)
    return Trace(list(prompt), list(text), choices, confidences)


def _step(drafter: Drafter, token: int, choices: list[int], confidences: list[float]) -> None:
    """Record the first token that a drafter proposes; `token` is the one of the text."""
    proposal = drafter.step({0: []}).get(0)
    choices.append(proposal.token if proposal else WRONG)
    confidences.append(round(proposal.confidence, 4) if proposal else 0.0)
    drafter.committed(0, [token])


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
