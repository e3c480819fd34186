"""The figures of an answer in the three forms that tools read (llama-server's timings, vLLM's metrics,
OpenAI's usage) and in our own.

All are computed from the same counters, so that they agree. Times are in seconds unless named ms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from specllama.core.gain import Gain, gain
from specllama.core.stats import RunStats
from specllama.server.events import AccumulatedChoice, Accumulator, End


def usage(fold: Accumulator) -> dict[str, Any]:
    """Numbers of tokens; each prompt counts once, however many choices it has."""
    prompts = {c.start.prompt: c for c in reversed(fold.in_order)}.values()
    n_prompt = sum(c.start.n_prompt for c in prompts)
    n_cached = sum(c.end.stats.n_reused for c in prompts if c.end)
    stats = [end.stats for end in fold.ends]
    n, accepted = sum(s.n_predict for s in stats), sum(s.n_accept for s in stats)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n,
        "total_tokens": n_prompt + n,
        "prompt_tokens_details": {"cached_tokens": n_cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": sum(s.n_drafted for s in stats) - accepted,
            "reasoning_tokens": sum(end.n_reasoning for end in fold.ends),
            "audio_tokens": 0,
        },
    }


def figures(fold: Accumulator, enabled: bool, ignored: Sequence[str] = ()) -> dict[str, Any]:
    """timings, metrics and speculation, for the last chunk or the whole answer, and the fields of the request
    that had no effect. enabled: whether drafts were allowed.
    """
    more = {"ignored_fields": list(ignored)} if ignored else {}
    return {
        "timings": timings([end.stats for end in fold.ends]),
        "metrics": {"speculative_decoding": _vllm([end.stats for end in fold.ends])},
        "speculation": own_figures(fold.ends, enabled),
        **more,
    }


def timings(stats: Iterable[RunStats]) -> dict[str, Any]:
    """llama-server's, of ended choices together."""
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


def running_timings(choice: AccumulatedChoice) -> dict[str, Any]:
    """The same of one choice so far, as the client's side of the engine sees it. Of the prompt, only what a
    Prefill has reported.
    """
    filled, total = choice.prefill, choice.total
    n_prompt = filled.n_done - filled.n_reused if filled else 0
    return {
        **_encoded(n_prompt, filled.n_reused if filled else 0, filled.seconds if filled else 0.0),
        **_decoded(total.n_predict, max(0, total.n_predict - 1), total.seconds),
        "draft_n": total.n_drafted,
        "draft_n_accepted": total.n_accept,
    }


def _encoded(n: int, n_reused: int, seconds: float) -> dict[str, Any]:
    return {
        "prompt_n": n,
        "cache_n": n_reused,
        "prompt_ms": 1000 * seconds,
        "prompt_per_token_ms": _ratio(1000 * seconds, n),
        "prompt_per_second": _ratio(n, seconds),
    }


def _decoded(n: int, n_timed: int, seconds: float) -> dict[str, Any]:
    """n_timed: tokens that took these seconds."""
    return {
        "predicted_n": n,
        "predicted_ms": 1000 * seconds,
        "predicted_per_token_ms": _ratio(1000 * seconds, n_timed),
        "predicted_per_second": _ratio(n_timed, seconds),
    }


def _vllm(stats: Iterable[RunStats]) -> dict[str, Any]:
    """acceptance_histogram[j]: the number of drafts of which j tokens were accepted."""
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


def own_figures(ends: Iterable[End], enabled: bool) -> dict[str, Any]:
    """Our own. speedup: the first choice's decode rate over that of plain decoding, None if unknown, for
    speedup_reason, which is "" where nothing was drafted. plain_rounds: of this answer, that plain_tps rests
    on. reason: why nothing was drafted, "" where something was. ttft_seconds: from the request to the first
    token. seconds: of decoding, by activity. decodes: by number of rows, the number of such decodes and their
    seconds.
    """
    all_ = list(ends)
    found = gain(all_[0].stats, all_[0].plain) if all_ else Gain()
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
        "speedup": found.speedup,
        "speedup_range": found.range,
        "speedup_reason": found.reason,
        "verdict": found.verdict,
        "plain_tps": all_[0].plain.tps if all_ else None,
        "plain_source": all_[0].plain.source if all_ else "none",
        "plain_rounds": all_[0].plain.rounds if all_ else 0,
        "reason": all_[0].off_reason if all_ else "",
        "rounds": sum(e.stats.rounds for e in all_),
        "near_ties": sum(e.stats.near_ties for e in all_),
        "redecided": sum(e.stats.redecided for e in all_),
        "exact_width": all_[0].stats.exact_width if all_ else None,
        "ttft_seconds": all_[0].stats.ttft_seconds if all_ else None,
        "seconds": all_[0].stats.time_shares if len(all_) == 1 else None,
        "decodes": _decodes(all_[0].stats) if len(all_) == 1 else None,
    }


def _decodes(stats: RunStats) -> dict[str, list[float]]:
    return {str(rows): [count, seconds] for rows, (count, seconds) in sorted(stats.round_seconds.items())}


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0
