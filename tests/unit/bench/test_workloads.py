"""Prompts and texts from files, and the files that are refused before a model is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.bench import runner as workloads
from specllama.bench.runner import BenchCase, ForcedText
from specllama.config.options import as_flag
from specllama.errors import NotFoundError, UsageError


def test_the_built_in_workloads_pass_the_check_of_prompt_files(tmp_path: Path) -> None:
    assert list(workloads.WORKLOADS) == ["explain", "source", "json", "edit", "free"]
    (tmp_path / "own.json").write_text(json.dumps(workloads.WORKLOADS))
    assert workloads.load_prompts(str(tmp_path / "own.json")) == workloads.WORKLOADS
    every = [p for prompts in workloads.WORKLOADS.values() for p in prompts]
    assert len(set(every)) == len(every) == 20


def test_a_file_of_prompts_is_read_and_workloads_are_selected(tmp_path: Path) -> None:
    path = tmp_path / "prompts.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"chat": ["Grüße", "b"], "c": ["d"]}).encode())
    loaded = workloads.load_prompts(str(path))
    assert loaded == {"chat": ("Grüße", "b"), "c": ("d",)}
    assert workloads.select(loaded, " c , chat") == {"c": ("d",), "chat": ("Grüße", "b")}
    assert workloads.select(loaded, None) == loaded


@pytest.mark.parametrize(
    ("data", "needle"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "nested"),
        (b"\xff", "UTF-8"),
        (b"[]", "not a JSON object"),
        (b"{}", "no workloads"),
        (b'{"a": "b"}', "list"),
        (b'{"a": []}', "at least one prompt"),
        (b'{"a": ["x", 1]}', "prompt 2 of a is not a text"),
        (b'{"a": [" \\n"]}', "is empty"),
        (b'{"a": ["\\ud800"]}', "half a character"),
        (b'{"a": ["x"], "a": ["y"]}', "twice"),
        (b'{"all": ["x"]}', "cannot name"),
        (b'{" ": ["x"]}', "cannot name"),
        (b'{"\\u001b[31m": ["x"]}', "cannot name"),
        (json.dumps({"n" * 41: ["x"]}).encode(), "cannot name"),
        (json.dumps({"a": ["x"] * 10_001}).encode(), "10001 prompts"),
        (json.dumps({"a": ["x" * ((1 << 20) + 1)]}).encode(), "characters"),
    ],
)
def test_unusable_prompts_are_refused_with_a_reason(tmp_path: Path, data: bytes, needle: str) -> None:
    path = tmp_path / "prompts.json"
    path.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        workloads.load_prompts(str(path))
    assert needle in caught.value.message
    assert "\x1b" not in str(caught.value)
    assert len(caught.value.message) < 300


def test_missing_or_endless_prompt_files_and_unknown_workloads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        workloads.load_prompts(str(tmp_path / "absent.json"))
    with pytest.raises(UsageError):
        workloads.load_prompts(str(tmp_path))
    with pytest.raises(UsageError, match="larger than"):
        workloads.load_prompts("/dev/zero")
    for names in ("nope", ",", ""):
        with pytest.raises(UsageError):
            workloads.select(workloads.WORKLOADS, names)


@given(st.text(min_size=1))
def test_prompt_and_rest_together_are_the_whole_text(text: str) -> None:
    prompt, rest = workloads.split_text(text)
    assert prompt + rest == text
    assert prompt
    assert len(prompt) <= max(1, len(text) // 2)


@pytest.mark.parametrize(
    ("text", "prompt"),
    [
        ("one\ntwo\nthree\nfour\nfive\nsix\n", "one\ntwo\n"),  # at the end of a line
        ("abc\nefgh\nijklmnop", "abc\n"),
        ("aa bb cc dd ee ff gg", "aa bb"),  # before a word
        ("abcdefghijkl", "abc"),
        ("ab", "a"),
    ],
)
def test_a_text_is_cut_after_a_line_or_before_a_word_if_possible(text: str, prompt: str) -> None:
    assert workloads.split_text(text)[0] == prompt


def test_a_plain_text_file_is_one_raw_case(tmp_path: Path) -> None:
    path = tmp_path / "edited.py"
    path.write_bytes(b"\xef\xbb\xbf" + "é = 1\nb = 2\nc = 3\nd = 4\n".encode())
    loaded = workloads.load_texts(str(path))
    assert loaded == {"text": (ForcedText("é = 1\n", "b = 2\nc = 3\nd = 4\n", True),)}
    (case,) = workloads.cases(loaded, (0.0,))
    assert case == BenchCase("text", 1, "é = 1\n", 0.0, loaded["text"][0])


def test_a_json_file_has_prompts_and_texts_by_workload(tmp_path: Path) -> None:
    path = tmp_path / "mine.JSON"
    edit = [{"prompt": "p", "text": "t"}] * 2
    path.write_text(json.dumps({"edit": edit, "b": [{"text": "u", "prompt": "q"}]}))
    loaded = workloads.load_texts(str(path))
    assert loaded == {"edit": (ForcedText("p", "t"), ForcedText("p", "t")), "b": (ForcedText("q", "u"),)}
    assert [u.number for u in workloads.cases(workloads.select(loaded, "edit"), (0.0, 1.0))] == [1, 2, 1, 2]


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
        ("a.json", b"", "not JSON"),
        ("a.json", b"{", "not JSON"),
        ("a.json", b"[]", "not a JSON object"),
        ("a.json", b"{}", "no workloads"),
        ("a.json", b'{"a": {}}', "list"),
        ("a.json", b'{"a": []}', "at least one entry"),
        ("a.json", b'{"a": ["x"]}', "entry 1 of a is not an object"),
        ("a.json", b'{"a": [{"prompt": "x"}]}', "'prompt' and 'text', not 'prompt'"),
        ("a.json", b'{"a": [{}]}', "not nothing"),
        ("a.json", b'{"a": [{"prompt": "x", "text": "y", "texts": 1}]}', "'texts'"),
        ("a.json", b'{"a": [{"prompt": "x", "text": 5}]}', "has a text that is not a text"),
        ("a.json", b'{"a": [{"prompt": "", "text": "y"}]}', "has a prompt that is empty"),
        ("a.json", b'{"a": [{"prompt": "x", "text": "\\ud800"}]}', "half a character"),
        ("a.json", b'{"all": [{"prompt": "x", "text": "y"}]}', "cannot name"),
        ("a.json", json.dumps({"a": [{k * 99: 1 for k in "abc"}]}).encode(), "'prompt' and 'text', not"),
    ],
)
def test_unusable_texts_are_refused_with_a_reason(
    tmp_path: Path, name: str, data: bytes, needle: str
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        workloads.load_texts(str(path))
    assert needle in caught.value.message
    assert caught.value.with_option_names(as_flag).message.startswith("--text: ")
    assert len(caught.value.message) < 600


def test_missing_or_endless_text_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        workloads.load_texts(str(tmp_path / "absent.txt"))
    for path in (str(tmp_path), "", "a\0b"):
        with pytest.raises(UsageError) as caught:
            workloads.load_texts(path)
        assert caught.value.with_option_names(as_flag).message.startswith("--text")
    with pytest.raises(UsageError, match="larger than"):
        workloads.load_texts("/dev/zero")
