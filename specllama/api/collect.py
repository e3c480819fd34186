"""From the messages about a request to its outputs. Threads and event loops call `take`; it knows neither."""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from specllama.api.outputs import (
    CompletionOutput,
    CompletionStats,
    Delta,
    FinishReason,
    Logprob,
    RequestOutput,
    ToolCall,
)
from specllama.api.prompts import PromptSource
from specllama.calls.pieces import CallReader
from specllama.calls.tools import Tools
from specllama.client import protocol
from specllama.client.stream import GenerationResult, join
from specllama.core.stats import RunStats


@dataclass(slots=True)
class PendingCompletion:
    """One text while it arrives. message: its request to the engine. reader: makes what reads a chat's answer
    with these tools, see LoadInfo.answer_reader.
    """

    index: int
    message: protocol.Generate
    reader: Callable[[Tools | None], CallReader | None]
    result: GenerationResult = field(default_factory=GenerationResult)
    logprobs: list[dict[int, Logprob]] | None = None
    sum_logprobs: float = 0.0
    calls: list[ToolCall] = field(default_factory=list)

    def take(self, message: protocol.Message) -> protocol.SequenceDelta | None:
        """Add a message about this text; returns its delta, None for a message without one."""
        chat = self.message.chat
        if isinstance(message, protocol.Started) and chat is not None:
            self.result.reader = self.reader(chat.tools)
        delta = self.result.add(message)
        if delta is not None and delta.logprobs is not None:
            self.logprobs = self.logprobs or []
            self.logprobs += map(_logprobs, delta.logprobs)
            self.sum_logprobs += sum(_number(position.chosen) for position in delta.logprobs)
        return delta

    def output(self) -> CompletionOutput:
        """The output so far."""
        done = self.result.done
        reason: FinishReason | None = done.reason if done else None  # type: ignore[assignment]
        return CompletionOutput(
            index=self.index,
            text=self.result.text,
            tool_calls=tuple(self._calls()),
            token_ids=tuple(self.result.ids),
            cumulative_logprob=None if self.logprobs is None else self.sum_logprobs,
            logprobs=None if self.logprobs is None else tuple(self.logprobs),
            finish_reason=reason,
            stop_reason=self._stop_reason(),
            stats=self._stats(),
        )

    def _stop_reason(self) -> int | str | None:
        """The stop string, or the one of stop_token_ids, that ended the text."""
        done, params, last = self.result.done, self.result.params, self.result.ids[-1:]
        if done is None or done.reason != "stop" or params is None or not last:
            return None
        return last[0] if last[0] in params.stop_token_ids else done.stop_string

    def _calls(self) -> list[ToolCall]:
        """The complete calls so far; each keeps its id."""
        self.calls += [
            ToolCall(f"call_{secrets.token_hex(12)}", call.name, call.arguments)
            for call in self.result.calls[len(self.calls) :]
        ]
        return self.calls

    def _stats(self) -> CompletionStats:
        result = self.result
        if result.done is None:
            return CompletionStats(
                seed=result.seed,
                n_prompt=result.n_prompt,
                n_predict=len(result.ids),
                n_drafted=result.n_drafted,
                n_accept=result.n_accept,
            )
        return CompletionStats(
            **result.stats.to_dict()
            | {
                "drafted_by": Counter(result.stats.drafted_by),
                "forced_by": Counter(result.stats.forced_by),
            },
            seed=result.seed,
            plain=result.plain,
            speculation="off" if result.off_reason else "on",
            reason=result.off_reason,
        )


@dataclass(slots=True)
class PendingRequest:
    """A caller's request: one text, or several from the same prompt."""

    request_id: str
    source: PromptSource
    completions: list[PendingCompletion]

    @property
    def finished(self) -> bool:
        return all(completion.result.done is not None for completion in self.completions)

    def cancel(self) -> None:
        """End a request that never reached the engine."""
        for completion in self.completions:
            completion.take(protocol.Done(completion.message.id, "", "cancel", RunStats()))

    def output(self) -> RequestOutput:
        """The output so far."""
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.source.text,
            prompt_token_ids=self.source.ids,
            outputs=tuple(completion.output() for completion in self.completions),
            finished=self.finished,
        )

    def delta(self, deltas: Iterable[protocol.SequenceDelta]) -> Delta:
        """The deltas of the first text since the last call, as one."""
        text, ids, runs = join(deltas)
        return Delta(text=text, token_ids=tuple(ids), runs=tuple(runs), output=self.output())


def _logprobs(position: protocol.PositionLogprobs) -> dict[int, Logprob]:
    """The emitted token first, then the likeliest."""
    ranks = {candidate.id: rank for rank, candidate in enumerate(position.top, 1)}
    ordered = [position.chosen, *(c for c in position.top if c.id != position.chosen.id)]
    return {c.id: Logprob(_number(c), ranks.get(c.id), c.token) for c in ordered}


def _number(candidate: protocol.CandidateLogprob) -> float:
    return -math.inf if candidate.logprob is None else candidate.logprob
