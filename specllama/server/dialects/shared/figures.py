"""The figures of an answer as tools read them: llama-server's timings and progress, vLLM's metrics, our
own.

All are computed from the same counters, so that they agree. Times are in seconds unless named ms.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NotRequired, TypedDict

from specllama.client.protocol import CandidateLogprob, PositionLogprobs
from specllama.config.defaults import source_label
from specllama.core.gain import Gain, gain, was_busy
from specllama.core.stats import RunStats
from specllama.server.events import (
    AccumulatedChoice,
    Accumulator,
    CallArgs,
    CallOpen,
    End,
    Event,
    Prefill,
    Reasoning,
    RoundEvent,
    Runs,
    TextEvent,
)

# Traces of answers: the drafters of the tokens, and the engine's rounds.


class TraceRound(TypedDict):
    """A round of the engine. n_predict: tokens so far. rounds: omitted if 1; rejected: (text, drafter) of
    each rejected draft token, see RoundEvent.
    """

    drafted: int
    accepted: int
    ms: float
    n_predict: int
    rounds: NotRequired[int]
    rejected: NotRequired[list[list[str]]]


class AnswerTrace(TypedDict, total=False):
    """tokens: (characters, drafter) of the text. round: the latest one. earlier_rounds: those before it
    that generated no text.
    """

    tokens: list[list[int | str]]
    round: TraceRound
    earlier_rounds: list[TraceRound]


def trace_of(event: Event) -> AnswerTrace:
    """The trace of an event, empty for one without text and rounds."""
    if isinstance(event, (TextEvent, Reasoning, CallArgs)):
        return trace(event.runs, event.round)
    if isinstance(event, CallOpen) or (isinstance(event, End) and event.round is not None):
        return trace((), event.round)
    return {}


def trace(runs: Runs, round_: RoundEvent | None) -> AnswerTrace:
    """The sources of a text's tokens and the latest round, with earlier rounds that generated no text."""
    traced: AnswerTrace = {"tokens": [[n, source_label(source)] for n, source in runs]}
    if round_ is not None:
        traced["round"] = _round(round_)
        if round_.earlier:
            traced["earlier_rounds"] = [_round(one) for one in round_.earlier]
    return traced


def _round(one: RoundEvent) -> TraceRound:
    shown: TraceRound = {
        "drafted": one.drafted,
        "accepted": one.accepted,
        "ms": round(1000 * one.seconds, 3),
        "n_predict": one.total.n_predict,
    }
    if one.rounds != 1:
        shown["rounds"] = one.rounds
    if one.rejected:
        shown["rejected"] = [[text, source_label(source)] for text, source in one.rejected]
    return shown


class PromptTimings(TypedDict):
    """The part of llama-server's timings about the prompt. cache_n: tokens found in the KV cache."""

    prompt_n: int
    cache_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float


class DecodeTimings(TypedDict):
    """The part of llama-server's timings about the generated tokens."""

    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class Timings(PromptTimings, DecodeTimings):
    """llama-server's timings."""

    draft_n: int
    draft_n_accepted: int


class PromptProgress(TypedDict):
    """llama-server's progress of a prompt, in tokens. queue_place: position of a request without a slot."""

    total: int
    cache: int
    processed: int
    time_ms: int
    queue_place: NotRequired[int]


class VllmFigures(TypedDict):
    """vLLM's. acceptance_histogram[j]: number of drafts of which j tokens were accepted."""

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int


