"""The outputs of a request: plain values under vLLM's names."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from specllama.api.prompts import PromptSource
from specllama.calls.scanner import CallReader
from specllama.calls.tools import Tools
from specllama.client import protocol
from specllama.client.client import EngineClient, Submission
from specllama.client.stream import GenerationResult, join
from specllama.core.gain import PlainRate, PlainSource, gain
from specllama.core.stats import RunStats
from specllama.errors import SpecllamaError
from specllama.json_types import JsonObject

NOT_MEASURED = PlainRate(None, "none", 0)
FinishReason = Literal["stop", "length", "context", "cancel"]


_INTERNAL = ("n_modelled", "forced_by")  # counters for our own read-outs only


@dataclass(frozen=True, slots=True)
class Logprob:
    """A candidate token. logprob: natural, in the softmax of the raw logits. rank: 1 for the
    likeliest; None for an emitted token that is not among the requested likeliest ones.
    """

    logprob: float
    rank: int | None
    decoded_token: str


@dataclass(slots=True, kw_only=True)
class CompletionStats(RunStats):
    """The counters of one text and the figures derived from them. Until the text is finished only n_prompt,
    n_predict, n_drafted and n_accept are known.

    seed: reproduces the text, with the same parameters. plain: rate of plain decoding, the baseline of the
    speed-up. speculation: "off" if next to nothing was drafted; reason: why.
    """

    seed: int
    plain: PlainRate = NOT_MEASURED
    speculation: Literal["on", "off"] = "on"
    reason: str = ""

    @property
    def plain_tps(self) -> float | None:
        """Tokens per second of plain decoding; None where it was not measured."""
        return self.plain.tps

    @property
    def plain_source(self) -> PlainSource:
        """The source of plain_tps: this "run", "stored" by earlier ones, or "none"."""
        return self.plain.source

    @property
    def speedup(self) -> float | None:
        """decode_tps over plain_tps, without stalls; None where nothing was drafted or it is unknown."""
        return gain(self, self.plain).speedup

    @property
    def speedup_range(self) -> tuple[float, float] | None:
        """The 95 % interval of the speed-up; None where that is."""
        return gain(self, self.plain).range

    @property
    def speedup_reason(self) -> str:
        """Why the speed-up is unknown, or its interval wide; "" for neither."""
        return gain(self, self.plain).reason

    @property
    def speedup_limited(self) -> bool:
        """Whether more was measured than the tokens of a round, which the speed-up then is."""
        return gain(self, self.plain).limited

    def to_dict(self) -> JsonObject:
        """All counters and figures as plain data for JSON."""
        counters = {name: getattr(self, name) for name in RunStats.__slots__ if name not in _INTERNAL}
        names = (
            "seed", "acceptance_rate", "accept_by_position", "encode_tps", "decode_tps", "plain_tps",
            "accept_by_source", "plain_source", "speedup", "speedup_range", "speedup_limited",
            "speedup_reason", "time_shares", "speculation", "reason",
        )  # fmt: skip
        figures = {name: getattr(self, name) for name in names}
        return {**counters, **figures, "drafted_by": dict(self.drafted_by)}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool. arguments: a JSON object as text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One text. finish_reason: None while it is being written, "stop" for an end token, a stop string
    or one of stop_token_ids (then stop_reason is that string or id), "length" for max_tokens, "context" where
    the context is full, "cancel".

    token_ids: with the end token. logprobs: for each of token_ids, that token and the likeliest ones by id;
    None unless requested. cumulative_logprob: sum over token_ids. tool_calls: complete ones, which `text`
    does not contain; () unless tools were given.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    cumulative_logprob: float | None = None
    logprobs: tuple[dict[int, Logprob], ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    stats: CompletionStats

    @property
    def message(self) -> JsonObject:
        """The answer as a message of the conversation, with its calls."""
        message: JsonObject = {"role": "assistant", "content": self.text}
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for c in self.tool_calls
            ]
        return message


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """The output of a request so far. outputs: `n` texts. prompt, prompt_token_ids: the prompt in the form in
    which it was given, the other one None.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...] | None
    outputs: tuple[CompletionOutput, ...]
    finished: bool

    @property
    def stats(self) -> CompletionStats:
        """The figures of the first text."""
        return self.outputs[0].stats


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """The next piece of a streamed text. All `text`s joined are the text, all `token_ids` its ids.

    text: may be empty, as a character or a stop string may need several tokens. runs: (characters, source)
    of `text`; the source is "target" or the name of the drafter that proposed it. output: the request so
    far, with figures in the last one.
    """

    text: str
    token_ids: tuple[int, ...]
    runs: tuple[tuple[int, str], ...]
    output: RequestOutput

    @property
    def finished(self) -> bool:
        """Whether this is the last piece."""
        return self.output.finished


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """A vector."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """Numbers of the vector."""
        return len(self.embedding)


@dataclass(frozen=True, slots=True)
class EmbeddingRequestOutput:
    """The vector of a text. prompt, prompt_token_ids: the text in the form in which it was given, the other
    one None. n_prompt: its tokens.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...] | None
    outputs: EmbeddingOutput
    n_prompt: int
    finished: bool = True


@dataclass(frozen=True, slots=True)
class ScoringOutput:
    """How well a document answers a query; higher is better, of no fixed range."""

    score: float


@dataclass(frozen=True, slots=True)
class ScoringRequestOutput:
    """The score of a document. n_prompt: tokens of query and document."""

    request_id: str
    outputs: ScoringOutput
    n_prompt: int
    finished: bool = True


@dataclass(slots=True)
class PendingCompletion:
    """One text while it arrives, in a thread or an event loop. message: its request to the engine. reader:
    makes what reads a chat's answer with these tools, see LoadInfo.answer_reader.
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
            **{name: getattr(result.stats, name) for name in RunStats.__slots__},
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

    def submit(
        self,
        client: EngineClient,
        deliver: Callable[[PendingCompletion, protocol.Message | SpecllamaError], None],
    ) -> list[Submission]:
        """Submit the texts. deliver: gets the messages about each, in the client's thread."""
        submitted = []
        for one in self.completions:
            message = one.message = replace(one.message, id=client.next_id())
            if self.source.images:  # the client keeps them as long as they are needed
                one.message = replace(message, prompt=protocol.TextInput(""))
            submitted.append(client.submit(message, partial(deliver, one)))
        return submitted

    def load_images(self, problem: Callable[[], SpecllamaError | None]) -> None:
        """Decode the images of the prompt, before it is submitted. problem: why the model reads none. Raises
        as PromptSource.with_images does.
        """
        if self.source.images:
            prompt = self.source.with_images(self.completions[0].message.prompt, problem())
            for one in self.completions:
                one.message = replace(one.message, prompt=prompt)

    def cancel(self) -> None:
        """End a request that never reached the engine."""
        for completion in self.completions:
            completion.take(protocol.Done(completion.message.id, "", "cancel", RunStats()))

    def output(self) -> RequestOutput:
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
