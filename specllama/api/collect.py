"""From the messages of a request to its outputs. Knows no threads and no loops: they call `take`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specllama.api.outputs import (
    CompletionOutput,
    CompletionStats,
    Delta,
    FinishReason,
    Logprob,
    RequestOutput,
)
from specllama.api.prompts import PromptSource
from specllama.api.words import in_python
from specllama.client import protocol as m
from specllama.core.speedup import plain_rate
from specllama.core.stats import RunStats


@dataclass(slots=True)
class PendingCompletion:
    """One text as it arrives. request: what the engine was asked for it."""

    index: int
    request: m.Generate
    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] | None = None
    sum_logprobs: float = 0.0
    n_prompt: int = 0
    n_drafted: int = 0
    n_accept: int = 0
    seed: int = 0
    done: m.Done | None = None

    def take(self, message: m.Message) -> None:
        """Go on by a message of this request."""
        if isinstance(message, m.Started):
            self.n_prompt, self.seed = message.n_prompt, message.params["seed"]
        elif isinstance(message, m.Tokens):
            item = message.items[0]
            self.text += item.text
            self.ids += item.ids
            self.n_drafted += item.drafted
            self.n_accept += item.accepted
            if item.logprobs is not None:
                self.logprobs = self.logprobs or []
                self.logprobs += map(_logprobs, item.logprobs)
                self.sum_logprobs += sum(map(_number, item.logprobs))
        elif isinstance(message, m.Done):
            self.text += message.text
            self.done = message

    def output(self) -> CompletionOutput:
        """What there is by now."""
        reason: FinishReason | None = self.done.reason if self.done else None  # type: ignore[assignment]
        return CompletionOutput(
            index=self.index,
            text=self.text,
            token_ids=tuple(self.ids),
            cumulative_logprob=None if self.logprobs is None else self.sum_logprobs,
            logprobs=None if self.logprobs is None else tuple(self.logprobs),
            finish_reason=reason,
            stop_reason=self.done.extra.get("stop_string") if self.done else None,
            stats=self._stats(),
        )

    def _stats(self) -> CompletionStats:
        if self.done is None or not self.done.stats:
            return CompletionStats(
                seed=self.seed,
                n_prompt=self.n_prompt,
                n_predict=len(self.ids),
                n_drafted=self.n_drafted,
                n_accept=self.n_accept,
            )
        counters = {**self.done.stats, "drafted_by": Counter(self.done.stats["drafted_by"])}
        extra = self.done.extra
        return CompletionStats(
            **counters,
            seed=self.seed,
            plain=plain_rate(RunStats(**counters), extra.get("stored_t1")),
            speculation=extra.get("speculation", "on"),
            reason=in_python(extra.get("reason", "")),
        )


@dataclass(slots=True)
class PendingRequest:
    """A request of a caller: one text, or several from the same prompt."""

    request_id: str
    source: PromptSource
    choices: list[PendingCompletion]

    @property
    def finished(self) -> bool:
        return all(choice.done is not None for choice in self.choices)

    def cancel(self) -> None:
        """End what never reached the engine."""
        for choice in self.choices:
            choice.take(m.Done(choice.request.id, "", "cancel", {}, {}))

    def output(self) -> RequestOutput:
        """What there is by now."""
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.source.text,
            prompt_token_ids=self.source.ids,
            outputs=tuple(choice.output() for choice in self.choices),
            finished=self.finished,
        )

    def delta(self, messages: Sequence[m.Message]) -> Delta:
        """What these messages, which were taken, brought to the first text."""
        text, ids, runs = "", [], []
        for message in messages:
            if isinstance(message, m.Tokens):
                text += message.items[0].text
                ids += message.items[0].ids
                runs += message.items[0].runs
            elif isinstance(message, m.Done):
                text += message.text
                runs += message.runs
        return Delta(
            text=text,
            token_ids=tuple(ids),
            runs=tuple((n, source) for n, source in runs),
            output=self.output(),
        )


def is_news(message: m.Message) -> bool:
    """Whether it shows in an output."""
    return isinstance(message, (m.Tokens, m.Done))


def _logprobs(entry: Mapping[str, Any]) -> dict[int, Logprob]:
    """The emitted token first, then the likeliest."""
    ranks = {one["id"]: rank for rank, one in enumerate(entry["top_logprobs"], 1)}
    ordered = [entry, *(one for one in entry["top_logprobs"] if one["id"] != entry["id"])]
    return {one["id"]: Logprob(_number(one), ranks.get(one["id"]), one["token"]) for one in ordered}


def _number(entry: Mapping[str, Any]) -> float:
    return -math.inf if entry["logprob"] is None else float(entry["logprob"])
