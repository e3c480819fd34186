"""Items of answers for references to them: who gets them, in which requests, and how much is held."""

from __future__ import annotations

from typing import Any

from specllama.server.dialects.shared.base import RecentItems


def said(id_: str, text: str = "hi") -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"id": id_, "type": "message", "role": "assistant", "content": [part]}


def reference(id_: Any) -> dict[str, Any]:
    return {"type": "item_reference", "id": id_}


def test_references_become_the_items() -> None:
    recent = RecentItems()
    recent.add("", [said("msg_1"), said("msg_2", "ho")])
    asked = {"model": "m", "input": [{"role": "user", "content": "x"}, {"id": "msg_1"}, reference("msg_2")]}
    resolved = recent.resolved("", asked)
    assert resolved == {"model": "m", "input": [asked["input"][0], said("msg_1"), said("msg_2", "ho")]}


def test_log_probabilities_are_not_held() -> None:
    recent, item = RecentItems(), said("msg_1")
    item["content"][0]["logprobs"] = [{"token": "hi", "logprob": -1.0}]
    recent.add("", [item])
    assert recent.resolved("", {"input": [reference("msg_1")]}) == {"input": [said("msg_1")]}


def test_unresolved_references_are_kept() -> None:
    recent = RecentItems()
    recent.add("key 1", [said("msg_1")])
    for asked in (
        {}, {"input": "x"}, {"input": []}, {"input": [1, None, {}, {"role": "user", "id": "msg_1"}]},
        {"input": [reference("msg_2")]}, {"input": [reference(7), reference(None), reference(["msg_1"])]},
        {"input": [{"type": "message", "id": "msg_1"}]},
    ):  # fmt: skip
        assert recent.resolved("key 1", asked) == asked
    other = {"input": [reference("msg_1")]}
    assert recent.resolved("key 2", other) == other


def test_each_item_is_resolved_once() -> None:
    recent = RecentItems()
    recent.add("", [said("msg_1")])
    asked = {"input": [reference("msg_1"), reference("msg_1")]}
    assert recent.resolved("", asked) == {"input": [said("msg_1"), reference("msg_1")]}


def test_the_most_recently_used_items_are_held() -> None:
    recent = RecentItems(most=1000)
    for i in range(3):
        recent.add("", [said(f"msg_{i}", "x" * 300)])
        assert recent.find("", "msg_0")
    assert [recent.find("", f"msg_{i}") is not None for i in range(3)] == [True, False, True]
    recent.add("", [said("msg_9", "x" * 2000)])
    assert recent.find("", "msg_9") is None


def test_large_items_evict_nothing() -> None:
    recent = RecentItems()
    recent.add("", [said("msg_0"), said("msg_1", "x" * 2**20)])
    assert recent.find("", "msg_0")
    assert recent.find("", "msg_1") is None


def test_the_latest_version_is_kept() -> None:
    recent = RecentItems(most=500)
    for n in range(100):
        recent.add("", [said("msg_1", "x" * n)])
    recent.add("", [said("msg_2")])
    assert recent.find("", "msg_1")


def test_the_items_of_one_request_are_bounded() -> None:
    recent = RecentItems()
    ids = [f"msg_{i}" for i in range(9)]
    recent.add("", [said(id_, "x" * 1000_000) for id_ in ids])
    items = recent.resolved("", {"input": [reference(id_) for id_ in ids]})["input"]
    assert [item["type"] for item in items] == ["message"] * 4 + ["item_reference"] * 5
