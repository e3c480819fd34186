"""The engine core drafts from earlier output of the same owner, unless that is switched off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specllama.client import protocol as m
from specllama.config.load import LoadSettings, ModelSettings
from specllama.config.store import Store
from specllama.data import EMBEDDED_TARGET
from tests.support.front import Front
from tests.support.generations import generate

REQUEST = {"prompt": "def read(", "params": {"max_tokens": 50, "seed": 5, "ignore_eos": True}}


@pytest.fixture
def load(fronts: Callable[..., Front]) -> Callable[..., Front]:
    target = ModelSettings(path=str(EMBEDDED_TARGET), n_threads=1, n_ctx=512)
    return lambda **settings: fronts(target=target, **settings)


def ask(front: Front, **more: object) -> tuple[str, dict[str, int]]:
    """The text, and the number of its tokens that each drafter drafted."""
    text = front.text(**(REQUEST | more))
    done = front.messages[-1]
    assert isinstance(done, m.Done)
    return text, done.stats.drafted_by


def test_a_repeated_request_is_drafted_from_memory(load: Callable[..., Front]) -> None:
    front = load(draft_max=6)
    text, by = ask(front)
    assert "memory" not in by
    again, by = ask(front)
    assert again == text
    assert by["memory"] > 30
    sources = {source for item in front.items(**REQUEST) for _, source in item.runs}
    assert "memory" in sources


def test_memory_is_kept_by_owner(load: Callable[..., Front]) -> None:
    front = load(draft_max=6)
    texts, memories = zip(*(ask(front, owner=owner) for owner in ("a", "", "b", "b")), strict=True)
    assert len(set(texts)) == 1
    assert ["memory" in by for by in memories] == [False, False, False, True]


def test_output_without_drafts_and_of_cancelled_requests_is_kept(load: Callable[..., Front]) -> None:
    front = load(draft_max=6)
    ask(front, speculate=False)
    assert ask(front)[1]["memory"] > 30
    other = {**REQUEST, "prompt": "class Reader"}
    front.core.handle(generate(9, **other))  # type: ignore[arg-type]
    for _ in range(20):
        front.core.step()
    front.core.handle(m.Cancel(9))
    assert ask(front, **other)[1]["memory"] > 5


@pytest.mark.parametrize(
    ("settings", "has_memory"),
    [
        ({"memory": False, "draft_max": 6}, False),
        ({"drafters": ("grammar",), "draft_max": 6}, False),
        ({"draft_max": 0}, False),
        ({"draft_max": 6}, True),
        ({}, True),
    ],
)
def test_memory_needs_the_copy_drafter_and_permission(
    load: Callable[..., Front], settings, has_memory: bool
) -> None:
    front = load(**settings)
    (ready,) = (message for message in front.messages if isinstance(message, m.Ready))
    assert ready.info.memory is has_memory
    assert "memory" not in ready.info.drafters  # only names that --drafters accepts
    if not has_memory:
        texts, memories = zip(*(ask(front) for _ in range(2)), strict=True)
        assert len(set(texts)) == 1
        assert not any("memory" in by for by in memories)


def test_its_acceptance_table_is_stored_with_the_pair(load: Callable[..., Front]) -> None:
    """The key of the pair is the same with and without memory; a table that was not used is kept."""
    front = load()
    loaded = front.core.loaded
    assert loaded is not None
    loaded.profile.planner.learnt.tables["memory"].observe(12, True)
    ask(front)
    front.core.shut_down()
    for settings in ({"memory": False}, {}):
        again = load(**settings)
        assert again.core.loaded.profile.pair == loaded.profile.pair
        stored = again.core.loaded.profile.planner.learnt.to_dict()["tables"]["memory"]
        assert sum(stored["seen"]) == 1
        ask(again)
        again.core.shut_down()


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Settings with texts on disk."""
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path / "cache"))
    return {"draft_max": 6, "cache_disk": 10**9}


def test_memory_is_there_after_a_restart(load: Callable[..., Front], kept: dict[str, object]) -> None:
    front = load(**kept)
    text, by = ask(front)
    assert "memory" not in by
    front.core.shut_down()
    again, by = ask(load(**kept))
    assert again == text
    assert by["memory"] > 30
    for other in ({"disk_scope": "another"}, {"owner": "b", "disk_scope": ""}, {"memory": False}):
        assert "memory" not in ask(load(**kept), **other)[1], other
    assert "memory" not in ask(load(**{**kept, "cache_disk": 0}))[1]


@pytest.mark.parametrize("request_", [{"kept": False}, {"memory": False}, {"disk_scope": ""}])
def test_what_may_not_be_written_is_not(
    load: Callable[..., Front], kept: dict[str, object], request_: dict[str, object]
) -> None:
    front = load(**kept)
    ask(front, **request_)
    front.core.shut_down()
    assert "memory" not in ask(load(**kept))[1]


@pytest.mark.parametrize("when_idle", [False, True])
def test_a_corpus_is_read_at_the_load_or_while_idle(tmp_path: Path, when_idle: bool) -> None:
    """As `run` loads, whose only request follows at once, and as servers do."""
    file = tmp_path / "notes.txt"
    target = ModelSettings(path=str(EMBEDDED_TARGET), n_threads=1, n_ctx=512)
    plain = Front(LoadSettings(target=target, draft_max=0), Store(tmp_path))
    text, _ = ask(plain)
    plain.close()
    file.write_text(f"def read({text}")
    more = {"draft_max": 6, "calibrate": False, "memory_from": (str(file),)}
    front = Front(LoadSettings(target=target, **more), Store(tmp_path), measure_when_idle=when_idle)
    loaded = [type(message) for message in front.messages]
    assert (m.Notice in loaded) is not when_idle
    while front.core.step_due_in is not None:
        front.core.step()
    (notice,) = (message for message in front.messages if isinstance(message, m.Notice))
    assert "1 file, " in notice.text
    for request in ({}, {"memory": False}, {"owner": "b"}):
        again, by = ask(front, **request)
        assert again == text
        assert by["corpus"] > 30
    front.close()


def test_all_of_a_large_memory_is_indexed_while_idle(
    load: Callable[..., Front], kept: dict[str, object]
) -> None:
    front = load(**kept)
    history = front.core.loaded.history
    history.load = lambda _: [list(range(100)) * 1000]
    ask(front)
    engine = front.core.loaded_engine
    while history.pending:
        assert engine.step_due_in == 0.0
        before = history.pending.n_pending
        front.core.step()
        assert history.pending is None or history.pending.n_pending < before
