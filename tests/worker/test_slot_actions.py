"""Slots are saved, restored and erased, as by llama-server's route."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specllama.client import protocol as m
from specllama.worker import slot_actions
from tests.support.front import Front
from tests.support.generations import generate
from tests.worker.test_kept_prefixes import ask, opened  # noqa: F401

PATH_ERROR = "the slot cannot be restored"


def act(front: Front, action: m.SlotAction) -> m.Message:
    front.messages.clear()
    front.core.handle(action)
    return front.messages[-1]


@pytest.mark.parametrize("kind", ["llama", "qwen35"])
def test_a_saved_slot_is_restored_in_another_process(opened: Callable[..., Front], tmp_path: Path, kind: str):  # noqa: F811
    first = opened(kind, cache_disk=0)
    path = str(tmp_path / "slots" / "a.bin")
    empty_slot = act(first, m.SlotAction(9, 0, "save", path))
    assert isinstance(empty_slot, m.SlotDone)
    assert empty_slot.n_tokens == 0
    done, text = ask(first)
    saved = act(first, m.SlotAction(9, 0, "save", path))
    assert isinstance(saved, m.SlotDone)
    assert (saved.n_tokens, saved.n_bytes) == (done.stats.n_prompt + 29, Path(path).stat().st_size)
    second = opened(kind, cache_disk=0)
    restored = act(second, m.SlotAction(9, 0, "restore", path))
    assert isinstance(restored, m.SlotDone)
    assert restored.n_tokens == saved.n_tokens
    done, again = ask(second)
    assert again == text
    assert done.stats.n_evaluated <= 70
    erased = act(second, m.SlotAction(9, 0, "erase"))
    assert isinstance(erased, m.SlotDone)
    assert erased.n_tokens > 0
    assert ask(second)[0].stats.n_reused == 0


def test_what_cannot_be_restored_leaves_the_slot_as_it_is(opened: Callable[..., Front], tmp_path: Path):  # noqa: F811
    front = opened("llama", cache_disk=0)
    ask(front)
    bad = tmp_path / "bad"
    bad.write_bytes(b"x" * 1000)
    for path in (str(bad), str(tmp_path / "nothing")):
        failed = act(front, m.SlotAction(9, 0, "restore", path))
        assert isinstance(failed, m.Failed)
        assert PATH_ERROR in str(failed.error["message"])
    assert ask(front)[0].stats.n_reused > 0
    failed = act(front, m.SlotAction(9, 5, "save", str(bad)))
    assert isinstance(failed, m.Failed)


def test_states_beyond_the_free_memory_are_neither_saved_nor_restored(
    opened: Callable[..., Front],  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    front = opened("llama", cache_disk=0)
    ask(front)
    path = str(tmp_path / "slots" / "a.bin")
    assert isinstance(act(front, m.SlotAction(9, 0, "save", path)), m.SlotDone)
    monkeypatch.setattr(slot_actions, "available_memory", lambda: 1000)
    for action in (m.SlotAction(9, 0, "save", path), m.SlotAction(9, 0, "restore", path)):
        failed = act(front, action)
        assert isinstance(failed, m.Failed)
        assert "memory" in str(failed.error["message"])
    assert ask(front)[0].stats.n_reused > 0


def test_a_slot_in_use_is_saved_once_it_is_idle(opened: Callable[..., Front], tmp_path: Path):  # noqa: F811
    front = opened("llama", cache_disk=0)
    front.core.handle(generate(1, prompt="abc " * 100, params={"max_tokens": 20, "ignore_eos": True}))
    front.core.step()
    front.core.handle(m.SlotAction(9, 0, "save", str(tmp_path / "slots" / "a.bin")))
    assert not any(isinstance(one, m.SlotDone) for one in front.messages)
    while front.core.busy:
        front.core.step()
    (done,) = [one for one in front.messages if isinstance(one, m.SlotDone)]
    assert done.n_tokens > 100


def test_what_a_slot_had_before_is_kept_in_memory(opened: Callable[..., Front], tmp_path: Path):  # noqa: F811
    front = opened("llama", cache_disk=0)
    path = str(tmp_path / "slots" / "a.bin")
    ask(front)
    assert isinstance(act(front, m.SlotAction(9, 0, "save", path)), m.SlotDone)
    other = {"messages": [{"role": "user", "content": "Something else. " * 60}]}
    ask(front, **other)
    assert isinstance(act(front, m.SlotAction(9, 0, "restore", path)), m.SlotDone)
    assert ask(front, **other)[0].stats.n_reused > 100
    assert ask(front)[0].stats.n_reused > 100
