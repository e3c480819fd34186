"""The figures of an answer as tools read them: llama-server's timings and progress, vLLM's metrics, our
own.

All are computed from the same counters, so that they agree. Times are in seconds unless named ms.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from specllama.client.protocol import CandidateLogprob, PositionLogprobs
from specllama.config.defaults import source_label
from specllama.core.gain import Gain, gain, was_busy
from specllama.core.sampling.params import DEFAULT_STEPS, PARAMETERS, STEP_NAMES, SamplingParams
from specllama.core.stats import RunStats
from specllama.json_types import JsonObject
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


def trace_of(event: Event) -> JsonObject:
    """The trace of an event, empty for one without text and rounds."""
    if isinstance(event, (TextEvent, Reasoning, CallArgs)):
        return trace(event.runs, event.round)
    if isinstance(event, CallOpen) or (isinstance(event, End) and event.round is not None):
        return trace((), event.round)
    return {}


def trace(runs: Runs, round_: RoundEvent | None) -> JsonObject:
    """The sources of a text's tokens and the latest round, with earlier rounds that generated no text."""
    traced: JsonObject = {"tokens": [[n, source_label(source)] for n, source in runs]}
    if round_ is not None:
        traced["round"] = _round(round_)
        if round_.earlier:
            traced["earlier_rounds"] = [_round(one) for one in round_.earlier]
    return traced


