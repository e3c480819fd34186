"""Traces of answers: the drafters of the tokens, and the engine's rounds."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from specllama.config.defaults import source_label
from specllama.server.events import CallArgs, CallOpen, End, Event, Reasoning, RoundEvent, Runs, TextEvent


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
