"""The outputs of a request: plain values under vLLM's names. Knows no messages and no engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specllama.core.gain import PlainRate, PlainSource, gain
from specllama.core.stats import RunStats
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
        names = ("seed", "acceptance_rate", "accept_by_position", "encode_tps", "decode_tps", "plain_tps")
        more = (
            "accept_by_source",
            "plain_source",
            "speedup",
            "speedup_range",
            "speedup_limited",
            "speedup_reason",
            "time_shares",
            "speculation",
            "reason",
        )
        figures = {name: getattr(self, name) for name in (*names, *more)}
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