class SpeculationFigures(AnswerTrace):
    """specllama's own, and the trace of the last chunk if one is asked for. speedup: the first choice's
    decode rate relative to plain decoding, None if unknown; speedup_reason: why, or why its interval is wide;
    speedup_limited: more was measured than the tokens that a round wrote. busy: rounds stalled for much of
    the time. plain_rounds: rounds of this answer on which plain_tps is based. reason: why nothing was
    drafted, "" where something was. ttft_seconds: from the request to the first token. seconds: of decoding,
    by activity. decodes: by number of rows, the number of decodes and their seconds. Fields about one choice
    are None for several.
    """

    enabled: bool
    n_drafted: int
    n_accept: int
    n_branch: int
    n_branch_accept: int
    n_discarded: int
    acceptance_rate: float | None
    accept_by_position: list[float] | None
    accept_by_source: dict[str, list[float | None]] | None
    drafted_by: dict[str, int]
    forced_tokens: int
    speedup: float | None
    speedup_range: tuple[float, float] | None
    speedup_reason: str
    speedup_limited: bool
    busy: bool
    verdict: str
    plain_tps: float | None
    plain_source: str
    plain_rounds: int
    reason: str
    rounds: int
    near_ties: int
    redecided: int
    exact_width: int | None
    width_changes: list[tuple[int, int]]
    ttft_seconds: float | None
    seconds: dict[str, float] | None
    decodes: dict[str, list[float]] | None


class AnswerFigures(TypedDict):
    """All figures of an answer. ignored_fields: the request's fields without effect."""

    timings: Timings
    metrics: dict[str, VllmFigures]
    speculation: SpeculationFigures
    ignored_fields: NotRequired[list[str]]


class FigureFields(TypedDict, total=False):
    """The fields in which an answer or the last chunk of a stream has its figures. Chunks before have the
    trace alone in `speculation`.
    """

    timings: Timings
    metrics: dict[str, VllmFigures]
    speculation: AnswerTrace
    ignored_fields: list[str]


def figures(fold: Accumulator, enabled: bool, ignored: Sequence[str] = ()) -> AnswerFigures:
    """The figures for the last chunk or the whole answer. enabled: whether drafting was allowed. ignored: the
    request's fields without effect.
    """
    shown: AnswerFigures = {
        "timings": timings([end.stats for end in fold.ends]),
        "metrics": {"speculative_decoding": _vllm([end.stats for end in fold.ends])},
        "speculation": own_figures(fold.ends, enabled),
    }
    if ignored:
        shown["ignored_fields"] = list(ignored)
    return shown


def add_figures(shown: FigureFields, more: AnswerFigures) -> None:
    """Add all figures to a chunk, which may have a trace already."""
    shown["timings"], shown["metrics"] = more["timings"], more["metrics"]
    shown["speculation"] = more["speculation"] | shown.get("speculation", {})
    if "ignored_fields" in more:
        shown["ignored_fields"] = more["ignored_fields"]


def timings(stats: Iterable[RunStats]) -> Timings:
    """llama-server's timings, of all these choices together."""
    all_ = list(stats)
    prompt_n = sum(s.n_evaluated for s in all_)
    predicted_n = sum(s.n_predict for s in all_)
    prompt, predicted = sum(s.encode_seconds for s in all_), sum(s.decode_seconds for s in all_)
    decoded = sum(max(0, s.n_predict - 1) for s in all_)  # the first token comes from the prompt's decode
    return {
        **_encoded(prompt_n, sum(s.n_reused for s in all_), prompt),
        **_decoded(predicted_n, decoded, predicted),
        "draft_n": sum(s.n_drafted for s in all_),
        "draft_n_accepted": sum(s.n_accept for s in all_),
    }


def running_timings(choice: AccumulatedChoice) -> Timings:
    """llama-server's timings of one choice so far, as seen by the client of the engine. Covers the part
    of the prompt that Prefill events have reported.
    """
    filled, total = choice.prefill, choice.total
    n_prompt = filled.n_done - filled.n_reused if filled else 0
    return {
        **_encoded(n_prompt, filled.n_reused if filled else 0, filled.seconds if filled else 0.0),
        **_decoded(total.n_predict, max(0, total.n_predict - 1), total.seconds),
        "draft_n": total.n_drafted,
        "draft_n_accepted": total.n_accept,
    }


def prompt_progress(event: Prefill) -> PromptProgress:
    """Progress of a prompt's evaluation, or its position in the queue."""
    progress: PromptProgress = {
        "total": event.n_prompt,
        "cache": event.n_reused,
        "processed": event.n_done,
        "time_ms": round(1000 * event.seconds),
    }
    if event.queue_position:
        progress["queue_place"] = event.queue_position
    return progress


