"""One answer in the form of llama-server's native API; other APIs show it on request (`verbose`)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NotRequired, TypedDict

from specllama.json_types import JsonObject
from specllama.server.dialects.shared.figures import SpeculationFigures, Timings, timings
from specllama.server.dialects.shared.generation_settings import generation_settings
from specllama.server.events import AccumulatedChoice, End


class NativeToken(TypedDict):
    """A token and its probability: prob after sampling, logprob before it. bytes: of its text. top_probs,
    top_logprobs: the likeliest tokens at its position, under the name that goes with its own probability.
    """

    id: int
    token: str
    bytes: list[int]
    prob: NotRequired[float]
    logprob: NotRequired[float]
    top_probs: NotRequired[list[NativeToken]]
    top_logprobs: NotRequired[list[NativeToken]]


class NativeAnswer(TypedDict):
    """A finished choice. The fields that may be missing are those of llama-server's own routes."""

    index: int
    content: str
    tokens: list[int]
    id_slot: int
    stop: bool
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: JsonObject
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: str
    stopping_word: str
    tokens_cached: int
    timings: Timings
    speculation: NotRequired[SpeculationFigures]
    completion_probabilities: NotRequired[list[NativeToken]]
    ignored_fields: NotRequired[list[str]]


def native_answer(
    choice: AccumulatedChoice,
    model: str,
    end_ids: Collection[int] = (),
    drafters: Collection[str] = (),
    **shown: Any,
) -> NativeAnswer:
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
