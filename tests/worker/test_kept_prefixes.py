"""Prompts on disk: an engine that is started again goes on from where another one was."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specllama.client import protocol as m
from specllama.config.load import ModelSettings
from specllama.prefix_disk.directory import default_directory
from specllama.worker import prefix_persister
from specllama.worker import prefix_persister as prefix_key
from tests.support import tinygguf, tinymtp
from tests.support.front import KEPT, Front
from tests.support.generations import generate

BUILDERS = {
    "llama": tinygguf.llama,
    "gemma3": tinygguf.gemma3,
    "qwen35": tinymtp.qwen35,
    "mamba": tinygguf.mamba,
}
KINDS = tuple(BUILDERS)
TEXT = "The machine sorts letters by their stamps, and keeps those without one. " * 12
FIRST = {"messages": [{"role": "user", "content": TEXT}]}


@pytest.fixture
def opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fronts: Callable[..., Front]
) -> Iterator[Callable[..., Front]]:
    """Engines on one model file and one directory of prompts."""
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path / "cache"))
    made: list[Front] = []

    def make(kind: str, **more: Any) -> Front:
        path = tmp_path / f"{kind}.gguf"
        if not path.exists():
            BUILDERS[kind](path, n_ctx_train=4096)
        target = ModelSettings(
            path=str(path), n_threads=1, n_ctx=4096, n_ubatch=64, n_batch=64, **more.pop("target", {})
        )
        made.append(fronts(True, target=target, **(KEPT | {"drafters": ()} | more)))
        return made[-1]

    yield make
    for one in made:
        one.end()


def ask(front: Front, temperature: float = 0.0, **request: Any) -> tuple[m.Done, str]:
    params = {"max_tokens": 30, "seed": 3, "temperature": temperature, "ignore_eos": True}
    text = front.text(params=params, **(FIRST | request))
    done = front.messages[-1]
    assert isinstance(done, m.Done)
    return done, text


def next_turn(text: str) -> dict[str, Any]:
    answer = {"role": "assistant", "content": text}
    return {"messages": [*FIRST["messages"], answer, {"role": "user", "content": "And then?"}]}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_an_engine_that_is_started_again_evaluates_what_is_new(opened, kind, temperature):
    first = opened(kind)
    done, text = ask(first, temperature)
    assert done.stats.n_reused == 0
    turn = next_turn(text)
    expected, said = ask(first, temperature, **turn)
    first.end()
    second = opened(kind)
    got, again = ask(second, temperature, **turn)
    assert again == said
    assert got.stats.n_reused >= expected.stats.n_prompt - 100
    unlike = {"messages": [{"role": "user", "content": "Something else. " * 60}]}
    assert ask(second, temperature, **unlike)[0].stats.n_reused < 10


@pytest.mark.parametrize("kind", KINDS)
def test_a_regenerated_answer_is_the_same_after_a_restart(opened, kind):
    first = opened(kind)
    _, text = ask(first, 0.8)
    first.end()
    done, again = ask(opened(kind), 0.8)
    assert again == text
    assert done.stats.n_evaluated <= 70


def test_texts_are_written_once_the_engine_is_idle(opened):
    front = opened("qwen35")
    ask(front)
    due = front.core.step_due_in
    assert due is not None
    time.sleep(due)
    front.core.step()
    assert front.core.loaded_engine.persister is not None
    assert front.core.loaded_engine.persister.disk.flush(10.0)
    assert front.core.loaded_engine.persister.disk.n_written == 1
    assert front.core.step_due_in is None
    assert list(default_directory().glob("*.state"))


@pytest.mark.parametrize("more", [{"kept": False}, {"disk_scope": ""}])
def test_what_is_not_to_be_stored_is_not_written(opened, more):
    front = opened("llama")
    ask(front, **more)
    front.end()
    assert not list(default_directory().glob("*.state"))


def test_a_request_that_is_not_stored_leaves_others_stored(opened):
    first = opened("llama", n_slots=2)
    ask(first)
    ask(first, messages=[{"role": "user", "content": "Hello"}], kept=False, disk_scope="")
    first.end()
    assert ask(opened("llama"))[0].stats.n_reused > 500


def test_without_memory_for_prompts_the_disk_is_used(opened):
    first = opened("llama", cache_ram=0)
    _, text = ask(first)
    first.end()
    second = opened("llama", cache_ram=0)
    done, again = ask(second)
    assert again == text
    assert done.stats.n_from_disk > 500
    assert not second.core.engine.scheduler.store.state_cache.texts


def test_a_busy_engine_writes_too(opened):
    front = opened("llama", n_slots=2)
    ask(front)
    kept = front.core.loaded_engine.persister
    assert kept is not None
    more = {"max_tokens": 2000, "ignore_eos": True}
    front.core.handle(generate(9, prompt="Once", params=more, kept=False))
    front.core.step()
    assert kept._disk is None, "a next turn may follow at once"
    kept._due, kept._since = 0.0, kept._since - 100.0  # it has not been idle for so long
    front.core.step()
    assert front.core.decoding
    assert kept.disk.flush(20)
    assert kept.disk.n_written == 1


def test_prompts_of_another_scope_are_not_read(opened):
    first = opened("llama")
    ask(first, disk_scope="a" * 32)
    first.end()
    second = opened("llama")
    assert ask(second, disk_scope="b" * 32)[0].stats.n_reused == 0
    second.end()
    assert ask(opened("llama"), disk_scope="a" * 32)[0].stats.n_reused > 500


def test_texts_whose_reading_costs_less_are_not_written(opened):
    front = opened("llama", kept_seconds=100.0)
    ask(front)
    front.end()
    assert not list(default_directory().glob("*.state"))


def test_another_type_of_the_cache_finds_nothing(opened):
    first = opened("llama")
    ask(first)
    first.end()
    done, _ = ask(opened("llama", target={"cache_type_k": "f32", "cache_type_v": "f32"}))
    assert done.stats.n_reused == 0


def test_a_model_that_was_replaced_under_its_name_finds_nothing(opened, tmp_path):
    first = opened("llama")
    _, of_first = ask(first)
    first.end()
    tinygguf.llama(tmp_path / "llama.gguf", seed=1, n_ctx_train=4096)
    second = opened("llama")
    done, text = ask(second)
    assert done.stats.n_reused == 0
    assert text != of_first
    second.end()
    assert ask(opened("llama"))[1] == text


def test_another_build_finds_nothing(opened, monkeypatch):
    first = opened("llama")
    _, text = ask(first)
    first.end()
    build = {**prefix_key.build_info(), "llama_cpp": "another"}
    monkeypatch.setattr(prefix_key, "build_info", lambda: build)
    done, again = ask(opened("llama"))
    assert done.stats.n_reused == 0
    assert again == text
    assert len(list(default_directory().glob("*.state"))) == 1, "of the first build, until there is no room"


def test_a_file_whose_bytes_changed_is_evaluated_again(opened):
    first = opened("qwen35")
    _, text = ask(first)
    first.end()
    for path in default_directory().glob("*.state"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    done, again = ask(opened("qwen35"))
    assert done.stats.n_reused == 0
    assert again == text


def test_several_slots_and_texts_that_were_moved_out_are_kept(opened):
    first = opened("qwen35", n_slots=2)
    texts = [{"messages": [{"role": "user", "content": f"{i} {TEXT}"}]} for i in range(4)]
    answers = [ask(first, **one)[1] for one in texts]
    first.end()
    second = opened("qwen35", n_slots=2)
    for one, answer in zip(texts, answers, strict=True):
        done, again = ask(second, **one)
        assert again == answer
        assert done.stats.n_evaluated <= 70


def test_an_engine_that_ends_waits_for_memory_without_asking_all_the_time(
    opened: Callable[..., Front], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(prefix_persister, "END_SECONDS", 0.5)
    front = opened("llama")
    ask(front)
    asked: list[int] = []
    assert front.core.loaded is not None
    monkeypatch.setattr(front.core.loaded.context, "prepare_save", asked.append)
    front.end()
    assert 1 <= len(asked) <= 20


def test_a_state_is_not_read_where_the_memory_has_gone_since_it_was_found(opened: Callable[..., Front]):
    first = opened("llama")
    ask(first)
    first.end()
    second = opened("llama")
    store = second.core.engine.scheduler.store
    answers = iter([True, False])
    store.room = lambda _: next(answers)
    done, _ = ask(second)
    assert done.stats.n_from_disk == 0
    assert next(answers, None) is None, "asked twice"
    store.room = lambda _: True
