"""Bytes of tokens become text: the same for any split into pieces, and cut before the first stop string."""

# ruff: noqa: ARG005
from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from specllama.text.detokenizer import SHOWN, Headers, TokenWriter
from tests.support.examples import examples


def n_incomplete(data: bytes) -> int:
    """Bytes of the incomplete character at the end."""
    for n in (3, 2, 1):
        tail = data[-n:]
        if len(tail) == n and tail[0] & 0x80 and tail[0] & 0xC0 != 0x80:
            for fill in (b"\x80", b"\xbf"):
                for more in (1, 2, 3):
                    try:
                        if len((tail + fill * more).decode()) == 1:
                            return n
                    except UnicodeDecodeError:
                        pass
    return 0


def reference(data: bytes, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """The text up to the stop string that is complete first, the longest if several end together."""
    text = data[: len(data) - n_incomplete(data)].decode("utf-8", "replace")
    for end in range(1, len(text) + 1):
        complete = [s for s in stops if text[:end].endswith(s)]
        if complete:
            stop = max(complete, key=len)
            return text[: end - len(stop)], stop
    return text, None


def write(pieces: list[bytes], stops: tuple[str, ...]) -> tuple[str, str | None]:
    writer = TokenWriter(lambda token: pieces[token], stops)
    shown = []
    for i in range(len(pieces)):
        ended = writer.push(i)
        shown.append(writer.take()[0])
        if ended:
            break
    shown.append(writer.finish()[0])
    assert writer.finish()[0] == writer.take()[0] == ""
    return "".join(shown), writer.stopped_by


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({min(c, len(data)) for c in cuts} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(at)] or [b""]


alphabet = st.text(st.sampled_from("aab\n<|é€😀"), max_size=40)
any_bytes = st.one_of(
    alphabet.map(str.encode),
    st.text(max_size=30).map(lambda t: t.encode("utf-8", "replace")),
    st.binary(max_size=30),
    st.lists(
        st.sampled_from(
            [b"a", b"b", b"\xe2\x82\xac", b"\xe2", b"\x82", b"\xf0\x9f", b"\xff", b"\xed\xa0\x80"]
        )
    ).map(b"".join),
)
stop_lists = st.lists(st.text(st.sampled_from("ab\n<|é�"), min_size=1, max_size=5), max_size=4).map(tuple)


@settings(max_examples=examples(600), deadline=None)
@given(any_bytes, st.lists(st.integers(0, 60), max_size=20), stop_lists)
@example(b"xabcx", [1, 2, 3, 4], ("abc", "b"))
@example(b"xabcx", [], ("abc", "b"))
@example(b"aab", [1, 2], ("ab", "b"))
@example("ab€".encode()[:-1], [3], ("b\ufffd",))
def test_the_text_ends_before_the_first_complete_stop_string(data, cuts, stops):
    text, stopped_by = write(split(data, cuts), stops)
    assert (text, stopped_by) == reference(data, stops)


@settings(max_examples=examples(200), deadline=None)
@given(any_bytes, stop_lists)
def test_text_once_shown_is_final(data, stops):
    """The text shown after each byte is a prefix of the final text, without any part of a stop string."""
    expected, _ = reference(data, stops)
    writer = TokenWriter(lambda token: bytes([token]), stops)
    shown = ""
    for byte in data:
        ended = writer.push(byte)
        shown += writer.take()[0]
        assert expected.startswith(shown)
        if ended:
            break
    assert shown + writer.finish()[0] == expected


def test_held_text_is_released_when_it_cannot_become_a_stop_string():
    pieces = [b"he", b"llo <", b"|e", b"nd", b"ed"]
    writer = TokenWriter(lambda token: pieces[token], ["<|end|>"])
    shown = []
    for i in range(5):
        assert not writer.push(i)
        shown.append(writer.take()[0])
    assert shown == ["he", "llo ", "", "", "<|ended"]


def test_without_stop_strings_no_text_is_held():
    writer = TokenWriter(lambda token: b"abc")
    assert not writer.push(0)
    assert writer.take()[0] == "abc"


def test_an_incomplete_stop_string_at_the_end_is_part_of_the_text():
    assert write([b"one<|en"], ("<|end|>",))[0] == "one<|en"


def test_an_incomplete_character_at_the_end_is_left_out():
    assert write(["ab😀".encode()[:-1]], ())[0] == "ab"
    assert write(["ab😀".encode()[:-1], b"c"], ())[0] == "ab\ufffdc"


def test_invalid_bytes_are_replaced():
    assert write([b"a\xff", b"b\xc3", b"\x28"], ())[0] == "a\ufffdb\ufffd("


def test_control_tokens_have_no_text():
    assert write([b"a", b"", b"b"], ("ab",)) == ("", "ab")


@given(st.text("a \n\t", max_size=30), st.lists(st.integers(0, 30), max_size=6), st.integers(1, 3))
def test_a_line_that_is_indented_too_little_ends_the_text(text, cuts, n_indent):
    """As in llama-server: the first line may begin anywhere, and an empty line counts."""
    expected, cut = text, False
    for i, character in enumerate(text):
        line = text[:i].rpartition("\n")[2]
        if "\n" in text[:i] and not line.strip(" \t") and character not in " \t" and len(line) < n_indent:
            expected, cut = text[:i], True
            break
    pieces = split(text.encode(), cuts)
    writer = TokenWriter(lambda token: pieces[token], n_indent=n_indent)
    ended = any(writer.push(i) for i in range(len(pieces)))
    assert (writer.finish()[0], ended) == (expected, cut)
    assert writer.finish_reason == ("length" if cut else "stop")


def test_text_held_back_for_a_stop_string_belongs_to_a_text_that_its_indentation_ends():
    writer = TokenWriter(lambda token: [b"a\n  ", b"xy\nb"][token], ("xyz",), n_indent=2)
    assert [writer.push(0), writer.push(1)] == [False, True]
    assert (writer.finish()[0], writer.finish_reason, writer.stopped_by) == ("a\n  xy\n", "length", None)


def test_stop_strings_do_not_count_in_headers():
    names = {0: f"{SHOWN}<|channel|>", 1: f"{SHOWN}<|message|>"}
    texts = [b"", b"", b"final", b"fin", b"al", b"a text", b" and its final word"]
    headers = Headers([names[0]], names[1])

    def written(*tokens, stop="final"):
        writer = TokenWriter(lambda token: texts[token], (stop,), names, headers=headers)
        ended = [writer.push(token) for token in tokens]
        return (writer.take()[0] + writer.finish()[0]).replace(SHOWN, ""), ended[-1]

    assert written(0, 2, 1, 5, 6) == ("<|channel|>final<|message|>a text and its ", True)
    assert written(0, 3, 4, 1, 5) == ("<|channel|>final<|message|>a text", False)
    assert written(3, 0, 2, 1, 5) == (
        "fin<|channel|>final<|message|>a text",
        False,
    )  # none goes over a header
    assert written(3, 0, 4, 1, 4) == ("fin<|channel|>al<|message|>al", False)
    assert written(0, *[5] * 100, 2) == ("<|channel|>" + "a text" * 100, True)  # too long for a header
    assert written(3, 4) == ("", True)


def test_stop_strings_count_after_the_least_number_of_tokens():
    """One that began before counts, one that was complete does not."""
    pieces = [*(c.encode() for c in "axby"), b"ax", b"by", *(c.encode() for c in "axby"), b"."]
    texts = {0: "a", 2: "a", 3: "axbya", 5: "axbya", 6: "axbyaxbya", 9: "axbyaxbyaxby."}
    for min_tokens, text in texts.items():
        for stops in (("xb",), ("xb", "byax.")):
            writer = TokenWriter(lambda token: pieces[token], stops, min_tokens=min_tokens)
            ended = any(writer.push(token) for token in range(len(pieces)))
            assert (writer.take()[0] + writer.finish()[0], ended) == (text, min_tokens < 9)
