"""The events that the messages of one generation become, and the answer that they add up to."""

from __future__ import annotations

import pytest

from specllama.client import protocol
from specllama.core.sampling.params import SamplingParams
from specllama.core.stats import RunStats
from specllama.errors import EngineError
from specllama.server.events import (
    Accumulator,
    End,
    Event,
    EventAssembler,
    Prefill,
    Reasoning,
    RunTotals,
    Start,
    TextEvent,
)

STARTED = protocol.Started(1, 3, SamplingParams(seed=5))


def entry(id_: int, piece: str, length: int | None = None) -> protocol.PositionLogprobs:
    """The log probabilities of a token. length: characters that it completes, else those of its piece."""
    chosen = protocol.CandidateLogprob(id_, piece, list(piece.encode()), -1.0)
    return protocol.PositionLogprobs(chosen, [], len(piece) if length is None else length)


def tokens(text: str, *entries: tuple[int, str] | tuple[int, str, int], drafted: int = 0) -> protocol.Tokens:
    """The message of one round. entries: see `entry`."""
    logprobs = [entry(*given) for given in entries]
    ids = [given[0] for given in entries] or [0]
    runs = [(len(text), "target")] if text else []
    return protocol.Tokens([protocol.SequenceDelta(1, text, ids, runs, drafted, 0, logprobs or None)])


def done(reason: str = "stop", text: str = "") -> protocol.Done:
    return protocol.Done(1, text, reason, RunStats(n_predict=4), [(len(text), "target")] if text else [])


def events(assembler: EventAssembler, *messages: protocol.Message) -> list[Event]:
    return [event for i, message in enumerate(messages) for event in assembler.add(message, float(i))]


def test_text_comes_with_the_figures_of_its_round() -> None:
    stream_events = events(EventAssembler(2, 1), STARTED, tokens("ab", drafted=3), done(text="c"))
    assert stream_events[0] == Start(2, 1, 3, 5, SamplingParams(seed=5))
    first, last, end = stream_events[1:]
    assert isinstance(first, TextEvent)
    assert first.round is not None
    assert (first.text, first.round.drafted, first.round.seconds) == ("ab", 3, 1.0)
    assert isinstance(last, TextEvent)
    assert (last.text, last.round) == ("c", None)
    assert isinstance(end, End)
    assert (end.reason, end.stats.n_predict, end.n_reasoning) == ("stop", 4, 0)


def test_reasoning_is_separated_and_its_logprobs_are_left_out() -> None:
    stream_events = events(
        EventAssembler(0, 0, splits=True, end_ids={9}),
        STARTED,
        tokens("<think>so", (1, "<think>"), (2, "so")),
        tokens("</think>yes", (3, "</think>"), (4, "yes")),
        tokens("", (9, "")),
        done(),
    )
    folded = Accumulator()
    folded.add(stream_events)
    (choice,) = folded.in_order
    assert (choice.reasoning, choice.text) == ("so", "yes")
    assert [position.chosen.token for position in choice.logprobs] == ["yes"]
    assert choice.end is not None
    assert choice.end.n_reasoning == 2
    assert [position.chosen.id for position in choice.end.logprobs] == [9]


@pytest.mark.parametrize("splits", [True, False])
def test_a_tag_at_the_start_of_a_continued_answer_is_text(splits: bool) -> None:
    stream_events = events(EventAssembler(0, 0, splits, continues=True), STARTED, tokens("<think>x"), done())
    assert [event.text for event in stream_events if isinstance(event, TextEvent)] == ["<think>x"]
    assert not any(isinstance(event, Reasoning) for event in stream_events)


def test_the_answer_is_the_same_however_the_stream_is_divided() -> None:
    stream_events = events(EventAssembler(0, 0), STARTED, tokens("a"), tokens("b"), done())
    whole, parts = Accumulator(), Accumulator()
    whole.add(stream_events)
    for event in stream_events:
        parts.add([event])
    assert whole == parts


def test_a_cancelled_generation_raises_an_error() -> None:
    with pytest.raises(EngineError, match="before it was complete"):
        events(EventAssembler(0, 0), STARTED, done("cancel"))


def test_ids_come_with_the_next_text() -> None:
    stream_events = events(
        EventAssembler(0, 0),
        STARTED,
        tokens("", (1, "?", 0)),
        tokens("é", (2, "?", 1)),
        tokens("", (9, "")),
        done(),
    )
    assert [event.ids for event in stream_events if isinstance(event, (TextEvent, End))] == [[1, 2], [9]]
    folded = Accumulator()
    folded.add(stream_events)
    assert folded.in_order[0].ids == [1, 2, 9]


def test_totals_are_of_all_rounds() -> None:
    stream_events = events(
        EventAssembler(0, 0),
        STARTED,
        tokens("", (1, ""), drafted=3),
        tokens("b", (2, "b"), drafted=2),
        done(),
    )
    folded = Accumulator()
    folded.add(stream_events)
    assert folded.in_order[0].total == RunTotals(2, 5, 0, 1.0)


def test_the_prefill_is_shown_on_request() -> None:
    messages = STARTED, protocol.Prefilled(1, 2, 9, 2), protocol.Prefilled(1, 9, 9, 2), tokens("a"), done()
    shown = [e for e in events(EventAssembler(0, 0, progress=True), *messages) if isinstance(e, Prefill)]
    assert shown == [Prefill(0, 2, 9, 2, 0.0), Prefill(0, 9, 9, 2, 1.0)]
    assert not any(isinstance(event, Prefill) for event in events(EventAssembler(0, 0), *messages))
