"""Parts of `specllama chat` that need no model: files, history, input, and what is shown."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.calls.formats import GENERIC
from specllama.calls.tools import Tool, Tools
from specllama.cli.chat.conversation import Conversation, Turn, read, write
from specllama.cli.chat.engine import assign, idle, show_calls, shown
from specllama.cli.chat.terminal import MAX_INPUTS, HistoryFile, Screen, is_open, parse_input
from specllama.client import protocol
from specllama.client.stream import GenerationResult
from specllama.core.sampling.params import SamplingParams
from specllama.core.stats import RunStats
from specllama.errors import NotFoundError, UsageError
from specllama.text.terminal import visible


class TestParts:
    @given(st.text())
    def test_what_is_shown_has_no_control_characters(self, text: str) -> None:
        shown = visible(text)
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown)
        assert len(shown) == len(text.replace("\r", ""))

    @given(st.lists(st.text(max_size=9), max_size=9))
    def test_trim_leaves_at_most_half_or_the_last_turn(self, texts: list[str]) -> None:
        conversation = Conversation(turns=[Turn(text, text) for text in texts])
        n = conversation.trim()
        assert [turn.message for turn in conversation.turns] == texts[n:]
        size = sum(map(len, texts))
        assert 2 * sum(map(len, texts[n:])) <= size or n == len(texts) - 1
        assert n == min(1, len(texts)) or (2 * sum(map(len, texts[n - 1 :])) > size and n < len(texts))

    @given(st.text(), st.text())
    @settings(max_examples=50)
    def test_a_conversation_comes_back_from_its_file(self, tmp_path_factory: Any, a: str, b: str) -> None:
        path = tmp_path_factory.getbasetemp() / "c.json"
        before = Conversation(a, [Turn(a, b), Turn(b)])
        before.params = {"stop": ["x"], "logit_bias": {5: float("-inf")}}
        write(str(path), before)
        before.params = {"stop": ("x",), "logit_bias": {5: -1e6}}
        assert read(str(path)) == before

    @pytest.mark.parametrize(
        "change",
        [
            {"schema": "specllama.chat/2"}, {"schema": 1}, {"schema": None}, {"system": 5}, {"system": None},
            {"messages": None}, {"messages": {}}, {"messages": [5]}, {"messages": [{"role": "user"}]},
            {"messages": [{"role": "assistant", "content": "x"}]},
            {"messages": [{"role": "user", "content": ["x"]}]},
            {"messages": [{"role": "user", "content": "x", "name": "y"}]},
            {"messages": [{"role": "user", "content": "x"}] * 2}, {"params": []}, {"params": {"x": 1}},
            {"params": {"top_k": "many"}}, {"params": {"seed": 2**70}}, {"params": {"stop": [1]}},
            {"models": 5}, {"more": 1}, {"tokens": {"ids": ""}},
        ],
    )  # fmt: skip
    def test_files_with_wrong_fields(self, tmp_path: Path, change: dict[str, Any]) -> None:
        good = {"schema": "specllama.chat/1", "messages": [{"role": "user", "content": "x"}]}
        path = tmp_path / "c.json"
        path.write_text(json.dumps(good))
        assert len(read(str(path)).turns) == 1
        path.write_text(json.dumps(good | change))
        with pytest.raises(UsageError, match=r"c\.json") as caught:
            read(str(path))
        assert "\n" not in caught.value.message
        names = r"\b(_?File|User|Assistant|Tool|EarlierTurn|str|int|dict)\b"
        assert not re.search(names, caught.value.message)
        assert len(caught.value.message) < 400 + len(str(path))

    @pytest.mark.parametrize(
        "content", [b"", b"{", b"[]", b"5", b"\xff\xfe", b"[" * 200_000, b'{"schema": ' + b"9" * 5000 + b"}"]
    )
    def test_files_that_are_no_json_of_ours(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "c.json").write_bytes(content)
        with pytest.raises(UsageError, match="it is no conversation"):
            read(str(tmp_path / "c.json"))

    def test_huge_files_are_not_read(self, tmp_path: Path) -> None:
        with (tmp_path / "c.json").open("wb") as file:
            file.truncate(1 << 40)
        with pytest.raises(UsageError, match="larger than 64 MiB"):
            read(str(tmp_path / "c.json"))
        with pytest.raises(NotFoundError):
            read(str(tmp_path / "none.json"))

    def test_history_survives_what_it_finds(self, tmp_path: Path) -> None:
        path = tmp_path / "deep" / "history"
        history = HistoryFile(path)
        assert history.read() == []
        for text in ("one", "two\nlines", "x" * 100_000):
            history.append(text)
        assert history.read() == ["one", "two\nlines"]
        path.write_bytes(b'\xff\xfe\n{"a": 1}\n"kept"\n' + path.read_bytes())
        assert history.read() == ["kept", "one", "two\nlines"]
        path.write_bytes(b'"a line"\n' * 500_000)
        assert len(history.read()) == MAX_INPUTS
        assert path.stat().st_size < 10_000
        os.mkfifo(tmp_path / "fifo")
        assert HistoryFile(tmp_path / "fifo").read() == []
        HistoryFile(tmp_path / "fifo").append("x")
        HistoryFile(tmp_path).append("x")

    @pytest.mark.parametrize(
        ("text", "opened", "message"),
        [
            ('"""', True, ""), ('"""\na', True, "a"), ('"""\na\n"""', False, "a"), ('""""""', False, ""),
            ('"""a"""', False, "a"), ("a", False, "a"), ('a """', False, 'a """'),
            (' """x\n""" ', False, "x"), ("a\ud800b", False, "a\ufffdb"), ("\n a\n\n", False, " a"),
        ],
    )  # fmt: skip
    def test_quotation_marks(self, text: str, opened: bool, message: str) -> None:
        assert is_open(text) is opened
        assert parse_input(text).text == message


def test_calls_are_shown_after_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    answer = GenerationResult(GENERIC.reader(Tools([Tool("now")])))
    screen = Screen(True, False)
    screen.begin(answer)
    answer.add(protocol.Started(1, 1, SamplingParams()))
    for piece in ("Let me", ' see.\n<tool_call>\n{"name": "now", ', '"arguments": {}}\n</tool_call>'):
        runs = [(len(piece), "target")]
        delta = answer.add(protocol.Tokens([protocol.SequenceDelta(1, piece, [0], runs, 0, 0)]))
        assert delta is not None
        screen.show(delta.text, delta.runs)
    assert answer.add(protocol.Done(1, "", "stop", RunStats())) is not None
    calls = show_calls(screen, answer.calls)
    screen.end()
    assert capsys.readouterr().out == "Let me see.\nnow({})\n"
    assert answer.text == "Let me see."
    assert [call["function"] for call in calls] == [{"name": "now", "arguments": {}}]


class TestSettings:
    @pytest.mark.parametrize("typed", ["a b", '"a b"', '["a b"]'])
    def test_one_text_of_several_is_shown_as_one(self, typed: str) -> None:
        for name in ("stop", "dry_sequence_breakers"):
            params = assign({}, name, typed)
            assert params == {name: ["a b"]}
            assert shown(name, params, {}).split(maxsplit=1)[1] == '"a b"   (set)'
        assert assign({}, "dry_sequence_breakers", '"\\n"') == {"dry_sequence_breakers": ["\n"]}

    def test_what_has_no_effect_is_named_by_its_parameter(self) -> None:
        assert idle({"mirostat": 2, "top_k": 3, "seed": 1}) == ["top_k has no effect with mirostat"]
        assert idle({"temperature": 0.5, "stop": ["x"]}) == []
