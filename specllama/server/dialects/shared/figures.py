"""Figures of an answer as tools read them: llama-server's timings and progress, vLLM's metrics, our own.

All are computed from the same counters, so that they agree. Times are in seconds unless named ms.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from specllama.client.protocol import CandidateLogprob, PositionLogprobs
from specllama.config.defaults import source_label
from specllama.core.gain import Gain, gain, was_busy
from specllama.core.sampling.params import PARAMETERS, SamplingParams
from specllama.core.stats import RunStats, summed
from specllama.json_types import JsonObject
from specllama.server import events


def trace_of(event: events.Event) -> JsonObject:
    """The sources of a text's tokens and the latest round, with earlier rounds that generated no text; {} for
    an event without text and rounds.
    """
    if isinstance(event, (events.TextEvent, events.Reasoning, events.CallArgs)):
        runs, last = event.runs, event.round
    elif isinstance(event, events.CallOpen) or (isinstance(event, events.End) and event.round is not None):
        runs, last = (), event.round
    else:
        return {}
    traced: JsonObject = {"tokens": [[n, source_label(source)] for n, source in runs]}
    if last is not None:
        traced["round"] = _round(last)
        if last.earlier:
            traced["earlier_rounds"] = [_round(one) for one in last.earlier]
    return traced


def _round(one: events.RoundEvent) -> JsonObject:
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


def figures(fold: events.Accumulator, enabled: bool, ignored: Sequence[str] = ()) -> JsonObject:
    """All figures of an answer. enabled: whether drafting was allowed. ignored: fields without effect."""
    stats = [end.stats for end in fold.ends]
    return {
        "timings": timings(stats),
        "metrics": {"speculative_decoding": _vllm(stats)},
        "speculation": own_figures(fold.ends, enabled),
        **({"ignored_fields": list(ignored)} if ignored else {}),
    }


def add_figures(shown: JsonObject, more: JsonObject) -> None:
    """Add all figures to a chunk, which may have a trace already."""
    shown |= {**more, "speculation": more["speculation"] | shown.get("speculation", {})}


def timings(stats: Iterable[RunStats]) -> JsonObject:
    """llama-server's timings, of all these choices together."""
    all_ = list(stats)
    total = summed(all_)
    decoded = sum(max(0, s.n_predict - 1) for s in all_)  # the first token comes from the prompt's decode
    return {
        **_encoded(total.n_evaluated, total.n_reused, total.encode_seconds),
        **_decoded(total.n_predict, decoded, total.decode_seconds),
        "draft_n": total.n_drafted,
        "draft_n_accepted": total.n_accept,
    }


def running_timings(choice: events.AccumulatedChoice) -> JsonObject:
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


def prompt_progress(event: events.Prefill) -> JsonObject:
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
    total = summed(stats)
    at_least = [*total.reached[:1], *total.accepted_at, 0] if total.reached else [0, 0]
    return {
        "mean_acceptance_length": 1 + _ratio(total.n_accept, at_least[0]),
        "draft_acceptance_rate": _ratio(total.n_accept, total.n_drafted),
        "acceptance_histogram": [n - more for n, more in itertools.pairwise(at_least)],
        "num_spec_steps": at_least[0],
        "num_draft_tokens": total.n_drafted,
        "num_accepted_draft_tokens": total.n_accept,
    }


def own_figures(ends: Iterable[events.End], enabled: bool) -> JsonObject:
    """The figures of these choices together, the gain of the first. enabled: whether drafting was allowed."""
    all_ = list(ends)
    total, first = summed(end.stats for end in all_), all_[0] if all_ else None
    only = first.stats if first and len(all_) == 1 else None
    decodes = sorted(only.round_seconds.items()) if only else ()
    measured = gain(first.stats, first.plain) if first else Gain()
    return {
        "enabled": enabled,
        "n_drafted": total.n_drafted,
        "n_accept": total.n_accept,
        "n_branch": total.n_branch,
        "n_branch_accept": total.n_branch_accept,
        "n_discarded": total.n_discarded,
        "acceptance_rate": total.acceptance_rate,
        "accept_by_position": only.accept_by_position if only else None,
        "accept_by_source": only.accept_by_source if only else None,
        "drafted_by": dict(total.drafted_by),
        "forced_tokens": total.n_forced_accept,
        "speedup": measured.speedup,
        "speedup_range": measured.range,
        "speedup_reason": measured.reason,
        "speedup_limited": measured.limited,
        "busy": was_busy([total]),
        "verdict": measured.verdict,
        "plain_tps": first.plain.tps if first else None,
        "plain_source": first.plain.source if first else "none",
        "plain_rounds": first.plain.rounds if first else 0,
        "reason": first.off_reason if first else "",
        "rounds": total.rounds,
        "near_ties": total.near_ties,
        "redecided": total.redecided,
        "exact_width": first.stats.exact_width if first else None,
        "width_changes": first.stats.width_changes if first else [],
        "ttft_seconds": first.stats.ttft_seconds if first else None,
        "seconds": only.time_shares if only else None,
        "decodes": {str(rows): list(times) for rows, times in decodes} if only else None,
    }


