"""The output of one generation since the last message to the front."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, repeat

from specllama.calls.history import Messages
from specllama.client import protocol
from specllama.core.sequence import Generation, TokenLogprobs
from specllama.llama.model import LlamaModel
from specllama.text.detokenizer import TokenWriter

# The bytes and the text that ids stand for, control tokens by their names.


def detokenize(model: LlamaModel, ids: Sequence[int], special: bool = True) -> str:
    """The text of ids, control tokens by their names or, without `special`, left out."""
    pieces = (token_bytes(model, i) if special else model.piece(i) for i in ids)
    return b"".join(pieces).decode("utf-8", "replace")


def token_bytes(model: LlamaModel, token: int) -> bytes:
    """The bytes of a token, of a control token those of its name."""
    return model.piece(token) or model.token_text(token).encode()


MAX_REJECTED = 32  # draft tokens of a round that are shown


@dataclass(slots=True)
class SequenceOutput:
    """A generation, and how much of it was sent.

    messages: of the chat that it answers, None for a raw prompt. n_sent, n_drafted, n_accept, n_rounds,
    decode_seconds: totals at the last message. progress: whether all of the prefill is reported. n_prefilled:
    as last reported, -1 before. queue_position: as last reported, 0 before. show_prompt: whether the end
    shows the prompt's text. show_rejected: whether rejected draft tokens are shown. prefix: the beginning of
    the text that is part of the prompt.
    """

    id: int
    generation: Generation
    writer: TokenWriter
    messages: Messages | None = None
    n_sent: int = 0
    n_drafted: int = 0
    n_accept: int = 0
    n_rounds: int = 0
    decode_seconds: float = 0.0
    progress: bool = False
    show_prompt: bool = False
    show_rejected: bool = False
    n_prefilled: int = -1
    prefix: str = ""
    queue_position: int = 0

    def queue_report(self, waiting: Sequence[Generation]) -> protocol.Queued | None:
        """Its position among those that wait for a slot, where that was not reported before."""
        if not self.progress:
            return None
        position = 1 + next((i for i, g in enumerate(waiting) if g is self.generation), -1)
        if position in (0, self.queue_position):
            return None
        self.queue_position = position
        return protocol.Queued(self.id, self.generation.n_prompt, position)

    def prefill_reports(self) -> list[protocol.Prefilled]:
        """What has not been reported of the prefill, the part that was cached first."""
        g = self.generation
        if not self.progress or g.seq_id < 0 or g.prefix_owner is not None or self.n_prefilled == g.n_prompt:
            return []
        n_reused, n_done = g.stats.n_reused, min(g.n_past, g.n_prompt)
        steps = [n_reused] if self.n_prefilled < 0 else []
        if n_done > max(self.n_prefilled, n_reused):
            steps.append(n_done)
        self.n_prefilled = max([self.n_prefilled, *steps])
        return [protocol.Prefilled(self.id, n, g.n_prompt, n_reused) for n in steps]

    def delta(self, model: LlamaModel) -> protocol.SequenceDelta | None:
        """The output since the last call; None if there is none."""
        g = self.generation
        text, runs = self.writer.take()
        ids = g.history[g.n_prompt + self.n_sent :]
        if not ids:
            return None
        logprobs = self._logprobs(model, ids) if g.logprobs else None
        stats = g.stats
        drafted, accepted = stats.n_drafted - self.n_drafted, stats.n_accept - self.n_accept
        rounds, seconds = stats.rounds - self.n_rounds, stats.decode_seconds - self.decode_seconds
        self.n_sent += len(ids)
        self.n_drafted, self.n_accept, self.n_rounds = stats.n_drafted, stats.n_accept, stats.rounds
        self.decode_seconds = stats.decode_seconds
        rejected = self._rejected(model) if self.show_rejected else []
        return protocol.SequenceDelta(
            self.id, text, ids, runs, drafted, accepted, logprobs, rounds, seconds, rejected
        )

    def _logprobs(self, model: LlamaModel, ids: Sequence[int]) -> list[protocol.PositionLogprobs] | None:
        """Of the ids that were not sent yet."""
        lengths = chain(self.writer.lengths[self.n_sent :], repeat(0))  # an end token has none
        positions = zip(ids, self.generation.logprobs[self.n_sent :], lengths, strict=False)
        return [_logprobs(model, token, logprob, n) for token, logprob, n in positions] or None

    def _rejected(self, model: LlamaModel) -> list[tuple[str, str]]:
        rejected = self.generation.rejected[:MAX_REJECTED]
        return [(token_bytes(model, token).decode("utf-8", "replace"), source) for token, source in rejected]


def _logprobs(
    model: LlamaModel, token: int, position: TokenLogprobs, length: int
) -> protocol.PositionLogprobs:
    top = [_candidate(model, i, logprob) for i, logprob in position.top]
    return protocol.PositionLogprobs(_candidate(model, token, position.logprob), top, length)


def _candidate(model: LlamaModel, token: int, logprob: float) -> protocol.CandidateLogprob:
    piece = token_bytes(model, token)
    value = logprob if logprob > -math.inf else None
    return protocol.CandidateLogprob(token, piece.decode("utf-8", "replace"), list(piece), value)
