"""Traces of answers: the drafters of the tokens, and the engine's rounds."""

from __future__ import annotations

from typing import Any

from specllama.config.defaults import source_label
from specllama.server.events import CallArgs, CallOpen, End, Event, Reasoning, RoundEvent, Runs, TextEvent


def trace_of(event: Event) -> dict[str, Any]:
    """The trace of an event, empty for one without text and rounds."""
    if isinstance(event, (TextEvent, Reasoning, CallArgs)):
        return trace(event.runs, event.round)
    if isinstance(event, CallOpen) or (isinstance(event, End) and event.round is not None):
        return trace((), event.round)
    return {}


def trace(runs: Runs, round_: RoundEvent | None) -> dict[str, Any]:
    """The sources of a text's tokens and the latest round, with earlier rounds that generated no text."""
    found: dict[str, Any] = {"tokens": [[n, source_label(source)] for n, source in runs]}
    if round_ is not None:
        found["round"] = _round(round_)
        if round_.earlier:
            found["earlier_rounds"] = [_round(one) for one in round_.earlier]
    return found


def _round(one: RoundEvent) -> dict[str, Any]:
    """n_predict: tokens so far. rounds (omitted if 1), rejected: see RoundEvent."""
    rejected = [[text, source_label(source)] for text, source in one.rejected]
    return {
        "drafted": one.drafted,
        "accepted": one.accepted,
        "ms": round(1000 * one.seconds, 3),
        "n_predict": one.total.n_predict,
        **({"rounds": one.rounds} if one.rounds != 1 else {}),
        **({"rejected": rejected} if rejected else {}),
    }
