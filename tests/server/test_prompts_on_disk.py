"""Prompts on disk over HTTP: after a kill, by key, by request, by model, and slots that scripts save."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specllama.core.prefix.stored import GAP
from tests.support import tinygguf, tinymtp
from tests.support.conversations import Answer, Say
from tests.support.hub_cache import put
from tests.support.serving import Reply, Server, samples_of
from tests.support.turns import PATHS, ask

BUILDERS: dict[str, Callable[..., Path]] = {"qwen35": tinymtp.qwen35, "gemma3": tinygguf.gemma3}
TEXT = "You answer questions about a machine that sorts letters by their stamps. " * 8
QUESTION, NEXT = Say("user", "What does it do with the others?"), Say("user", "And then?")
KEYS = {name: {"Authorization": f"Bearer {name}"} for name in ("alice", "bob")}


def serve(home: Path, kind: str = "qwen35", *flags: str, env: dict[str, str | None] | None = None) -> Server:
    path = home / f"{kind}.gguf"
    if not path.exists():
        BUILDERS[kind](path, n_ctx_train=8192)
    model = () if env else ("-m", str(path), "-md", "none")
    flags = (*model, "-c", "8192", "-np", "2", "-b", "256", "-ub", "64", *flags)
    return Server(home, *flags, env=env, module="tests.support.keeps_prompts")


def states(home: Path) -> list[Path]:
    return list((home / "cache" / "prefixes").glob("*.state"))


def conversation(name: str) -> list[Any]:
    return [Say("system", f"{name}. {TEXT}"), QUESTION]


def longer(name: str) -> list[Any]:
    return [*conversation(name), Answer("It keeps them in a box."), NEXT]


def complete(server: Server, text: str, **fields: Any) -> Reply:
    asked = {"max_tokens": 24, "temperature": 0, "seed": 3, "ignore_eos": True, **fields}
    reply = server.complete(text, **asked)
    assert reply.status == 200, reply.body
    return reply


def from_disk(server: Server, name: str = "") -> float:
    """The metric, as this key may read it."""
    samples = samples_of(server.get("/metrics", headers=KEYS.get(name)))
    return samples["specllama_prompt_tokens_from_disk_total"]


def kill(server: Server) -> None:
    engine = server.engine()
    server.process.kill()
    server.process.wait()
    engine.wait(10)


@pytest.mark.parametrize("kind", BUILDERS)
def test_a_killed_server_resumes_its_prompts(tmp_path: Path, kind: str) -> None:
    """The same texts as without, in every API, and from the disk."""
    with serve(tmp_path, kind) as first:
        for n, api in enumerate(PATHS, 1):
            assert ask(first, api, conversation(api)).n_cached < GAP
            first.until(lambda n=n: len(states(tmp_path)) >= n, 20)
        raw = f"Raw. {TEXT}"
        complete(first, raw)
        first.until(lambda: len(states(tmp_path)) > len(PATHS), 20)
        texts = {api: ask(first, api, longer(api)).answer for api in PATHS}
        said = complete(first, raw + "The others").json["choices"][0]["text"]
        kill(first)
    with serve(tmp_path, kind) as second:
        for api in PATHS:
            resumed = ask(second, api, longer(api))
            assert resumed.answer == texts[api]
            assert resumed.n_evaluated <= 2 * GAP + 40
            assert resumed.n_cached > 300
        reply = complete(second, raw + "The others").json
        assert reply["choices"][0]["text"] == said
        assert reply["timings"]["prompt_n"] <= 2 * GAP + 20
        assert from_disk(second) > 300 * len(PATHS)


def test_requests_without_store_or_reuse_leave_nothing_on_disk(tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        for i, choice in enumerate(({"store": False}, False, {"reuse": False})):
            for api in PATHS:
                ask(server, api, conversation(f"{api} {i}"), cache=choice)
            complete(server, f"{i}. {TEXT}", cache=choice)
        ask(server, "responses", conversation("not stored"), store=False)
        time.sleep(1.0)
        assert not states(tmp_path)
        ask(server, "chat", conversation("stored"))
        server.until(lambda: states(tmp_path), 20)
        assert server.stop() == 128 + signal.SIGTERM
    assert len(states(tmp_path)) == 1, "nor when the server ends"
    data = states(tmp_path)[0].read_bytes()
    assert data


@pytest.mark.parametrize("shared", [False, True], ids=["apart", "shared"])
def test_keys_are_apart_after_a_restart(tmp_path: Path, shared: bool) -> None:
    """A right guess of another key's prompt has the figures of a wrong one."""
    flags = ("--api-key", "alice,bob", *(["--share-cache"] if shared else []))
    with serve(tmp_path, "qwen35", *flags) as first:
        ask(first, "chat", conversation("a secret"), headers=KEYS["alice"])
        first.until(lambda: states(tmp_path), 20)
        kill(first)
    flags = ("--api-key", "bob,alice", *flags[2:])  # their places in the list do not matter
    with serve(tmp_path, "qwen35", *flags) as second:
        wrong = ask(second, "chat", [Say("system", f"another. {TEXT}"), QUESTION], headers=KEYS["bob"])
        right = ask(second, "chat", conversation("a secret"), headers=KEYS["bob"])
        if shared:
            assert right.n_cached > 300
            assert from_disk(second, "bob") > 300
            return
        assert wrong.n_cached == 0
        assert right.n_cached < GAP
        assert from_disk(second, "bob") == 0
        own = ask(second, "chat", conversation("a secret"), headers=KEYS["alice"])
        assert own.n_cached > 300
        assert from_disk(second, "alice") > 300
        assert from_disk(second, "bob") == 0


