"""How turns are read whatever their API is: calls and results, arguments, media, and what is left out."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from specllama.server.dialects.shared.conversation import (
    CallArguments,
    ContentPart,
    ConversationReader,
    GivenCall,
    placeholder,
    thought_of,
)
from specllama.server.dialects.shared.fields import FieldError
from specllama.server.http.body import MAX_CONTAINERS, MAX_VALUES

PATH = "messages[1].tool_calls[0].function.arguments"
LEFT_OUT = "[image left out: it cannot be read here]"


def reader(*ids: str | None, name: str = "f") -> ConversationReader:
    """A conversation with an answer that has calls with these ids."""
    conversation = ConversationReader()
    conversation.say("user", "x", "messages[0].content")
    conversation.answer("", "messages[1].content", calls=[GivenCall(id_, name, "{}", PATH) for id_ in ids])
    return conversation


def results(conversation: ConversationReader) -> list[tuple[str, str]]:
    messages = conversation.read(open_calls=True).without_images("it reads text only").messages
    return [(m["tool_call_id"], m["content"]) for m in messages if m["role"] == "tool"]


def image(**more: Any) -> list[ContentPart]:
    return [ContentPart(type="image_url", **more)]


class TestResults:
    def test_results_are_paired_by_id(self) -> None:
        conversation = reader("a", "b")
        conversation.result("b", "2", "")
        conversation.result("a", "1", "")
        assert results(conversation) == [("a", "1"), ("b", "2")]

    def test_results_without_ids_are_paired_in_order(self) -> None:
        conversation = reader(None, None)
        for text in "12":
            conversation.result(None, text, "")
        assert results(conversation) == [("call00001", "1"), ("call00002", "2")]

    def test_results_with_ids_for_calls_without_ids(self) -> None:
        """As langchain-ollama sends them: ollama-python drops the ids of calls."""
        conversation = reader(None, "b", None)
        for id_, text in (("x", "1"), ("b", "2"), ("y", "3")):
            conversation.result(id_, text, "")
        assert results(conversation) == [("call00001", "1"), ("b", "2"), ("call00003", "3")]

    def test_the_same_id_twice_in_one_answer(self) -> None:
        conversation = reader("a", "a")
        for text in "12":
            conversation.result("a", text, "")
        assert results(conversation) == [("a", "1"), ("a", "2")]

    def test_reused_ids_refer_to_the_latest_answer(self) -> None:
        conversation = reader("a")
        conversation.answer("", "", calls=[GivenCall("a", "g", None, PATH)])
        conversation.result("a", "1", "")
        assert conversation.read().messages[-1]["name"] == "g"

    @pytest.mark.parametrize("id_", ["z", None])
    def test_a_result_without_a_call_is_refused(self, id_: str | None) -> None:
        conversation = ConversationReader()
        with pytest.raises(FieldError, match="no message before it") as error:
            conversation.result(id_, "1", "", id_path="messages[0]")
        assert error.value.details["param"] == "messages[0]"

    def test_the_result_of_a_dropped_call_is_dropped(self) -> None:
        conversation = reader("a")
        conversation.leave_out("web_search_call", "ws_1", None)
        conversation.result("ws_1", "1", "")
        assert results(conversation) == []
        assert conversation.read(open_calls=True).note == "left out of the conversation: 1 'web_search_call'"

    def test_a_failed_result_starts_with_error(self) -> None:
        conversation = reader("a", "b", "c")
        for id_, text in (("a", "no"), ("b", "error: no"), ("c", "")):
            conversation.result(id_, text, "", failed=True)
        assert results(conversation) == [("a", "Error: no"), ("b", "error: no"), ("c", "Error")]


class TestArguments:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ('{"a": [1]}', {"a": [1]}), ("", {}), (" ", {}), ("null", {}), (None, {}), ({"a": 1}, {"a": 1}),
            ("{", {}), ('{"te', {}), ('{"a":', {}), ('{"a": "x', {"a": "x"}), ('{"a": "x\\', {"a": "x"}),
            ('{"a": "\\ud83d', {"a": "\ufffd"}), ('{"a": 12', {"a": 12}), ('{"a": tru', {}),
            (' {"a": 1, ', {"a": 1}), ('{"a": [1, {"b": "c', {"a": [1, {"b": "c"}]}),
        ],
    )  # fmt: skip
    def test_forms_of_arguments(self, text, expected) -> None:
        assert CallArguments().parse(text, PATH) == expected

    @pytest.mark.parametrize(
        "text",
        [
            "[]", '"x"', "nonsense", '{"a": NaN}', '{"a":' * 70 + "1" + "}" * 70,
            '{"a" 1', "{a: 1", '{"a": 1} x', '{"a": 1}{', "[" * 100_000, '{"a":' * 100 + '"', '{"a": NaN',
        ],
    )  # fmt: skip
    def test_arguments_that_are_neither_an_object_nor_the_start_of_one(self, text: str) -> None:
        with pytest.raises(FieldError) as error:
            CallArguments().parse(text, PATH)
        assert error.value.details == {"param": PATH}
        assert PATH in error.value.message
        assert len(error.value.message) < 200

    @pytest.mark.parametrize("item", ["[]", "1"])
    def test_arguments_of_all_calls_share_limits(self, item: str) -> None:
        most = {"[]": MAX_CONTAINERS, "1": MAX_VALUES}[item]
        text = json.dumps({"a": [json.loads(item)] * 1000})
        arguments = CallArguments()
        for _ in range(most // 1002):
            arguments.parse(text, "x")
        with pytest.raises(FieldError, match="together"):
            arguments.parse(text, "x")
        with pytest.raises(FieldError, match="together"):
            arguments.parse(text[:-2], "x")


class TestMedia:
    def test_new_media_are_refused_in_words_that_agents_recognise(self) -> None:
        conversation = ConversationReader()
        conversation.say("user", [ContentPart(type="image")], "messages[3].content")
        with pytest.raises(FieldError, match="it reads text only") as error:
            conversation.read().without_images("it reads text only")
        assert error.value.details["param"] == "messages[3].content[0]"
        message = error.value.message
        assert "The image data you provided does not represent a valid image" in message, "Codex"
        claude = r"messages[.[](\d+)[\].]+content[.[](\d+)[\].]+(image|document|pdf)"
        match = re.search(claude, message)
        assert match is not None, "Claude Code"
        assert match.groups() == ("3", "0", "image")
        assert "could not process image" in message

    def test_refused_media_do_not_block_later_turns(self) -> None:
        conversation = ConversationReader()
        conversation.say("user", image(), "messages[0].content")
        conversation.say("user", "then without", "messages[1].content")
        assert [m["content"] for m in conversation.read().without_images("it reads text only").messages] == [
            LEFT_OUT,
            "then without",
        ]

    def test_media_in_results_and_after_them(self) -> None:
        conversation = reader("a")
        conversation.result("a", image(), "")
        assert results(conversation) == [("a", LEFT_OUT)]
        conversation.say("user", image(), "")
        assert conversation.read().without_images("it reads text only").messages[-1]["content"] == LEFT_OUT

    def test_names_of_files_are_shown(self) -> None:
        assert placeholder("file", "a\n b" + "x" * 300) == (
            f"[file a b{'x' * 197} left out: it cannot be read here]"
        )

    @pytest.mark.parametrize(
        ("part", "text"),
        [
            ({"type": "document", "source": {"type": "text", "data": "all of it"}}, "all of it"),
            (
                {
                    "type": "document",
                    "title": "T",
                    "source": {"type": "content", "content": [{"text": "it"}]},
                },
                "T\nit",
            ),
            (
                {"type": "search_result", "title": "T", "source": "u", "content": [{"text": "found"}]},
                "T\nfound",
            ),
            (
                {"type": "input_file", "filename": "a.pdf"},
                "[file a.pdf left out: it cannot be read here]",
            ),
            (
                {"type": "file", "file": {"filename": "b.pdf"}},
                "[file b.pdf left out: it cannot be read here]",
            ),
        ],
    )
    def test_documents_that_are_text_are_read(self, part: dict[str, Any], text: str) -> None:
        conversation = reader("a")
        conversation.result("a", [ContentPart.model_validate(part)], "")
        assert results(conversation) == [("a", text)]


@pytest.mark.parametrize(
    ("message", "thought"),
    [
        ({"reasoning_content": "a", "reasoning": "b"}, "a"),
        ({"reasoning_content": "", "reasoning": "b"}, "b"),
        (
            {"thinking_blocks": [{"type": "thinking", "thinking": "a"}, {"thinking": "b"}, {"data": "x"}, 5]},
            "ab",
        ),
        ({"reasoning_details": [{"type": "reasoning.summary", "summary": "s"}, {"data": "x"}]}, "s"),
        ({"reasoning": {"effort": "low"}, "reasoning_details": []}, None),
        ({}, None),
    ],
)
def test_where_clients_keep_reasoning(message: dict[str, Any], thought: str | None) -> None:
    assert thought_of(message) == thought


def test_an_answer_at_the_end_is_continued() -> None:
    conversation = reader()
    read = conversation.read()
    assert (read.prefix, read.thought, len(read.messages)) == ("", "", 1)
    conversation.answer("so", "", thought="hm")
    read = conversation.read()
    assert (read.prefix, read.thought, len(read.messages)) == ("so", "hm", 2)
    assert len(conversation.read(continues=False).messages) == 3
    alone = ConversationReader()
    alone.answer("so", "")
    with pytest.raises(FieldError, match="nothing to answer"):
        alone.read()
