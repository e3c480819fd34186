"""llama.cpp's DRY step (Don't Repeat Yourself): what would continue a repetition becomes less likely, the
more the longer the repetition is. A function of the tokens before; knows no logits.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

import numpy as np

Breakers = Mapping[int, Sequence[tuple[int, ...]]]
"""Where a repetition is interrupted: tokens, with what has to follow each for that, () for nothing."""
MAX_BYTES, _MAX_TAIL = 40, 20  # of a breaker; tokens after its first
_LOG_FLOAT_MAX = 88.7228391


class Pieces:
    """The texts of all tokens, by which breakers are searched."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        self._backwards = sorted((piece[::-1], token) for token, piece in enumerate(pieces))

    def overlapping(self, text: bytes, tokenize: Callable[[bytes], list[int]]) -> Breakers:
        """The tokens in which `text` is, and those at whose end it begins. Takes 5 ms for 100,000 tokens."""
        breakers: dict[int, set[tuple[int, ...]]] = {}
        for n in range(1, len(text)):
            begin, tail = text[:n][::-1], None
            for i in range(bisect_left(self._backwards, (begin, 0)), len(self._backwards)):
                piece, token = self._backwards[i]
                if not piece.startswith(begin):
                    break
                tail = tuple(tokenize(text[n:])[:_MAX_TAIL]) if tail is None else tail
                breakers.setdefault(token, set()).add(tail)
        breakers |= {token: {()} for token, piece in enumerate(self._pieces) if text in piece}
        return {token: sorted(tails) for token, tails in breakers.items()}


def penalties(
    recent: Sequence[int], breakers: Breakers, multiplier: float, base: float, allowed: int
) -> dict[int, float]:
    """What the logits of tokens are lowered by. recent: the tokens that are searched, the last one last."""
    if len(recent) <= allowed:
        return {}
    limit = _since_breaker(recent, breakers)
    if limit < allowed:
        return {}
    base = float(np.float32(base))
    most = int(_LOG_FLOAT_MAX / math.log(base)) if base > 1.000001 else 0
    longest: dict[int, int] = {}
    for end, length in _repeats(recent, max(allowed, 1), limit).items():
        token = recent[end + 1]
        longest[token] = max(longest.get(token, 0), length)
    if not allowed:  # then what repeats nothing is penalised too
        longest = dict.fromkeys(recent[1:], 0) | longest
    return {
        token: multiplier * base ** (min(n - allowed, most) if most else n - allowed)
        for token, n in longest.items()
        if () not in breakers.get(token, ())
    }


def _since_breaker(recent: Sequence[int], breakers: Breakers) -> int:
    """The number of tokens after the last breaker."""
    n = len(recent)
    for i in range(n if breakers else 0):
        tails = breakers.get(recent[n - 1 - i])
        if tails is None:
            continue
        fitting = [len(t) for t in tails if len(t) <= i and tuple(recent[n - i : n - i + len(t)]) == t]
        if fitting:
            return i - max(fitting)
    return n


def _repeats(recent: Sequence[int], least: int, limit: int) -> dict[int, int]:
    """How many tokens before each index, itself included, are the same as at the end; those of at least
    `least` tokens, without the last index. limit: longer ones count as so long.
    """
    n = len(recent)
    tokens = np.fromiter(recent, np.int64, n)
    ends = (tokens[:-1] == tokens[-1]).nonzero()[0]
    lengths: dict[int, int] = {}
    work, length = 0, 1
    while len(ends) and length < limit:
        work += len(ends)
        if work > 16 * n:  # a text of one repetition
            return {end: m for end, m in _all_repeats(recent, limit).items() if m >= least}
        longer = (ends >= length) & (tokens[ends - length] == tokens[-1 - length])
        if length >= least:
            lengths |= dict.fromkeys(ends[~longer].tolist(), length)
        ends, length = ends[longer], length + 1
    if min(length, limit) >= least:
        lengths |= dict.fromkeys(ends.tolist(), min(length, limit))
    return lengths


def _all_repeats(recent: Sequence[int], limit: int) -> dict[int, int]:
    """As `_repeats`, of all indices, in time linear in the tokens: the Z-algorithm on the reversed text."""
    text = recent[::-1]
    n, left, right = len(text), 0, 0
    z = [0] * n
    for k in range(1, n):
        m = min(right - k, z[k - left]) if k < right else 0
        while k + m < n and text[m] == text[k + m]:
            m += 1
        z[k] = m
        if k + m > right:
            left, right = k, k + m
    return {n - 1 - k: min(z[k], limit) for k in range(1, n)}
