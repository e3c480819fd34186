"""Texts that are given: where a plain one is cut, and what is refused before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.bench import texts, workloads
from specllama.bench.samples import Given, Unit
from specllama.errors import NotFoundError, UsageError


@given(st.text(min_size=1))
def test_a_cut_loses_nothing(text: str) -> None:
    prompt, rest = texts.cut(text)
    assert prompt + rest == text
    assert prompt
    assert len(prompt) <= max(1, len(text) // 2)


@pytest.mark.parametrize(
    ("text", "prompt"),
    [
        ("one\ntwo\nthree\nfour\nfive\nsix\n", "one\ntwo\n"),  # at the end of a line
        ("abc\nefgh\nijklmnop", "abc\n"),
        ("aa bb cc dd ee ff gg", "aa bb"),  # in front of a word
        ("abcdefghijkl", "abc"),
        ("ab", "a"),
    ],
)
def test_where_it_is_cut(text: str, prompt: str) -> None:
    assert texts.cut(text)[0] == prompt


def test_a_plain_text_is_one_raw_unit(tmp_path: Path) -> None:
    path = tmp_path / "edited.py"
    path.write_bytes(b"\xef\xbb\xbf" + "é = 1\nb = 2\nc = 3\nd = 4\n".encode())
    found = texts.load(str(path))
    assert found == {"text": (Given("é = 1\n", "b = 2\nc = 3\nd = 4\n", True),)}
    (unit,) = workloads.units(found, (0.0,))
    assert unit == Unit("text", 1, "é = 1\n", 0.0, found["text"][0])


def test_an_object_of_prompts_and_texts(tmp_path: Path) -> None:
    path = tmp_path / "mine.JSON"
    edit = [{"prompt": "p", "text": "t"}] * 2
    path.write_text(json.dumps({"edit": edit, "b": [{"text": "u", "prompt": "q"}]}))
    found = texts.load(str(path))
    assert found == {"edit": (Given("p", "t"), Given("p", "t")), "b": (Given("q", "u"),)}
    assert [u.number for u in workloads.units(workloads.chosen(found, "edit"), (0.0, 1.0))] == [1, 2, 1, 2]


@pytest.mark.parametrize(
    ("name", "data", "needle"),
    [
        ("a.txt", b"", "is empty"),
        ("a.txt", b" \n", "is empty"),
        ("a.txt", b"x", "too short"),
        ("a.txt", b"x\n\n\n\n\n", "too short"),
        ("a.txt", b"GGUF\0\0", "NUL"),
        ("a.txt", b"caf\xe9", "UTF-8"),
        ("a.txt", b"x" * ((1 << 20) + 1), "characters"),
        ("a.json", b"", "no JSON"),
        ("a.json", b"{", "no JSON"),
        ("a.json", b"[]", "no JSON object"),
        ("a.json", b"{}", "no workloads"),
        ("a.json", b'{"a": {}}', "list"),
        ("a.json", b'{"a": []}', "at least one entry"),
        ("a.json", b'{"a": ["x"]}', "entry 1 of a is no object"),
        ("a.json", b'{"a": [{"prompt": "x"}]}', "'prompt' and 'text', not 'prompt'"),
        ("a.json", b'{"a": [{}]}', "not nothing"),
        ("a.json", b'{"a": [{"prompt": "x", "text": "y", "texts": 1}]}', "'texts'"),
        ("a.json", b'{"a": [{"prompt": "x", "text": 5}]}', "has a text that is no text"),
        ("a.json", b'{"a": [{"prompt": "", "text": "y"}]}', "has a prompt that is empty"),
        ("a.json", b'{"a": [{"prompt": "x", "text": "\\ud800"}]}', "half a character"),
        ("a.json", b'{"all": [{"prompt": "x", "text": "y"}]}', "cannot name"),
        ("a.json", json.dumps({"a": [{k * 99: 1 for k in "abc"}]}).encode(), "'prompt' and 'text', not"),
    ],
)
def test_what_cannot_be_used(tmp_path: Path, name: str, data: bytes, needle: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        texts.load(str(path))
    assert needle in caught.value.message
    assert caught.value.message.startswith("--text: ")
    assert len(caught.value.message) < 600


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        texts.load(str(tmp_path / "absent.txt"))
    for path in (str(tmp_path), "", "a\0b"):
        with pytest.raises(UsageError, match="--text"):
            texts.load(path)
    with pytest.raises(UsageError, match="larger than"):
        texts.load("/dev/zero")
