"""Figures of tokens stay with their text: one entry a token, however text and tokens are divided."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.client import protocol
from specllama.core.stats import RunStats
from specllama.server.dialects.openai.routes import ChatWriter, CompletionWriter
from specllama.server.dialects.shared.writer import AnswerOptions
from specllama.server.events import Accumulator, Event, EventAssembler, TextEvent
from specllama.text.detokenizer import TokenWriter
from tests.unit.server.test_events import STARTED, entry

TEXT = "a😀é\n🎉🎉zz"


def messages(
    tokens: list[bytes], n_rounds: list[int], stops: tuple[str, ...] = (), limit: bool = True
) -> list[protocol.Message]:
    """What the engine sends of an output in these tokens. n_rounds: tokens of each round."""
    writer, sent_messages, at, sent = TokenWriter(lambda i: tokens[i], stops), [STARTED], 0, 0
    ended = False
    for n in [*n_rounds, len(tokens)]:
        for i in range(at, min(at + n, len(tokens))):
            at = i + 1
            if ended := writer.push(i, "copy" if i % 3 else "target"):
                break
        text, runs = writer.take()
        ids = list(range(sent, at))
        if ids:
            entries = [entry(i, "?", writer.lengths[i]) for i in ids]
            sent_messages.append(protocol.Tokens([protocol.SequenceDelta(1, text, ids, runs, 0, 0, entries)]))
        sent = at
        if ended:
            break
    text, runs = writer.finish()
    reason = "stop" if ended or not limit else "length"
    return [*sent_messages, protocol.Done(1, text, reason, RunStats(), runs, stop_string=writer.stopped_by)]


def events_of(given: list[protocol.Message], **more: Any) -> list[Event]:
    assembler = EventAssembler(0, 0, **more)
    return [event for i, message in enumerate(given) for event in assembler.add(message, float(i))]


def numbers(entries: Any) -> list[int]:
    return [one.chosen.id for one in entries]


@st.composite
def divided(draw: st.DrawFn, text: str = TEXT) -> tuple[list[bytes], list[int]]:
    """The bytes of a text in tokens, and tokens in rounds."""
    data, cuts = text.encode(), draw(st.sets(st.integers(1, len(text.encode()) - 1)))
    ends = [*sorted(cuts), len(data)]
    tokens = [data[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    return tokens, draw(st.lists(st.integers(1, 4), max_size=len(tokens)))


@given(divided(), st.integers(0, 20))
def test_each_token_has_one_entry_in_every_form(given_: tuple[list[bytes], list[int]], n_cut: int) -> None:
    """Streamed and whole, also where the limit ends the answer within a character."""
    tokens, rounds = given_
    tokens = tokens[: max(1, len(tokens) - n_cut)]
    events = events_of(messages(tokens, rounds))
    everything = list(range(len(tokens)))
    folded = Accumulator()
    folded.add(events)
    (choice,) = folded.in_order
    assert numbers(choice.logprobs) == everything
    assert choice.ids == everything
    assert all(event.text for event in events if isinstance(event, TextEvent))
    data = b"".join(tokens)
    assert choice.text == data.decode("utf-8", "ignore")
    assert sum(n for e in events if isinstance(e, TextEvent) for n, _ in e.runs) == len(choice.text)
    for writer_of in (ChatWriter, CompletionWriter):
        writer = writer_of(AnswerOptions("m", logprobs=True))
        chunks = writer.chunks(events, 1)
        shown = [c["logprobs"] for chunk in chunks for c in chunk["choices"] if c.get("logprobs")]
        whole = writer.answer()["choices"][0]["logprobs"]
        if writer_of is ChatWriter:
            assert sum(len(one["content"]) for one in shown) == len(whole["content"]) == len(tokens)
            continue
        for name in ("tokens", "text_offset", "token_logprobs"):
            assert [x for one in shown for x in one[name]] == whole[name]
        done, expected = b"", []
        for token in tokens:
            expected.append(len(done.decode("utf-8", "ignore")))
            done += token
        assert whole["text_offset"] == expected


@given(divided(TEXT + "STOP it"))
def test_tokens_of_a_stop_string_have_no_logprobs(given_: tuple[list[bytes], list[int]]) -> None:
    """But a token that begins in the text does."""
    tokens, rounds = given_
    folded = Accumulator()
    folded.add(events_of(messages(tokens, rounds, ("STOP",))))
    (choice,) = folded.in_order
    assert choice.text == TEXT
    begins = [len(b"".join(tokens[:i])) for i in range(len(tokens))]
    n_bytes = len(TEXT.encode())
    assert numbers(choice.logprobs) == [i for i, begin in enumerate(begins) if begin < n_bytes]


@pytest.mark.parametrize("rounds", [[], [1] * 9, [2, 1, 3]])
def test_tokens_of_reasoning_have_no_logprobs(rounds: list[int]) -> None:
    tokens = [b"<think>", b"s", b"o ", b"\xc3", b"\xa9</think>", b"y", b"e", b"s", b"\xc3"]
    events = events_of(messages(tokens, rounds), splits=True)
    folded = Accumulator()
    folded.add(events)
    (choice,) = folded.in_order
    assert (choice.reasoning, choice.text) == ("so é", "yes")
    assert numbers(choice.logprobs) == [5, 6, 7, 8]
