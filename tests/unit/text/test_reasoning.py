"""Separating reasoning from answer in a generation that arrives in pieces of any length."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.text.reasoning import TAGS, ReasoningPiece, ReasoningSplitter, closing_tag, is_over

TEXT = st.text(st.sampled_from("<>/thinkseed: []THINK\nab◁▷"), max_size=30)


def split(pieces, closing="", off=False):
    """(reasoning, answer) of a text that arrives in pieces, each of one run."""
    splitter, texts = ReasoningSplitter(closing, off), ["", ""]
    taken = [p for i, piece in enumerate(pieces) for p in splitter.push(piece, [(len(piece), str(i))])]
    for piece in [*taken, *splitter.finish()]:
        assert sum(n for n, _ in piece.runs) == len(piece.text) > 0
        texts[not piece.reasoning] += piece.text
    return texts[0], texts[1]


class TestWithoutTags:
    @pytest.mark.parametrize(
        ("text", "closing", "separated"),
        [
            ("hello", "", ("", "hello")),
            ("", "", ("", "")),
            ("  hello ", "", ("", "  hello ")),
            ("<think>a</think>b", "", ("a", "b")),
            ("\n<think>\n a \n</think>\n\n b ", "", ("a", "b ")),
            ("a\n</think>\n\nb", "</think>", ("a", "b")),
            ("\n</think>\n\nb</think>", "</think>", ("", "b</think>")),
            ("a < b </thin", "</think>", ("a < b </thin", "")),
            ("<think>cut", "", ("cut", "")),
            ("<thi", "", ("", "<thi")),
            ("[THINK]x[/THINK]y", "", ("x", "y")),
            ("b <think>c</think>", "", ("", "b <think>c</think>")),
        ],
    )
    def test_reasoning_and_answer_are_separated(self, text, closing, separated) -> None:
        assert split([text], closing) == separated
        assert split(list(text), closing) == separated

    @given(st.text(alphabet="<>/think \nab", max_size=40), st.booleans(), st.data())
    def test_the_result_does_not_depend_on_the_pieces(self, text, begun, data) -> None:
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
        pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
        closing = "</think>" if begun else ""
        assert split(pieces, closing) == split([text], closing)

    def test_with_off_everything_is_answer(self) -> None:
        assert split(["<think>", "a</think>b"], off=True) == ("", "<think>a</think>b")


class TestWithTags:
    @given(st.sampled_from(["", *TAGS]), TEXT, st.sampled_from(["", *TAGS.values()]), TEXT, st.data())
    def test_the_result_does_not_depend_on_the_pieces(
        self, begin: str, inner: str, end: str, rest: str, data: st.DataObject
    ) -> None:
        text = begin + inner + end + rest
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]

        def marked(pieces: list[str]) -> str:
            splitter, parts = ReasoningSplitter(keep_tags=True), []
            for piece in pieces:
                parts += splitter.push(piece, [(len(piece), "target")])
            parts += splitter.finish()
            assert "".join(part.text for part in parts) == text
            return "".join("T" * len(part.text) if part.reasoning else "-" * len(part.text) for part in parts)

        assert marked(pieces) == marked([text])

    def test_reasoning_ends_after_its_own_tag(self) -> None:
        for begin, end in TAGS.items():
            text, first = f" \n{begin}a</x>{end}b{end}", len(f" \n{begin}a</x>{end}")
            parts = ReasoningSplitter(keep_tags=True).push(text, [(len(text), "copy")])
            assert parts == [
                ReasoningPiece(text[:first], [(first, "copy")], True),
                ReasoningPiece(text[first:], [(len(text) - first, "copy")], False),
            ]
            opened = ReasoningSplitter(end, keep_tags=True)
            assert opened.push(f"a{end[:3]}", [(4, "target")]) == [ReasoningPiece("a", [(1, "target")], True)]
            assert opened.push(f"{end[3:]}b", [(len(end) - 2, "copy")]) == [
                ReasoningPiece(end, [(3, "target"), (len(end) - 3, "copy")], True),
                ReasoningPiece("b", [(1, "copy")], False),
            ]


def test_the_end_of_a_prompt() -> None:
    for begin, end in TAGS.items():
        assert (closing_tag(f"x{begin}\n"), is_over(f"x{begin}\n")) == (end, False)
        assert (closing_tag(f"x{begin}\n\n{end}\n\n"), is_over(f"x{begin}\n\n{end}\n\n")) == ("", True)
    assert (closing_tag("assistant\n"), is_over("assistant\n")) == ("", False)
