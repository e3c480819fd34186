"""Log probabilities of tokens, as OpenAI's and Ollama's clients read them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NotRequired, TypedDict

from specllama.client.protocol import CandidateLogprob, PositionLogprobs

_NO_LOGPROB = -9999.0  # JSON has no minus infinity


class TokenLogprob(TypedDict):
    """A token. bytes: of its text. top_logprobs: the likeliest tokens at its position."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: NotRequired[list[TokenLogprob]]


def number(logprob: float | None) -> float:
    """A logprob as clients expect it: always a finite number."""
    return _NO_LOGPROB if logprob is None or not math.isfinite(logprob) else logprob


def described(positions: Sequence[PositionLogprobs]) -> list[TokenLogprob]:
    """Each token with its candidates."""
    return [{**_entry(p.chosen), "top_logprobs": [_entry(c) for c in p.top]} for p in positions]


def _entry(candidate: CandidateLogprob) -> TokenLogprob:
    return {"token": candidate.token, "logprob": number(candidate.logprob), "bytes": candidate.bytes}
