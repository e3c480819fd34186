"""The output of one generation since the last message to the front."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from specllama.client import protocol
from specllama.core.sequence import Generation, TokenLogprobs
from specllama.llama.model import LlamaModel
from specllama.text.detokenizer import TokenWriter


@dataclass(slots=True)
class SequenceOutput:
    """A generation, and how much of it was sent.

    messages: of the chat that it answers, None for a raw prompt. n_sent, n_drafted, n_accept: totals at the
    last message.
    """

    id: int
    generation: Generation
    writer: TokenWriter
    messages: list[dict[str, Any]] | None = None
    n_sent: int = 0
    n_drafted: int = 0
    n_accept: int = 0

    def delta(self, model: LlamaModel) -> protocol.SequenceDelta | None:
        """The output since the last call; None if there is none."""
        g = self.generation
        text, runs = self.writer.take_runs()
        ids = g.history[g.n_prompt + self.n_sent :]
        if not ids:
            return None
        found = zip(ids, g.logprobs[self.n_sent :], strict=False)
        logprobs = [_logprobs(model, token, logprob) for token, logprob in found]
        drafted, accepted = g.stats.n_drafted - self.n_drafted, g.stats.n_accept - self.n_accept
        self.n_sent += len(ids)
        self.n_drafted, self.n_accept = g.stats.n_drafted, g.stats.n_accept
        return protocol.SequenceDelta(self.id, text, ids, runs, drafted, accepted, logprobs or None)


def _logprobs(model: LlamaModel, token: int, found: TokenLogprobs) -> protocol.PositionLogprobs:
    top = [_candidate(model, i, logprob) for i, logprob in found.top]
    return protocol.PositionLogprobs(_candidate(model, token, found.logprob), top)


def _candidate(model: LlamaModel, token: int, logprob: float) -> protocol.CandidateLogprob:
    piece = model.piece(token) or model.token_text(token).encode()
    value = logprob if logprob > -math.inf else None
    return protocol.CandidateLogprob(token, piece.decode("utf-8", "replace"), list(piece), value)
