"""Token counts of an answer, in OpenAI's form."""

from __future__ import annotations

from typing import Any

from specllama.server.events import Accumulator


def usage(fold: Accumulator) -> dict[str, Any]:
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