def _encoded(n: int, n_reused: int, seconds: float) -> PromptTimings:
    return {
        "prompt_n": n,
        "cache_n": n_reused,
        "prompt_ms": 1000 * seconds,
        "prompt_per_token_ms": _ratio(1000 * seconds, n),
        "prompt_per_second": _ratio(n, seconds),
    }


def _decoded(n: int, n_timed: int, seconds: float) -> DecodeTimings:
    """n_timed: number of tokens generated in these seconds."""
    return {
        "predicted_n": n,
        "predicted_ms": 1000 * seconds,
        "predicted_per_token_ms": _ratio(1000 * seconds, n_timed),
        "predicted_per_second": _ratio(n_timed, seconds),
    }


def _vllm(stats: Iterable[RunStats]) -> VllmFigures:
    all_ = list(stats)
    k = max((len(s.reached) for s in all_), default=0)
    steps = sum(s.reached[0] for s in all_ if s.reached)
    at_least = [steps, *(sum(s.accepted_at[j] for s in all_ if j < len(s.accepted_at)) for j in range(k)), 0]
    drafted, accepted = sum(s.n_drafted for s in all_), sum(s.n_accept for s in all_)
    return {
        "mean_acceptance_length": 1 + _ratio(accepted, steps),
        "draft_acceptance_rate": _ratio(accepted, drafted),
        "acceptance_histogram": [at_least[j] - at_least[j + 1] for j in range(k + 1)],
        "num_spec_steps": steps,
        "num_draft_tokens": drafted,
        "num_accepted_draft_tokens": accepted,
    }


def own_figures(ends: Iterable[End], enabled: bool) -> SpeculationFigures:
    """The figures of these choices. enabled: whether drafting was allowed."""
    all_ = list(ends)
    first_gain = gain(all_[0].stats, all_[0].plain) if all_ else Gain()
    by: Counter[str] = Counter()
    for end in all_:
        by.update(end.stats.drafted_by)
    drafted, accepted = sum(e.stats.n_drafted for e in all_), sum(e.stats.n_accept for e in all_)
    return {
        "enabled": enabled,
        "n_drafted": drafted,
        "n_accept": accepted,
        "n_branch": sum(e.stats.n_branch for e in all_),
        "n_branch_accept": sum(e.stats.n_branch_accept for e in all_),
        "n_discarded": sum(e.stats.n_discarded for e in all_),
        "acceptance_rate": accepted / drafted if drafted else None,
        "accept_by_position": all_[0].stats.accept_by_position if len(all_) == 1 else None,
        "accept_by_source": all_[0].stats.accept_by_source if len(all_) == 1 else None,
        "drafted_by": dict(by),
        "forced_tokens": sum(e.stats.n_forced_accept for e in all_),
        "speedup": first_gain.speedup,
        "speedup_range": first_gain.range,
        "speedup_reason": first_gain.reason,
        "speedup_limited": first_gain.limited,
        "busy": was_busy(e.stats for e in all_),
        "verdict": first_gain.verdict,
        "plain_tps": all_[0].plain.tps if all_ else None,
        "plain_source": all_[0].plain.source if all_ else "none",
        "plain_rounds": all_[0].plain.rounds if all_ else 0,
        "reason": all_[0].off_reason if all_ else "",
        "rounds": sum(e.stats.rounds for e in all_),
        "near_ties": sum(e.stats.near_ties for e in all_),
        "redecided": sum(e.stats.redecided for e in all_),
        "exact_width": all_[0].stats.exact_width if all_ else None,
        "width_changes": all_[0].stats.width_changes if all_ else [],
        "ttft_seconds": all_[0].stats.ttft_seconds if all_ else None,
        "seconds": all_[0].stats.time_shares if len(all_) == 1 else None,
        "decodes": _decodes(all_[0].stats) if len(all_) == 1 else None,
    }


def _decodes(stats: RunStats) -> dict[str, list[float]]:
    return {str(rows): [count, seconds] for rows, (count, seconds) in sorted(stats.round_seconds.items())}


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0


# Log probabilities of tokens, as OpenAI's and Ollama's clients read them.


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
