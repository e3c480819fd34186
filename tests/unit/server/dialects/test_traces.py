"""Traces of rounds that wrote no text: those of the end too, in every dialect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specllama.client import protocol
from specllama.core.gain import PlainRate
from specllama.core.sampling.params import SamplingParams
from specllama.core.stats import RunStats
from specllama.server.dialects.anthropic import MessageWriter
from specllama.server.dialects.llama_server.completion import NativeOptions, NativeWriter
from specllama.server.dialects.openai.responses.writer import ResponsesWriter
from specllama.server.dialects.openai.routes import ChatWriter, CompletionWriter
from specllama.server.dialects.shared.writer import AnswerOptions, AnswerWriter
from specllama.server.events import CallOpen, End, EventAssembler, RoundEvent, Start, TextEvent

ROUNDS = [RoundEvent(n, 0, 0.01) for n in (1, 2, 3)]
LAST = RoundEvent(3, 0, 0.01, earlier=ROUNDS[1:2])
PLAIN = PlainRate(None, "none", 0)


def writers(trace: bool) -> dict[str, AnswerWriter]:
    options = AnswerOptions("m", trace=trace)
    return {
        "chat": ChatWriter(options),
        "chat with a chunk of usage": ChatWriter(AnswerOptions("m", trace=trace, usage_chunk=True)),
        "completions": CompletionWriter(options),
        "responses": ResponsesWriter(options),
        "messages": MessageWriter(options),
        "native": NativeWriter(options, NativeOptions(stream=True)),
    }


def rounds(writer: AnswerWriter, *events: Any) -> list[int]:
    """How many tokens were drafted in each round that a stream names."""
    data = writer.stream([Start(0, 0, 7, 5), *events], 1).decode()
    data_chunks = [json.loads(line[6:]) for line in data.splitlines() if line.startswith("data: {")]
    traces = [chunk["speculation"] for chunk in data_chunks if "speculation" in chunk]
    shown = [
        r for t in traces for r in [*t.get("earlier_rounds", []), *([t["round"]] if "round" in t else [])]
    ]
    return [one["drafted"] for one in shown]


@pytest.mark.parametrize("name", writers(trace=True))
def test_every_round_of_a_stream_is_named(name: str) -> None:
    text = TextEvent(0, "a", [(1, "target")], round=ROUNDS[0])
    end = End(0, "stop", None, RunStats(n_predict=4), PLAIN, round=LAST)
    assert rounds(writers(trace=True)[name], text, end) == [1, 2, 3]
    assert rounds(writers(trace=False)[name], text, end) == []


@pytest.mark.parametrize("name", ["chat", "responses", "messages"])
def test_the_round_that_opens_a_call_is_named(name: str) -> None:
    end = End(0, "stop", None, RunStats(n_predict=4), PLAIN)
    assert rounds(writers(trace=True)[name], CallOpen(0, 0, "x" * 24, "f", LAST), end) == [2, 3]


def test_rounds_without_text_are_kept_once_each() -> None:
    """A text that is held back for long, as a call is, has many of them."""
    assembler, n = EventAssembler(0, 0), 2000
    assembler.add(protocol.Started(1, 3, SamplingParams(seed=5)), 0.0)
    for i in range(n):
        delta = protocol.SequenceDelta(1, "", [0], [], i, 0)
        assert not assembler.add(protocol.Tokens([delta]), float(i))
    end = assembler.add(protocol.Done(1, "", "stop", RunStats(n_predict=n), []), float(n))[-1]
    assert isinstance(end, End)
    assert end.round is not None
    assert [one.drafted for one in (*end.round.earlier, end.round)] == list(range(n))
    assert all(not one.earlier for one in end.round.earlier)
