"""A conversation goes on in another engine process, by ids that its front has kept; its oldest turns go."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specllama.client import protocol as m
from specllama.client.client import EngineClient
from specllama.client.stream import GenerationResult, fold
from specllama.config.load import LoadSettings, ModelSettings
from specllama.core.prefix.stored import GAP
from specllama.prefix_disk.directory import default_directory
from tests.support import tinygguf, tinymtp
from tests.support.generations import generate

KINDS = {"llama": tinygguf.llama, "qwen35": tinymtp.qwen35}
TEXT = "The machine sorts letters by their stamps, and keeps those without one. " * 8
SYSTEM = {"role": "system", "content": "You answer questions about a machine. " * 12}


def settings(path: Path, **more: Any) -> LoadSettings:
    target = ModelSettings(path=str(path), n_threads=1, n_ctx=4096)
    plain: dict[str, Any] = {"drafters": (), "memory": False, "calibrate": False, "kept_seconds": 0.0}
    template = tinygguf.CHATML
    return LoadSettings(target=target, chat_template=template, **{**plain, "cache_disk": 10**9, **more})


def ask(client: EngineClient, messages: list[dict[str, Any]], **more: Any) -> GenerationResult:
    params = {"max_tokens": 40, "seed": 3, "temperature": 1.5, "top_k": 0, "ignore_eos": True}
    request = generate(client.next_id(), messages=messages, params=params, show_ids=True, **more)
    return fold(client.generate(request))


def said(answer: GenerationResult, n_messages: int) -> m.EarlierTurn:
    ids = [*answer.prompt_ids, *answer.ids]
    return m.EarlierTurn(n_messages, answer.n_prompt, ids, answer.digest)


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_process_reads_only_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path / "cache"))
    build: Callable[..., Path] = KINDS[kind]
    path = build(tmp_path / f"{kind}.gguf", n_ctx_train=4096)
    first = [SYSTEM, {"role": "user", "content": TEXT}]
    with EngineClient() as client:
        client.load(settings(path))
        answer = ask(client, first)
        second = [*first, {"role": "assistant", "content": answer.text}, {"role": "user", "content": "So?"}]
        earlier = said(answer, 2)
        assert len(earlier.ids) == answer.n_prompt + 40
        until = time.monotonic() + 20
        while not list(default_directory().glob("*.state")):
            assert time.monotonic() < until
            time.sleep(0.05)
        expected = ask(client, second, follows=1)
        os.kill(client.pid, signal.SIGKILL)
    with EngineClient() as client:
        client.load(settings(path))
        continued = ask(client, second, earlier=earlier)
        again = ask(client, first, earlier=earlier)
        others = [
            replace(earlier, digest="0" * 32), replace(earlier, ids=[*earlier.ids[:-1], 10**6]),
            replace(earlier, n_messages=3), replace(earlier, n_messages=9), replace(earlier, n_prompt=0),
            replace(earlier, ids=[earlier.ids[1], *earlier.ids[1:]]), replace(earlier, prefix="x"),
        ]  # fmt: skip
        without = ask(client, second).prompt_ids
        assert [ask(client, second, earlier=other).prompt_ids for other in others] == [without] * len(others)
    assert continued.prompt_ids == expected.prompt_ids
    assert continued.prompt_ids[: len(earlier.ids)] == earlier.ids
    assert continued.text == expected.text
    assert continued.stats.n_evaluated == expected.stats.n_evaluated < 40
    assert again.prompt_ids == answer.prompt_ids


@pytest.mark.parametrize("kind", KINDS)
def test_without_its_oldest_turns_the_system_message_is_not_read_again(tmp_path: Path, kind: str) -> None:
    path = KINDS[kind](tmp_path / f"{kind}.gguf", n_ctx_train=4096)
    talk = [SYSTEM]
    with EngineClient() as client:
        client.load(settings(path, cache_disk=0))
        for word in ("one", "two", "three"):
            talk.append({"role": "user", "content": f"{word}: {TEXT}"})
            talk.append({"role": "assistant", "content": ask(client, talk).text})
        talk.append({"role": "user", "content": "four"})
        n_system = ask(client, [SYSTEM, {"role": "user", "content": "?"}]).n_prompt - 10
        cut = ask(client, [SYSTEM, *talk[5:]])
        half = ask(client, [SYSTEM, *talk[5:]], prefix="Because")
    assert cut.stats.n_reused >= n_system - GAP
    assert cut.stats.n_evaluated <= cut.n_prompt - n_system + GAP
    assert half.stats.n_evaluated <= GAP + 40
