"""Conversations in the forms that templates accept."""

from __future__ import annotations

from typing import Any

import pytest

from specllama.calls.history import REFUSED, accepted, in_call_order, settled
from specllama.errors import TemplateError

U, V = {"role": "user", "content": "u"}, {"role": "user", "content": "v"}
A, B = {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}
S, T = {"role": "system", "content": "s"}, {"role": "system", "content": "t"}
EMPTY = {"role": "assistant", "content": ""}
MARKED = {"role": "user", "content": "<system>\nt\n</system>"}
OK = {"role": "assistant", "content": "OK."}


def called(*ids: str) -> dict[str, Any]:
    function = {"name": "f", "arguments": {}}
    calls = [{"id": id_, "type": "function", "function": function} for id_ in ids]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def result(id_: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": id_}


class TestOrder:
    def shown(self, *messages: dict[str, Any]) -> str:
        return "".join(m.get("tool_call_id", m["role"][0]) for m in in_call_order(messages))

    def test_results_get_the_order_of_their_calls(self) -> None:
        """Clients send the first one to end first."""
        assert self.shown(called("a", "b"), *map(result, "xba"), U, called("c"), result("c")) == "aabxuac"
        assert self.shown(called("a"), called("b"), *map(result, "ba"), A) == "aaaba"

    def test_they_come_before_what_was_said_between_them(self) -> None:
        assert self.shown(U, called("a", "b"), result("b"), V, result("a"), A) == "uaabua"

    def test_ids_may_begin_again(self) -> None:
        turns = [called("a", "b"), *map(result, "ba")]
        assert self.shown(*turns, U, *turns) == "aabuaab"

    def test_unrelated_results_stay(self) -> None:
        assert self.shown(result("b"), result("a"), U) == "bau"

    def test_they_get_the_names_of_their_tools(self) -> None:
        own = {**result("a"), "name": "own"}
        ordered = in_call_order([called("a"), result("a"), own, result("x")])
        assert [message.get("name") for message in ordered] == [None, "f", "own", None]


class TestSystem:
    @pytest.mark.parametrize(
        ("messages", "system", "systems", "expected"),
        [
            ([S, T, U, A, T, V], True, True, [S, T, U, A, T, V]),
            ([S, T, U, A, T, V], True, False, [{**S, "content": "s\n\nt"}, U, A, MARKED, V]),
            ([S, U], True, False, [S, U]),
            ([U, A, T], True, False, [U, A, MARKED]),
            ([S, U, A], False, False, [{**U, "content": "s\nu"}, A]),
            ([S, T, A, U], False, False, [{**U, "content": "s\n\nt"}, A, U]),
            ([S], False, False, [{**U, "content": "s"}]),
            ([{**S, "content": ""}, U], False, False, [U]),
            ([U], False, False, [U]),
            ([], True, False, []),
        ],
    )
    def test_where_a_template_shows_them(self, messages, system, systems, expected) -> None:
        assert settled(messages, system, systems) == expected


def alternating(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Refuses what Mistral's and Gemma's templates do."""
    roles = [m["role"] for m in messages if m["role"] in ("user", "assistant") and not m.get("tool_calls")]
    wrong = [i for i, role in enumerate(roles) if (role == "user") != (i % 2 == 0)]
    if wrong or EMPTY in messages:
        raise TemplateError("roles must alternate", details={REFUSED: True})
    return messages


class TestForms:
    @pytest.mark.parametrize(
        ("messages", "expected"),
        [
            ([U, A, V], [U, A, V]),
            ([U, V], [{**U, "content": "u\nv"}]),
            ([S, U, V, A, B, U], [S, {**U, "content": "u\nv"}, {**A, "content": "a\nb"}, U]),
            ([U, EMPTY, V], [{**U, "content": "u\nv"}]),
            ([A, U], [{**U, "content": ""}, A, U]),
            ([S, A, U], [S, {**U, "content": ""}, A, U]),
            ([U, called("a"), result("a"), V], [U, called("a"), result("a"), OK, V]),
            ([U, called("a"), V], [U, called("a"), OK, V]),
            ([U, called("a"), result("a"), A, V], [U, called("a"), result("a"), A, V]),
        ],
    )
    def test_what_an_alternating_template_accepts(self, messages, expected) -> None:
        assert accepted(messages, alternating) == expected

    def test_reasoning_and_calls_are_joined_too(self) -> None:
        one = {**A, "reasoning_content": "x"}
        other = {**called("a"), "reasoning_content": "y", "content": "b"}
        joined = accepted([U, one, other, result("a")], lambda m: m if len(m) == 3 else alternating([A]))
        assert joined[1] == {**other, "content": "a\nb", "reasoning_content": "x\ny"}

    def test_messages_are_tried_as_they_are_first(self) -> None:
        assert accepted([U, V, A, B, EMPTY], lambda messages: messages) == [U, V, A, B, EMPTY]

    def test_the_error_is_that_of_the_messages_as_they_are(self) -> None:
        tried = []

        def refuse(messages: list[dict[str, Any]]) -> None:
            tried.append(messages)
            raise TemplateError(f"{len(messages)} messages", details={REFUSED: True})

        with pytest.raises(TemplateError, match="3 messages"):
            accepted([A, U, V], refuse)
        assert len(tried) == 3

    def test_other_errors_are_not_tried_again(self) -> None:
        tried = []

        def fail(messages: list[dict[str, Any]]) -> None:
            tried.append(messages)
            raise TemplateError("ran for too long")

        with pytest.raises(TemplateError, match="too long"):
            accepted([A, U, V], fail)
        assert len(tried) == 1