def _round(one: RoundEvent) -> JsonObject:
    shown: JsonObject = {
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


def figures(fold: Accumulator, enabled: bool, ignored: Sequence[str] = ()) -> JsonObject:
    """The figures for the last chunk or the whole answer. enabled: whether drafting was allowed. ignored: the
    request's fields without effect.
    """
    shown: JsonObject = {
        "timings": timings([end.stats for end in fold.ends]),
        "metrics": {"speculative_decoding": _vllm([end.stats for end in fold.ends])},
        "speculation": own_figures(fold.ends, enabled),
    }
    if ignored:
        shown["ignored_fields"] = list(ignored)
    return shown


def add_figures(shown: JsonObject, more: JsonObject) -> None:
    """Add all figures to a chunk, which may have a trace already."""
    shown["timings"], shown["metrics"] = more["timings"], more["metrics"]
    shown["speculation"] = more["speculation"] | shown.get("speculation", {})
    if "ignored_fields" in more:
        shown["ignored_fields"] = more["ignored_fields"]


def timings(stats: Iterable[RunStats]) -> JsonObject:
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


def running_timings(choice: AccumulatedChoice) -> JsonObject:
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


def prompt_progress(event: Prefill) -> JsonObject:
    """Progress of a prompt's evaluation, or its position in the queue."""
    progress: JsonObject = {
        "total": event.n_prompt,
        "cache": event.n_reused,
        "processed": event.n_done,
        "time_ms": round(1000 * event.seconds),
    }
    if event.queue_position:
        progress["queue_place"] = event.queue_position
    return progress


def _encoded(n: int, n_reused: int, seconds: float) -> JsonObject:
    return {
        "prompt_n": n,
        "cache_n": n_reused,
        "prompt_ms": 1000 * seconds,
        "prompt_per_token_ms": _ratio(1000 * seconds, n),
        "prompt_per_second": _ratio(n, seconds),
    }


def _decoded(n: int, n_timed: int, seconds: float) -> JsonObject:
    """n_timed: number of tokens generated in these seconds."""
    return {
        "predicted_n": n,
        "predicted_ms": 1000 * seconds,
        "predicted_per_token_ms": _ratio(1000 * seconds, n_timed),
        "predicted_per_second": _ratio(n_timed, seconds),
    }


def _vllm(stats: Iterable[RunStats]) -> JsonObject:
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


def own_figures(ends: Iterable[End], enabled: bool) -> JsonObject:
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


def number(logprob: float | None) -> float:
    """A logprob as clients expect it: always a finite number."""
    return _NO_LOGPROB if logprob is None or not math.isfinite(logprob) else logprob


def described(positions: Sequence[PositionLogprobs]) -> list[JsonObject]:
    """Each token with its candidates."""
    return [{**_entry(p.chosen), "top_logprobs": [_entry(c) for c in p.top]} for p in positions]


def _entry(candidate: CandidateLogprob) -> JsonObject:
    return {"token": candidate.token, "logprob": number(candidate.logprob), "bytes": candidate.bytes}


# One answer in the form of llama-server's native API, which other APIs show on request (`verbose`), and its
# settings, which /props shows too.


NOT_SUPPORTED: Mapping[str, Any] = {
    "dynatemp_range": 0.0, "dynatemp_exponent": 1.0, "top_n_sigma": -1.0, "xtc_probability": 0.0,
    "xtc_threshold": 0.1, "typical_p": 1.0, "dry_multiplier": 0.0, "dry_base": 1.75, "dry_allowed_length": 2,
    "dry_penalty_last_n": 0, "mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "adaptive_target": -1.0,
    "adaptive_decay": 0.9, "n_keep": 0, "n_discard": 0, "min_keep": 0, "backend_sampling": False, "lora": [],
}  # fmt: skip
"""Settings of llama-server that are always off here."""
_FORMS: Mapping[str, Callable[[SamplingParams], Mapping[str, Any]]] = {
    "seed": lambda p: {"seed": -1 if p.seed is None else p.seed},
    "max_tokens": lambda p: {"max_tokens": p.max_tokens, "n_predict": p.max_tokens},
    "stop": lambda p: {"stop": list(p.stop)},
    "logit_bias": lambda p: {"logit_bias": _shown_biases(p.logit_bias)},
    "infill_sampling": lambda p: {"samplers": _samplers(p.infill_sampling)},
    "logprobs": lambda p: {"n_probs": p.logprobs or 0},
    "grammar": lambda p: {"grammar": p.grammar or ""},
}
"""Parameters that llama-server shows under another name or in another form than ours."""


def generation_settings(
    params: SamplingParams, end_ids: Collection[int] = (), drafters: Collection[str] = (), **shown: Any
) -> JsonObject:
    """params: as used. end_ids: tokens that end a text. drafters: names. shown: further fields, as in the
    request.
    """
    settings: JsonObject = {**NOT_SUPPORTED}
    for name in (name for name in PARAMETERS if name != "n"):
        settings |= _FORMS[name](params) if name in _FORMS else {name: getattr(params, name)}
    if params.ignore_eos:
        settings["logit_bias"] = _shown_biases({**params.logit_bias, **dict.fromkeys(end_ids, -math.inf)})
    return settings | {"speculative.types": ",".join(drafters) or "none", **shown}


def _shown_biases(biases: Mapping[int, float]) -> list[JsonObject]:
    return [{"token": token, "bias": None if bias == -math.inf else bias} for token, bias in biases.items()]


def _samplers(infill: bool) -> list[str]:
    """The names of the steps. infill: whether that step is among them."""
    return [name for letter, name in STEP_NAMES.items() if letter in DEFAULT_STEPS or infill]


def native_answer(
    choice: AccumulatedChoice,
    model: str,
    end_ids: Collection[int] = (),
    drafters: Collection[str] = (),
    **shown: Any,
) -> JsonObject:
    """A finished choice as one object, without probabilities. end_ids, drafters, shown: for its
    `generation_settings`.
    """
    end = choice.end
    assert end is not None
    stats = end.stats
    return {
        "index": choice.start.index,
        "content": choice.text,
        "tokens": list(choice.ids),
        "id_slot": end.slot,
        "stop": True,
        "model": model,
        "tokens_predicted": stats.n_predict,
        "tokens_evaluated": choice.start.n_prompt,
        "generation_settings": generation_settings(choice.start.params, end_ids, drafters, **shown),
        "prompt": end.prompt,
        "has_new_line": "\n" in choice.text,
        "truncated": end.reason == "context",
        "stop_type": _stop_type(end),
        "stopping_word": end.stop_string or "",
        "tokens_cached": max(0, choice.start.n_prompt + stats.n_predict - 1),
        "timings": timings([stats]),
    }


def _stop_type(end: End) -> str:
    if end.reason != "stop":
        return "limit"
    return "eos" if end.stop_string is None else "word"