def test_a_reloaded_model_keeps_its_prompts(tmp_path: Path) -> None:
    for seed, name in enumerate(("one", "two")):
        content = tinymtp.qwen35(tmp_path / f"{name}.gguf", seed=seed, n_ctx_train=8192).read_bytes()
        put(tmp_path / "hub", f"me/{name}", f"{name}-F32.gguf", content)
    environ: dict[str, str | None] = {"SPECLLAMA_MODEL": None, "HF_HUB_CACHE": str(tmp_path / "hub")}
    with serve(tmp_path, "qwen35", "--models-max", "1", env=environ) as server:
        texts = {}
        for name in ("one", "two"):
            model = f"me/{name}:F32"
            assert ask(server, "chat", conversation("a"), model=model).n_cached == 0
            texts[name] = ask(server, "chat", longer("a"), model=model).answer
        for name in ("one", "two"):
            reply = ask(server, "chat", longer("a"), model=f"me/{name}:F32")
            assert reply.n_cached > 300
            assert reply.answer == texts[name]
        assert sum("is unloaded" in line for line in server.lines) >= 3


def test_slots_can_be_saved_and_restored(tmp_path: Path) -> None:
    """With names of llama-server's own documentation, in another process, by the same key alone."""
    folder = tmp_path / "slots"
    folder.mkdir()
    flags = ("--slot-save-path", str(folder), "--cache-disk", "0", "--api-key", "alice,bob")
    prompt = f"Slots. {TEXT}"
    with serve(tmp_path, "qwen35", *flags) as first:
        first.key = "alice"
        reply = first.post("/completion", {"prompt": prompt, "n_predict": 8, "id_slot": 0, "temperature": 0})
        text, slot = reply.json["content"], reply.json["id_slot"]
        saved = first.post(f"/slots/{slot}?action=save", {"filename": "slot.bin"}).json
        assert saved["n_saved"] > 300
        assert saved["n_written"] == sum(p.stat().st_size for p in folder.rglob("slot.bin"))
        assert saved["timings"]["save_ms"] >= 0
        erased = first.post(f"/slots/{slot}?action=erase", None).json
        assert erased == {"id_slot": slot, "n_erased": saved["n_saved"]}
        assert complete(first, prompt).json["timings"]["cache_n"] < GAP
    with serve(tmp_path, "qwen35", *flags) as second:
        second.key = "bob"
        assert second.post("/slots/0?action=restore", {"filename": "slot.bin"}).status == 400
        second.key = "alice"
        restored = second.post("/slots/0?action=restore", {"filename": "slot.bin"}).json
        assert (restored["n_restored"], restored["n_read"]) == (saved["n_saved"], saved["n_written"])
        reply = second.post("/completion", {"prompt": prompt, "n_predict": 8, "temperature": 0})
        assert reply.json["content"] == text
        assert reply.json["timings"]["prompt_n"] <= GAP + GAP
        second.key = "bob"
        assert complete(second, prompt).json["timings"]["cache_n"] < GAP
