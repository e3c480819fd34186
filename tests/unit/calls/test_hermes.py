"""Hermes's format: what its reader makes of answers, however they are split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.calls.formats import named
from specllama.calls.scanner import ArgumentsPiece, ClosePiece, OpenPiece, Piece, TextPiece
from specllama.calls.tools import Tool, Tools

TOOLS = Tools(
    [Tool("weather", "", {"type": "object", "properties": {"city": {"type": "string"}}}), Tool("now")]
)
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "a}\\"b"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def read(*parts: str) -> list[Piece]:
    """The pieces of an answer, neighbouring texts and arguments joined."""
    reader, joined = named("hermes").reader(TOOLS), list[Piece]()
    pieces = [piece for part in parts for piece in reader.push(part, [(len(part), "target")])]
    for piece in pieces + reader.finish():
        if isinstance(piece, (TextPiece, ArgumentsPiece)):
            assert sum(n for n, _ in piece.runs) == len(piece.text)
            if joined and isinstance(last := joined[-1], type(piece)):
                joined[-1] = type(piece)(last.text + piece.text)
                continue
            piece = type(piece)(piece.text)
        joined.append(piece)
    return joined


@pytest.mark.parametrize(
    ("answer", "pieces"),
    [
        ("", []),
        ("  \n", []),
        ("1 < 2 <tool", [TextPiece("1 < 2 <tool")]),
        (
            f"So:\n\n{CALL}\n{NOW}",
            [
                TextPiece("So:"),
                OpenPiece("weather"),
                ArgumentsPiece('{"city": "a}\\"b"}'),
                ClosePiece(),
                OpenPiece("now"),
                ArgumentsPiece("{}"),
                ClosePiece(),
            ],
        ),
        ('\n<tool_call>\n{"name": "now", "arguments": {', [OpenPiece("now"), ArgumentsPiece("{")]),
        ("<tool_call>\nx</tool_call> y", [TextPiece("<tool_call>\nx</tool_call> y")]),
        (NOW.replace("now", "other"), [TextPiece(NOW.replace("now", "other"))]),
    ],
)
def test_answers_are_read(answer: str, pieces: list[Piece]) -> None:
    assert read(answer) == read(*answer) == pieces


@given(
    st.lists(st.sampled_from([CALL, NOW, "\n", " ", "<tool_", "call>", "</tool_call>", '{"', "text"])),
    st.data(),
)
def test_however_it_is_split(parts: list[str], data: st.DataObject) -> None:
    answer = "".join(parts)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(answer)))))
    split = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    assert read(*split) == read(answer)
