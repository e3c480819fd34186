"""Names, files and room of saved conversations, without a model."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.cli.chat.conversation import Conversation, Turn, as_text, from_text
from specllama.cli.chat.library import MAX_NAME, ChatLibrary, ChatSaver, as_name, name_from
from specllama.cli.chat.session import find_room
from specllama.client.protocol import EarlierTurn
from specllama.config.places import NOWHERE
from specllama.errors import UsageError


@given(st.text())
def test_a_name_is_a_short_line(text: str) -> None:
    for name in (as_name(text), name_from(text)):
        assert name.isprintable()
        assert name == name.strip()
        assert len(name) <= MAX_NAME
        assert as_name(name) == name
    assert name_from(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("What does zip do?", "What does zip do"),
        ("\n\n  two\tblanks \nmore", "two blanks"),
        ("?!", "?!"),
        ("", "conversation"),
        ("a/b/../c", "a/b/../c"),
        (
            "Was bedeutet „Übergrößenträger“ in diesem Zusammenhang genau?",
            "Was bedeutet „Übergrößenträger“ in diesem",
        ),
        ("漢" * 100, "漢" * 48),
        ("e\u0301", "é"),
    ],
)
def test_the_name_of_a_question(text: str, name: str) -> None:
    assert name_from(text) == name


@given(st.lists(st.integers(1, 40), max_size=12), st.integers(32, 400), st.integers(0, 60))
def test_room_is_the_fewest_turns_that_leave_half(sizes: list[int], n_ctx: int, fixed: int) -> None:
    def count(n: int) -> int | None:
        left = fixed + sum(sizes[n:])
        return left if left < n_ctx else None

    cuts = list(range(1, len(sizes)))
    room = find_room(cuts, count, n_ctx)
    enough = [n for n in cuts if (left := count(n)) is not None and 2 * left <= n_ctx]
    if enough:
        assert room == (enough[0], fixed + sum(sizes[enough[0] :]))
    elif room is not None:
        assert room[0] == cuts[-1]
        assert room[1] <= n_ctx - max(16, n_ctx // 8)


def call(id_: str) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": "f", "arguments": {}}}


def agent() -> list[Turn]:
    """A question, a call with its result, an answer; then another question with a call."""
    result = {"role": "tool", "tool_call_id": "a", "name": "f", "content": "1"}
    return [
        Turn("one", "", calls=[call("a")]),
        Turn("", "done", results=[result], n_results=1),
        Turn("two", "", calls=[call("a")]),
        Turn("", None, results=[result], n_results=1),
    ]


def test_results_stay_with_their_calls() -> None:
    talk = Conversation(turns=agent())
    assert talk.cuts == [2]
    assert talk.trim(1) == 2
    assert [turn.message for turn in talk.dropped] == ["one", ""]
    roles = [message["role"] for message in talk.messages()]
    assert roles == ["user", "assistant", "tool"]
    assert Conversation(turns=agent()[2:]).cuts == []


def test_all_of_a_conversation_comes_back() -> None:
    tokens = EarlierTurn(2, 3, [1, 2, 3, 4], "ab", "be")
    saved = Conversation("s", agent()[2:], dropped=agent()[:2], tokens=tokens)
    saved.dropped[1].cut, saved.dropped[1].n_regenerated = "cancel", 2
    saved.params, saved.models, saved.name = {"top_k": 3}, {"target": None}, "näme"
    saved.options = {"model": "m", "n_ctx": 5}
    assert from_text(as_text(saved, in_library=True), Path("x")) == saved
    assert not {"tokens", "name", "options"} & set(json.loads(as_text(saved)))


@pytest.mark.parametrize(
    "change",
    [
        {"name": 5}, {"options": []}, {"options": {"a": None}}, {"dropped": 1}, {"dropped": [{}]},
        {"tokens": []}, {"tokens": {}}, {"messages": [{"role": "user", "content": "x"}, {"role": "assistant",
        "content": "y", "finish_reason": "tired"}]},
        *({"tokens": {"n_messages": 1, "n_prompt": 1, "ids": "1 2", "digest": "", "prefix": ""} | wrong}
          for wrong in ({"ids": [1]}, {"ids": "1  2"}, {"ids": "-1"}, {"n_prompt": True}, {"n_prompt": 2**40},
                        {"n_messages": "1"}, {"digest": 1}, {"prefix": None}, {"more": 1})),
    ],
)  # fmt: skip
def test_files_with_wrong_fields(change: dict[str, Any]) -> None:
    good = {"schema": "specllama.chat/1", "messages": [{"role": "user", "content": "x"}]}
    from_text(json.dumps(good), Path("c.json"))
    with pytest.raises(UsageError, match=r"c\.json"):
        from_text(json.dumps(good | change), Path("c.json"))


def test_a_saver_writes_what_has_changed_under_a_name_of_its_own(tmp_path: Path) -> None:
    library = ChatLibrary(tmp_path / "chats")
    saver = ChatSaver(library)
    saver.save(Conversation("system"))
    assert not library.path.exists(), "nothing was said"
    talk = Conversation(turns=[Turn("zip?")])
    saver.save(talk)
    (first,) = library.chats()
    assert (talk.name, saver.works, first.name) == ("zip", True, "zip")
    other, shouted = ChatSaver(library), Conversation(turns=[Turn("Zip!")])
    other.save(shouted)
    assert shouted.name == "Zip 2"
    with pytest.raises(UsageError, match="already"):
        other.rename(shouted, "ZIP")
    for name in ('a "b" \\ ä', "漢" * 60):
        other.rename(shouted, name)
        other.save(shouted)
        assert library.unused(name) == f"{name} 2"
        assert library.unused(name, other.path) == name
    other.rename(shouted, "Zip 2")
    other.save(shouted)
    before = first.path.stat().st_mtime_ns
    saver.save(talk)
    assert first.path.stat().st_mtime_ns == before
    talk.turns.clear()
    saver.save(talk)
    assert [chat.name for chat in library.chats()] == ["Zip 2"]
    saver.close()
    again = Conversation(turns=[Turn("zip?")])
    saver.save(again)
    assert again.name == "zip"


def test_the_last_is_the_one_that_was_saved_last_whatever_the_clock_said(tmp_path: Path) -> None:
    library = ChatLibrary(tmp_path / "chats")
    savers = [ChatSaver(library), ChatSaver(library), ChatSaver(library)]
    talks = [Conversation(turns=[Turn(f"question {i}")]) for i in range(3)]
    for i, saver in enumerate(savers):
        saver.save(talks[i])
        assert saver.path is not None
        os.utime(saver.path, (4e9 - 9 * i, 4e9 - 9 * i))  # the clock was ahead, and goes back
    for i in (2, 0, 1):
        talks[i].turns[0].answer = "answer"
        savers[i].save(talks[i])
        assert library.last()[0].name == f"question {i}"
    assert [chat.name for chat in library.chats()] == ["question 1", "question 0", "question 2"]


def test_a_saver_without_a_disk_says_so_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "chats").write_text("a file")
    saver, talk = (
        ChatSaver(ChatLibrary(tmp_path / "chats")),
        Conversation(turns=[Turn("a", "b")], changed=True),
    )
    for _ in range(3):
        saver.save(talk)
    assert capsys.readouterr().err.count("is not saved") == 1
    assert (saver.works, talk.changed) == (False, True)
    (tmp_path / "chats").unlink()
    saver.save(talk)
    assert (saver.works, talk.changed) == (True, False)
    without_home = ChatSaver(ChatLibrary(NOWHERE / "chats"))
    without_home.save(talk)
    assert (without_home.works, capsys.readouterr().err) == (False, ""), "a line at the start says so"
