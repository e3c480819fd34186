"""One answer in the form of llama-server's native API; other APIs show it on request (`verbose`)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from specllama.server.dialects.shared.figures import timings
from specllama.server.dialects.shared.generation_settings import generation_settings
from specllama.server.events import AccumulatedChoice, End


def native_answer(
    choice: AccumulatedChoice,
    model: str,
    end_ids: Collection[int] = (),
    drafters: Collection[str] = (),
    **shown: Any,
) -> dict[str, Any]:
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