def usage(fold: events.Accumulator) -> JsonObject:
    """Token counts in the form of OpenAI's API; each prompt counts once, however many its choices."""
    prompts = {c.start.prompt: c for c in reversed(fold.in_order)}.values()
    n_prompt = sum(c.start.n_prompt for c in prompts)
    n_cached = sum(c.end.stats.n_reused for c in prompts if c.end)
    total = summed(end.stats for end in fold.ends)
    n_drafted, n_accept = total.n_drafted, total.n_accept
    if total.n_prediction:  # as OpenAI counts them; without one, all drafts
        n_drafted, n_accept = total.n_predicted, total.n_predicted_accept
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": total.n_predict,
        "total_tokens": n_prompt + total.n_predict,
        "prompt_tokens_details": {"cached_tokens": n_cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "accepted_prediction_tokens": n_accept,
            "rejected_prediction_tokens": n_drafted - n_accept,
            "reasoning_tokens": sum(end.n_reasoning for end in fold.ends),
            "audio_tokens": 0,
        },
    }


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0


_NO_LOGPROB = -9999.0  # JSON has no minus infinity


def number(logprob: float | None) -> float:
    """A logprob as clients expect it: always a finite number."""
    return _NO_LOGPROB if logprob is None or not math.isfinite(logprob) else logprob


def described(positions: Sequence[PositionLogprobs]) -> list[JsonObject]:
    """Each token with its candidates, as OpenAI's and Ollama's clients read them."""
    return [{**_entry(p.chosen), "top_logprobs": [_entry(c) for c in p.top]} for p in positions]


def _entry(candidate: CandidateLogprob) -> JsonObject:
    return {"token": candidate.token, "logprob": number(candidate.logprob), "bytes": candidate.bytes}


_FORMS: Mapping[str, Callable[[SamplingParams], Mapping[str, Any]]] = {
    "seed": lambda p: {"seed": -1 if p.seed is None else p.seed},
    "max_tokens": lambda p: {"max_tokens": p.max_tokens, "n_predict": p.max_tokens},
    "stop": lambda p: {"stop": list(p.stop)},
    "logit_bias": lambda p: {"logit_bias": _shown_biases(p.logit_bias)},
    "infill_sampling": lambda _: {},  # it is among the samplers
    "logprobs": lambda p: {"n_probs": p.logprobs or 0},
    "grammar": lambda p: {"grammar": p.grammar or ""},
}
"""Parameters that llama-server shows under another name or in another form than ours."""


def generation_settings(
    params: SamplingParams, end_ids: Collection[int] = (), drafters: Collection[str] = (), **shown: Any
) -> JsonObject:
    """params: as used. end_ids: tokens that end a text. drafters: names. shown: fields of the request."""
    settings: JsonObject = {"n_keep": 0, "n_discard": 0, "backend_sampling": False, "lora": []}  # always off
    for name in (name for name in PARAMETERS if name != "n"):
        settings |= _FORMS[name](params) if name in _FORMS else {name: getattr(params, name)}
    if params.ignore_eos:
        settings["logit_bias"] = _shown_biases({**params.logit_bias, **dict.fromkeys(end_ids, -math.inf)})
    return settings | {"speculative.types": ",".join(drafters) or "none", **shown}


def _shown_biases(biases: Mapping[int, float]) -> list[JsonObject]:
    return [{"token": token, "bias": None if bias == -math.inf else bias} for token, bias in biases.items()]


def native_answer(
    choice: events.AccumulatedChoice,
    model: str,
    end_ids: Collection[int] = (),
    drafters: Collection[str] = (),
    **shown: Any,
) -> JsonObject:
    """A finished choice in the form of llama-server's native API, which other APIs show on request
    (`verbose`), without probabilities. end_ids, drafters, shown: see `generation_settings`.
    """
    end = choice.end
    assert end is not None
    stats = end.stats
    if end.reason == "length" and not stats.n_predict:  # the prompt alone was asked for
        shown |= {"max_tokens": 0, "n_predict": 0}
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
        "stop_type": "limit" if end.reason != "stop" else "eos" if end.stop_string is None else "word",
        "stopping_word": end.stop_string or "",
        "tokens_cached": max(0, choice.start.n_prompt + stats.n_predict - 1),
        "timings": timings([stats]),
    }
