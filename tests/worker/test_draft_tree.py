"""`draft_tree` in the engine process: the texts are those of plain decoding, and what cannot work is said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specllama.client import protocol as m
from specllama.config.load import LoadSettings, ModelSettings
from specllama.config.store import Store
from specllama.core.stats import RunStats
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.errors import UsageError
from tests.support import tinygguf
from tests.support.front import Front

CODE = "def total(items):\n    result = 0\n    for i in items:\n        result += i\n    return result\n"
ASKED = ("What does shutil.copytree do?", f"Rename `result` to `payload` in this code:\n{CODE}")
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}}, "required": ["name"]}


def loaded(folder: Path, **more: Any) -> Front:
    target, draft = (
        ModelSettings(path=str(path), n_threads=1, n_ctx=1024) for path in (EMBEDDED_TARGET, EMBEDDED_DRAFT)
    )
    given = {"target": target, "draft": draft, "n_slots": 4, "memory": False, "calibrate": False}
    return Front(LoadSettings(**(given | more)), Store(folder))


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    front = loaded(tmp_path_factory.mktemp("store"), draft_max=4, draft_tree=3)
    yield front
    front.close()


def stats_of(front: Front) -> RunStats:
    done = front.messages[-1]
    assert isinstance(done, m.Done)
    return done.stats


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(
    "more", [{}, {"stop": ["return", "source"]}, {"json_schema": SCHEMA}, {"repeat_penalty": 1.2}],
    ids=["free", "stop", "schema", "penalty"],
)  # fmt: skip
def test_texts_are_those_of_plain_decoding(front: Front, temperature: float, more: dict[str, Any]) -> None:
    branched = 0
    for asked in ASKED:
        one = {
            "messages": [{"role": "user", "content": asked}],
            "params": {"temperature": temperature, "seed": 5, "max_tokens": 60, **more},
        }
        text = front.text(**one)
        branched += stats_of(front).n_branch
        assert front.text(**one, speculate=False) == text
    assert branched


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_four_at_once_and_conversations_that_go_on(front: Front, temperature: float) -> None:
    params = {"temperature": temperature, "seed": 3, "max_tokens": 50, "ignore_eos": True}
    asked = [
        {"messages": [{"role": "user", "content": text * n}], "params": params}
        for text in ASKED
        for n in (1, 2)
    ]
    together = front.ids_at_once(asked)
    assert together == [front.ids(**one, speculate=False) for one in asked]
    messages = asked[0]["messages"]
    for _ in range(3):
        answer = front.text(messages=messages, params=params)
        reused = stats_of(front).n_reused
        messages = [
            *messages,
            {"role": "assistant", "content": answer},
            {"role": "user", "content": ASKED[1]},
        ]
        plain = front.text(messages=messages, params=params, speculate=False, owner="another")
        assert front.text(messages=messages, params=params) == plain
    assert reused > 50


def test_auto_and_off_write_the_same(tmp_path: Path, front: Front) -> None:
    one = {"messages": [{"role": "user", "content": ASKED[1]}], "params": {"temperature": 0.8, "seed": 1}}
    expected = front.text(**one, speculate=False)
    for tree in (None, 0):
        other = loaded(tmp_path / str(tree), draft_tree=tree, n_slots=1)
        assert other.text(**one) == expected
        assert stats_of(other).n_branch == 0
        context = other.core.loaded.context if other.core.loaded else None
        assert context is not None
        assert context.n_branches == 0
        other.close()


def test_a_model_with_a_state_has_chains_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "hybrid.gguf"
    tinygguf.lfm2(path)
    for tree, notes in ((3, 1), (None, 0), (0, 0)):
        target = ModelSettings(path=str(path), n_threads=1, n_ctx=256)
        one = loaded(tmp_path / "store", target=target, draft=None, draft_tree=tree, draft_max=3)
        (ready,) = [message for message in one.messages if isinstance(message, m.Ready)]
        texts = [str(note) for note in ready.info.notes if "draft_tree" in str(note)]
        assert len(texts) == notes
        assert all("drafts are chains" in note for note in texts)
        ids = list(range(30, 60)) * 2
        params = {"max_tokens": 20, "ignore_eos": True, "temperature": 0.0}
        assert one.ids(ids=ids, params=params) == one.ids(ids=ids, params=params, speculate=False)
        one.close()


def test_impossible_numbers_are_errors() -> None:
    settings = LoadSettings(target=ModelSettings(path="x"))
    assert settings.draft_tree is None
    for wrong in (-1, 65, True, 1.5, "3"):
        with pytest.raises(UsageError, match=r"draft.tree"):
            replace(settings, draft_tree=wrong)
