"""Reasoning and answers that a model marks by channels, without tools: how they are read, in whatever parts
they arrive, what a response format allows, and how earlier turns are shown.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from specllama.calls.format import CallFormat
from specllama.calls.formats import FORMATS, choose, named
from specllama.calls.history import reasoning_apart
from specllama.calls.scanner import ArgumentsPiece, ChannelReader, OpenPiece, TextPiece, ThoughtPiece
from specllama.calls.tools import NO_TOOLS, Tools
from specllama.client import protocol
from specllama.client.stream import GenerationResult
from specllama.core.sampling.params import SamplingParams
from specllama.core.stats import RunStats
from specllama.server.events import Accumulator, Event, EventAssembler
from specllama.text.chat_template import ChatTemplate
from specllama.text.detokenizer import SHOWN
from specllama.text.reasoning import is_over
from tests.support.templates import SOURCES
from tests.support.tool_calls import TOOLS, cuts, grammar, pieces, read

S = SHOWN
NEXT = f"{S}<|end|>{S}<|start|>assistant"
ANALYSIS = f"{S}<|channel|>analysis{S}<|message|>"
FINAL = f"{S}<|channel|>final{S}<|message|>"
THOUGHT = f"{S}<|channel>thought\n"
WRITTEN: dict[str, list[tuple[str, str, str]]] = {  # answer, its reasoning, its text
    "gpt-oss": [
        (f"{ANALYSIS}hm,\n\nso{NEXT}{FINAL}Hello\n you.", "hm,\n\nso", "Hello\n you."),
        (f"{ANALYSIS}a{NEXT}{ANALYSIS}b{NEXT}{FINAL}Hi", "ab", "Hi"),
        (f"{FINAL}Hello", "", "Hello"),
        (f"{ANALYSIS}hm", "hm", ""),
        (f"{ANALYSIS}hm{NEXT}{S}<|channel|>fin", "hm", ""),
        (f"{S}<|channel|>commentary to=functions.f json{S}<|message|>{{}}", "", "{}"),
        ("Hello <|channel|> <|end|>", "", "Hello <|channel|> <|end|>"),
        ("", "", ""),
    ],
    "gemma4": [
        (f"{THOUGHT}hm,\n\nso\n{S}<channel|>Hello\n you.", "hm,\n\nso", "Hello\n you."),
        ("Hello", "", "Hello"),
        (f"{THOUGHT}hm", "hm", ""),
        (f"{THOUGHT}{S}<channel|>Hi", "", "Hi"),
        ("<|channel>thought", "", "<|channel>thought"),
        ("", "", ""),
    ],
    "apertus": [
        (f"{S}<|inner_prefix|>hm,\n\nso{S}<|inner_suffix|>Hello\n you.", "hm,\n\nso", "Hello\n you."),
        ("Hello", "", "Hello"),
        (f"{S}<|inner_prefix|>hm", "hm", ""),
        ("<|inner_prefix|>hm", "", "<|inner_prefix|>hm"),
    ],
}
CASES = [(named(name), *case) for name, cases in WRITTEN.items() for case in cases]
every = pytest.mark.parametrize(("form", "answer", "thought", "text"), CASES)
both = pytest.mark.parametrize("form", [named(name) for name in WRITTEN], ids=lambda form: form.name)


def test_all_formats_with_channels_are_tested() -> None:
    assert {form.name for form in FORMATS if form.reasons} == set(WRITTEN)


@every
def test_reasoning_and_text_however_they_arrive(
    form: CallFormat, answer: str, thought: str, text: str
) -> None:
    for parts in cuts(answer):
        parts_read = pieces(form, NO_TOOLS, parts, form.tokens)
        assert "".join(p.text for p in parts_read if isinstance(p, ThoughtPiece)) == thought, parts
        assert "".join(p.text for p in parts_read if isinstance(p, TextPiece)) == text, parts


@pytest.mark.parametrize(
    ("name", "opening", "closing"),
    [
        ("apertus", f"{S}<|inner_prefix|>", f"{S}<|inner_suffix|>"),
        ("gemma4", THOUGHT, f"{S}<channel|>"),
        ("gpt-oss", f"{NEXT}{ANALYSIS}", f"{NEXT}{S}<|channel|>commentary{S}<|message|>"),
    ],
)
def test_reasoning_after_text(name: str, opening: str, closing: str) -> None:
    begin = f"{S}<|channel|>commentary{S}<|message|>" if name == "gpt-oss" else ""
    form, answer = named(name), f"{begin}One.{opening}so{closing}Two.{opening}hm"
    for parts in cuts(answer):
        parts_read = pieces(form, NO_TOOLS, parts, form.tokens)
        kinds = [(type(p), p.text) for p in parts_read if isinstance(p, (TextPiece, ThoughtPiece))]
        joined = [
            (kind, "".join(text for _, text in some))
            for kind, some in itertools.groupby(kinds, lambda k: k[0])
        ]
        assert joined == [
            (TextPiece, "One."),
            (ThoughtPiece, "so"),
            (TextPiece, "Two."),
            (ThoughtPiece, "hm"),
        ]


def test_calls_in_another_form() -> None:
    """With a form that the user names."""
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    answer = f"{ANALYSIS}hm{NEXT}{FINAL}One {call}"
    for parts in cuts(answer):
        form = named("gpt-oss")
        reader = ChannelReader(form.reader(NO_TOOLS, form.tokens), named("hermes").reader(Tools(TOOLS), ()))
        parts_read = [
            p for part in parts for p in reader.push(part, [(len(part), "target")])
        ] + reader.finish()
        assert "".join(p.text for p in parts_read if isinstance(p, ThoughtPiece)) == "hm"
        assert "".join(p.text for p in parts_read if isinstance(p, TextPiece)) == "One"
        assert [p.name for p in parts_read if isinstance(p, OpenPiece)] == ["now"]
        assert "".join(p.text for p in parts_read if isinstance(p, ArgumentsPiece)) == "{}"


def test_white_space_around_reasoning_separates_the_texts_once() -> None:
    form = named("apertus")
    answer = pieces(
        form, NO_TOOLS, [f"One.\n\n{S}<|inner_prefix|>so{S}<|inner_suffix|>\n\nTwo."], form.tokens
    )
    assert "".join(p.text for p in answer if isinstance(p, TextPiece)) == "One.\n\nTwo."


def messages(parts: Sequence[str]) -> list[protocol.Message]:
    """What the engine sends of an answer in parts, each a token with its logprob."""
    started, deltas = protocol.Started(1, 3, SamplingParams(seed=5)), list[protocol.Message]()
    for i, part in enumerate(parts):
        piece = part.replace(SHOWN, "")
        chosen = protocol.CandidateLogprob(i, piece, list(piece.encode()), -1.0)
        logprobs = [protocol.PositionLogprobs(chosen, [], len(part))]
        runs = [(len(part), "draft")] if part else []
        deltas.append(protocol.Tokens([protocol.SequenceDelta(1, part, [i], runs, 0, 0, logprobs)]))
    return [started, *deltas, protocol.Done(1, "", "stop", RunStats(), [])]


def tokens(form: CallFormat, answer: str) -> list[str]:
    """The answer in control tokens and single characters."""
    parts, at = list[str](), 0
    while at < len(answer):
        control = next((t for t in form.tokens if answer.startswith(SHOWN + t, at)), None)
        parts.append(answer[at] if control is None else SHOWN + control)
        at += len(parts[-1])
    return parts


@every
def test_the_server_separates_them(form: CallFormat, answer: str, thought: str, text: str) -> None:
    assembler = EventAssembler(0, 0, True, reader=form.reader(NO_TOOLS, form.tokens))
    events: list[Event] = []
    for i, message in enumerate(messages(tokens(form, answer))):
        events += assembler.add(message, float(i))
    folded = Accumulator()
    folded.add(events)
    (choice,) = folded.in_order
    assert (choice.reasoning, choice.text, choice.calls) == (thought, text, [])
    written = "".join(entry.chosen.token for entry in choice.logprobs)
    assert written.strip() == text
    assert choice.end is not None
    assert (choice.end.n_reasoning > 0) is bool(thought)


@every
def test_whole_texts_have_tags(form: CallFormat, answer: str, thought: str, text: str) -> None:
    """In the command line and in Python, as those of models that write tags themselves."""
    result, shown = GenerationResult(form.reader(NO_TOOLS, form.tokens)), ""
    for message in messages(tokens(form, answer)):
        delta = result.add(message)
        if delta is not None:
            assert sum(n for n, _ in delta.runs) == len(delta.text)
            shown += delta.text
    assert shown == result.text
    opened = f"<think>\n{thought}" if thought else ""
    assert result.text == (f"{opened}\n</think>\n\n{text}" if thought and text else opened + text)
    assert result.release() is None


def test_text_held_back_is_released_where_the_engine_has_died() -> None:
    form = named("gpt-oss")
    result = GenerationResult(form.reader(NO_TOOLS, form.tokens))
    for message in messages(tokens(form, f"{FINAL}So {S}<|")):
        if not isinstance(message, protocol.Done):
            result.add(message)
    held = result.release()
    assert held is not None
    assert held.text == " <|"
    assert result.text == "So <|"


@both
def test_a_response_format_allows_the_channels(form: CallFormat) -> None:
    text = '%json {"const": {"a": 1}, "x-guidance": {"whitespace_flexible": false}}'
    compiled = grammar(form, NO_TOOLS, form.tokens, text=text)
    before, direct = {
        "gpt-oss": (f"{ANALYSIS}hm{NEXT}{FINAL}", FINAL),
        "gemma4": (f"{THOUGHT}hm\n{S}<channel|>", ""),
        "apertus": (f"{S}<|inner_prefix|>hm{S}<|inner_suffix|>", ""),
    }[form.name]
    for head in (before, direct):
        assert compiled.accepts(f'{head}{{"a":1}}')
        assert not compiled.begins(f"{head}Hello")
    begun = grammar(form, NO_TOOLS, form.tokens, text=text, begun=True)
    assert begun.accepts('{"a":1}')
    assert not begun.begins(before)


def test_a_call_is_required_after_an_answer_that_was_begun() -> None:
    form, tools = named("gpt-oss"), Tools(TOOLS, "required")
    compiled = grammar(form, tools, form.tokens, begun=True)
    call = form.write([("now", {})], form.tokens)
    assert compiled.accepts(f" you.{NEXT}{call}")
    assert not compiled.accepts(" you.")
    assert not compiled.begins(call)
    assert read(form, tools, f"Hello you.{NEXT}{call}", form.tokens) == ("Hello you.", [("now", {})])


def test_earlier_reasoning_is_no_text() -> None:
    given = [
        {"role": "user", "content": "<think>\na\n</think>"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello <think>"},
        {"role": "assistant", "content": "<think>hm", "reasoning_content": "mine"},
        {"role": "assistant", "content": None},
    ]
    assert reasoning_apart(given) == [
        given[0],
        {"role": "assistant", "reasoning_content": "hm", "content": "Hello <think>"},
        {"role": "assistant", "reasoning_content": "mine", "content": ""},
        given[3],
    ]


REAL = [
    "openai-gpt-oss-120b",
    "google-gemma-4-31B-it",
    "google-gemma-4-31B-it-interleaved",
    "Apertus-8B-Instruct",
]


@pytest.mark.skipif(not SOURCES, reason="no templates: scripts/fetch_templates.py")
@pytest.mark.parametrize("name", REAL)
def test_real_templates(name: str) -> None:
    form = choose(SOURCES[name])
    assert form.reasons
    template = ChatTemplate(SOURCES[name], list(form.tokens), bos="<s>")
    turns = reasoning_apart(
        [
            {"role": "user", "content": "QUESTION"},
            {"role": "assistant", "content": "<think>\nSECRET\n</think>\n\nANSWER"},
            {"role": "user", "content": "AGAIN"},
        ]
    )
    for thinks, effort in itertools.product((False, True), ("low", "high")):
        parts = template.render(turns, enable_thinking=thinks, reasoning_effort=effort)
        prompt = "".join(part.text for part in parts)
        assert "ANSWER" in prompt
        assert "SECRET" not in prompt
        assert "think>" not in prompt
        assert is_over(prompt, form.thinks) is (form.name == "gemma4" and not thinks)
