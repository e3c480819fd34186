"""A host remembers what it wrote, for whom, and nothing where it was told not to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specllama.client import protocol as m
from specllama.config.load import LoadSettings, ModelSettings
from specllama.config.store import Store
from specllama.data import EMBEDDED_TARGET
from tests.support.front import Front

ASKED = {"prompt": "def read(", "params": {"max_tokens": 50, "seed": 5, "ignore_eos": True}}


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Callable[..., Front]]:
    made: list[Front] = []

    def front(**settings: object) -> Front:
        target = ModelSettings(path=str(EMBEDDED_TARGET), n_threads=1, n_ctx=512)
        made.append(Front(LoadSettings(target=target, **settings), Store(tmp_path)))  # type: ignore[arg-type]
        return made[-1]

    yield front
    for one in made:
        one.close()


def ask(front: Front, **more: object) -> tuple[str, dict[str, int]]:
    """The text, and how many tokens of it each drafter drafted."""
    text = front.text(**(ASKED | more))
    done = front.said[-1]
    assert isinstance(done, m.Done)
    return text, done.stats.drafted_by


def test_what_was_written_is_drafted_from(load: Callable[..., Front]) -> None:
    front = load(draft_max=6)
    text, by = ask(front)
    assert "memory" not in by
    again, by = ask(front)
    assert again == text
    assert by["memory"] > 30
    sources = {source for item in front.items(**ASKED) for _, source in item.runs}
    assert "memory" in sources


def test_by_owner(load: Callable[..., Front]) -> None:
    front = load(draft_max=6)
    texts, memories = zip(*(ask(front, owner=owner) for owner in ("a", "", "b", "b")), strict=True)
    assert len(set(texts)) == 1
    assert ["memory" in by for by in memories] == [False, False, False, True]


def test_what_was_decoded_plainly_or_cancelled_too(load: Callable[..., Front]) -> None:
    front = load(draft_max=6)
    ask(front, speculate=False)
    assert ask(front)[1]["memory"] > 30
    other = {**ASKED, "prompt": "class Reader"}
    front.host.handle(m.Generate(9, **other))  # type: ignore[arg-type]
    for _ in range(20):
        front.host.step()
    front.host.handle(m.Cancel(9))
    assert ask(front, **other)[1]["memory"] > 5


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"memory": False, "draft_max": 6}, False),
        ({"drafters": ("grammar",), "draft_max": 6}, False),
        ({"draft_max": 0}, False),
        ({"draft_max": 6}, True),
        ({}, True),
    ],
)
def test_only_beside_copies_and_where_it_may(load: Callable[..., Front], settings, said: bool) -> None:
    front = load(**settings)
    (ready,) = (message for message in front.said if isinstance(message, m.Ready))
    assert ready.info.memory is said
    assert "memory" not in ready.info.drafters  # they are what --drafters names
    if not said:
        texts, memories = zip(*(ask(front) for _ in range(2)), strict=True)
        assert len(set(texts)) == 1
        assert not any("memory" in by for by in memories)


def test_its_table_is_stored_beside_the_others_of_the_pair(load: Callable[..., Front]) -> None:
    """With or without a memory the pair is the same one; the table of what was not used stays as it was."""
    front = load()
    loaded = front.host.loaded
    assert loaded is not None
    loaded.profile.planner.learnt.tables["memory"].observe(12, True)
    ask(front)
    front.host.leave()
    for settings in ({"memory": False}, {}):
        again = load(**settings)
        assert again.host.loaded.profile.pair == loaded.profile.pair
        stored = again.host.loaded.profile.planner.learnt.to_dict()["tables"]["memory"]
        assert sum(stored["seen"]) == 1
        ask(again)
        again.host.leave()
