"""Token counts of an answer, in OpenAI's form."""

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
