"""Token counts of an answer, in the forms of OpenAI's APIs."""

from __future__ import annotations

from typing import TypedDict

from specllama.server.events import Accumulator


class PromptDetails(TypedDict):
    """cached_tokens: found in the KV cache."""

    cached_tokens: int
    audio_tokens: int


class CompletionDetails(TypedDict):
    """Draft tokens count as prediction tokens."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    reasoning_tokens: int
    audio_tokens: int


class OpenAIUsage(TypedDict):
    """The usage of chat completions and completions."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class ResponseUsage(TypedDict):
    """The usage of responses."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


def usage(fold: Accumulator) -> OpenAIUsage:
    """Token counts; each prompt counts once, whatever the number of its choices."""
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


def response_usage(fold: Accumulator) -> ResponseUsage:
    """The same counts for /v1/responses."""
    counts = usage(fold)
    cached = counts["prompt_tokens_details"]["cached_tokens"]
    reasoning = counts["completion_tokens_details"]["reasoning_tokens"]
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": counts["total_tokens"],
    }
